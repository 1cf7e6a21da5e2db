"""Sentences about a server's figures: what contradicts what, which confusion explains it, what a line counts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from kvplan.catalog import Gpu
from kvplan.memory.checks import GIB, Check, Shape, single_slope
from kvplan.memory.server_facts import ServerFacts


def findings_of(facts: ServerFacts, checks: Sequence[Check], shape: Shape | None) -> Iterator[str]:
    """All sentences but those about an impossible pool, the gravest first."""
    for check in checks:
        if not check.agrees:
            yield _explain(check, facts, shape)
    yield from _definition(facts, checks, shape)
    yield from _stages(checks)
    yield from _per_token(facts, shape)


def impossible_pool(facts: ServerFacts, shape: Shape | None, gpu: Gpu | None) -> str | None:
    """A pool that is larger than the card."""
    total = facts.total_gib or (gpu.memory_gib if gpu else None)
    if total is None:
        return None
    pool = facts.pool_gib
    if shape is not None and facts.num_gpu_blocks and pool is None:
        pool = facts.num_gpu_blocks * shape.block_bytes / GIB
    if pool is not None and pool + (facts.weights_gib or 0.0) > total * 1.005:
        return (
            f"cannot be: a pool of {pool:.2f} GiB"
            + (f" beside {facts.weights_gib:.2f} GiB of weights" if facts.weights_gib else "")
            + f" is more than the GPU's {total:.2f} GiB; blocks of another model, or tokens taken for blocks"
        )
    return None


def _explain(check: Check, facts: ServerFacts, shape: Shape | None) -> str:
    """Which of the usual confusions gives the logged figure, if one does."""
    start = f"{check.name}: logged {_figure(check.logged, check.unit)}, computed {_figure(check.computed, check.unit)}"
    if check.name == "kv_cache" and check.identity:
        fitting = _fitting_utilization(facts, check)
        tail = f"; they add up at gpu_memory_utilization {fitting:g}" if fitting else ""
        return f"{start}: the terms do not add up as stated{tail}"
    if check.name == "tokens" and check.identity:
        return f"{start}: the token line and the concurrency line follow different definitions"
    if shape is None:
        return f"{start} ({check.words})"
    ratio = check.logged / check.computed if check.computed else 0.0
    readings = [words for factor, words in _confusions(facts, shape) if abs(ratio / factor - 1) < 0.004]
    if readings:
        return f"{start}: " + ", or ".join(dict.fromkeys(readings))
    if check.name in ("tokens", "gpu_blocks") and 0.95 < ratio < 1 and (facts.tensor_parallel_size or 1) > 1:
        return f"{start}: the GiB line is one rank's, and the rank with the least sets the blocks for all"
    if check.name == "estimated_max_len":
        return f"{start}: a request costs a fixed part beside its tokens (state or window pages)"
    return f"{start} ({check.words}); {_figure(abs(check.difference), check.unit)} apart"


def _confusions(facts: ServerFacts, shape: Shape) -> list[tuple[float, str]]:
    """Factor (logged / computed) and the reading of the model that would give it."""
    tp, pp = facts.tensor_parallel_size or 1, facts.pipeline_parallel_size or 1
    model = shape.model
    found: list[tuple[float, str]] = []
    for size in (2, 4, 8, 16):
        found.append((size, f"as if the cache were cut {size} ways more (tensor_parallel_size {tp * size}?)"))
        whole = "heads not divided by TP" if size == tp else f"a pool counted for {size} GPUs"
        found.append((1 / size, f"as if {size} times the cache stood on this GPU ({whole}?)"))
    found.append((2.0, "as if the cache were fp8"))
    found.append((0.5, "as if the cache had twice the bytes a value (kv_cache_dtype ignored?)"))
    if model.num_key_value_heads and model.num_attention_heads:
        queries = model.num_key_value_heads / model.num_attention_heads
        found.append((queries, "as if every query head had its own K and V (MHA, not GQA)"))
    if pp > 1:
        model_bytes = sum(group.token_bytes for group in shape.groups)
        found.append(
            (shape.token_bytes / model_bytes, f"as if one pipeline stage held all {model.num_hidden_layers} layers")
        )
    return found


def _fitting_utilization(facts: ServerFacts, check: Check) -> float | None:
    """The utilization, in hundredths, at which the stated terms give the stated pool."""
    total = facts.total_gib
    if not total or facts.gpu_memory_utilization is None:
        return None
    exact = facts.gpu_memory_utilization - check.difference / total
    if not 0 < exact < 1.005:
        return None
    rounded = round(exact * 100) / 100
    near = abs(exact - rounded) * total <= 0.03 and 0 < rounded <= 1
    return rounded if near and rounded != facts.gpu_memory_utilization else None


def _definition(facts: ServerFacts, checks: Sequence[Check], shape: Shape | None) -> list[str]:
    """Which definition the token line follows, and what the other one would say."""
    f = facts
    if not f.kv_tokens:
        return []
    product = f.max_concurrency * f.max_model_len if f.max_concurrency and f.max_model_len else None
    if shape is None:
        return _definition_alone(f, product)
    used = next((check.words for check in checks if check.name == "tokens" and not check.identity), None)
    if used is None or not shape.hybrid:
        return []
    if not used.startswith("blocks"):
        return ["the token line is max_concurrency x max_model_len (vLLM 0.21 and later)"]
    other = f"; by concurrency it would be {product:,.0f}" if product else ""
    return [
        f"the token line is blocks / {len(shape.groups)} groups x {shape.block_size} (before vLLM 0.21){other}: it "
        "says little for this hybrid model, read the concurrency"
    ]


def _definition_alone(facts: ServerFacts, product: float | None) -> list[str]:
    """The same where no model is known: the figures may still tell."""
    f, found = facts, []
    assert f.kv_tokens is not None
    if product is not None and f.max_concurrency and f.max_model_len:
        line = f"{f.max_concurrency:g} x {f.max_model_len:,} = {product:,.0f}"
        if abs(f.kv_tokens - product) <= 0.006 * f.max_model_len + 1:
            found.append(
                f"the token line is max_concurrency x max_model_len ({line}), as it is by blocks in a dense model"
            )
        else:
            found.append(
                f"the token line is not max_concurrency x max_model_len ({line}): it counts blocks / groups x block "
                "size, as vLLM before 0.21 did for hybrid models; read the concurrency"
            )
    if f.num_gpu_blocks and f.kv_tokens % f.num_gpu_blocks == 0:
        found.append(f"the token line is {f.num_gpu_blocks:,} blocks x {f.kv_tokens // f.num_gpu_blocks}")
    return found


def _stages(checks: Sequence[Check]) -> list[str]:
    if any("all stages" in check.words for check in checks):
        return ["the engine charged one pipeline stage with the layers of all stages; a stage needs only its own"]
    return []


def _per_token(facts: ServerFacts, shape: Shape | None) -> list[str]:
    """What the figures say about bytes a token, and how many full requests the tokens are."""
    f, found = facts, []
    if shape is None and f.pool_gib and f.kv_tokens:
        found.append(f"the pool and the tokens imply {f.pool_gib * GIB / f.kv_tokens:,.0f} bytes a token on one GPU")
    if shape is None and f.num_gpu_blocks and f.num_cpu_blocks:
        block = (f.swap_space_gib or 4.0) * 1024 / f.num_cpu_blocks
        found.append(
            f"{f.num_cpu_blocks:,} CPU blocks in a swap space of {f.swap_space_gib or 4:g} GiB are {block:.2f} MiB "
            f"each: the pool is {f.num_gpu_blocks * block / 1024:.2f} GiB"
        )
    if f.num_gpu_blocks and f.kv_tokens is None and f.max_concurrency and f.max_model_len:
        size = f.max_concurrency * f.max_model_len / f.num_gpu_blocks
        found.append(f"{f.num_gpu_blocks:,} blocks at that concurrency hold {size:.1f} tokens each")
    if shape is not None and f.num_gpu_blocks and f.pool_gib is None:
        pool = f.num_gpu_blocks * shape.block_bytes / GIB
        found.append(f"{f.num_gpu_blocks:,} blocks of this model are {pool:.2f} GiB on one GPU")
    if f.kv_tokens and f.max_model_len and f.max_concurrency is None:
        found.append(f"{f.kv_tokens:,} tokens are {f.kv_tokens / f.max_model_len:.2f} requests of {f.max_model_len:,}")
    if (
        f.needed_kv_gib
        and f.estimated_max_len
        and f.available_kv_gib
        and f.max_model_len
        and single_slope(f) is None
        and f.max_model_len > f.estimated_max_len
    ):
        slope = (f.needed_kv_gib - f.available_kv_gib) / (f.max_model_len - f.estimated_max_len)
        fixed = f.needed_kv_gib - slope * f.max_model_len
        found.append(f"a request costs {fixed:.2f} GiB whatever its length, and {slope * GIB:,.0f} bytes a token")
    return found


def _figure(value: float, unit: str) -> str:
    if unit == "GiB" or unit == "x":
        return f"{value:.2f} {unit}" if unit == "GiB" else f"{value:.2f}x"
    return f"{value:,.0f} {unit}"
