"""Explaining a server's own figures: does the model account for them, and do they add up at all?"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from kvplan.catalog import Gpu, ModelConfig
from kvplan.errors import InputError
from kvplan.memory.checks import (
    GIB,
    Check,
    Shape,
    against_model,
    graphs_charged,
    identities,
    shape_of,
    single_slope,
)
from kvplan.memory.overrides import MemoryOverrides
from kvplan.memory.plan import MemoryPlan, plan_memory
from kvplan.memory.server_facts import ServerFacts

Verdict = Literal["agrees", "differs", "cannot balance", "nothing to check"]


@dataclass(frozen=True)
class Line:
    """One term in GiB: what was logged, what kvplan predicts from model, GPU and flags alone."""

    name: str
    logged_gib: float | None
    predicted_gib: float | None

    @property
    def error(self) -> float | None:
        """Relative to the logged figure."""
        if not self.logged_gib or self.predicted_gib is None:
            return None
        return (self.predicted_gib - self.logged_gib) / self.logged_gib


@dataclass(frozen=True)
class Reconciliation:
    """The logged figures beside the computed ones, and what follows.

    ``checks`` take the server's own terms for granted and follow them to blocks, tokens and concurrency; ``lines``
    are the terms beside kvplan's prediction. ``findings`` are sentences for a person.
    """

    facts: ServerFacts
    model: ModelConfig | None
    plan: MemoryPlan | None
    checks: tuple[Check, ...]
    lines: tuple[Line, ...]
    findings: tuple[str, ...]
    verdict: Verdict

    @property
    def overrides(self) -> MemoryOverrides:
        """The measured terms, for later plans of the same server."""
        f = self.facts
        activation = f.activation_gib
        if activation is None and f.peak_torch_gib is not None and f.weights_gib is not None:
            activation = f.peak_torch_gib - f.weights_gib
        graphs = f.cuda_graphs_estimated_gib if graphs_charged(f) else f.cuda_graphs_gib
        return MemoryOverrides.from_gib(
            origin="measured: " + " ".join(filter(None, (f.engine, f.version, f.model))) or "measured",
            total=f.total_gib,
            weights=f.weights_gib,
            non_torch=f.non_torch_gib,
            activation=activation,
            cuda_graphs=graphs,
        )


def reconcile(facts: ServerFacts, model: ModelConfig | None = None, gpu: Gpu | None = None) -> Reconciliation:
    """Lay a server's figures beside what its model, its flags and (where known) its GPU give.

    Args:
        facts: what was read; flags in it that the log does not show can be set before.
        model: None leaves only the equations among the figures themselves.
        gpu: None leaves out the prediction of the terms.
    """
    if model is not None and facts.dtype in ("float32", "float16", "bfloat16"):
        model = replace(model, dtype=facts.dtype)
    checks = list(identities(facts))
    shape = None
    findings: list[str] = []
    if model is not None:
        try:
            shape = shape_of(model, facts)
        except InputError as error:
            findings.append(f"the model's cache cannot be computed: {error}")
    if shape is not None:
        checks = [check for check in checks if not (check.name == "estimated_max_len" and shape.hybrid)]
        checks += against_model(facts, shape)
    impossible = _impossible(facts, shape, gpu)
    if impossible:
        findings.append(impossible)
    for check in checks:
        if not check.agrees:
            findings.append(_explain(check, facts, shape))
    findings += _definition(facts, checks, shape)
    findings += _stages(checks)
    findings += _per_token(facts, shape)
    plan = _plan(facts, model, gpu)
    broken = impossible is not None or any(check.identity and not check.agrees for check in checks)
    verdict: Verdict = "agrees" if checks else "nothing to check"
    if broken:
        verdict = "cannot balance"
    elif any(not check.agrees for check in checks):
        verdict = "differs"
    lines = _lines(facts, plan)
    return Reconciliation(facts, model, plan, tuple(checks), lines, (*findings, *_largest(lines)), verdict)


def _impossible(facts: ServerFacts, shape: Shape | None, gpu: Gpu | None) -> str | None:
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
    rounded = round(exact * 100) / 100
    near = abs(exact - rounded) * total <= 0.03 and 0 < rounded <= 1
    return rounded if near and rounded != facts.gpu_memory_utilization else None


def _definition(facts: ServerFacts, checks: list[Check], shape: Shape | None) -> list[str]:
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


def _stages(checks: list[Check]) -> list[str]:
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
    if f.needed_kv_gib and f.estimated_max_len and f.available_kv_gib and f.max_model_len and single_slope(f) is None:
        slope = (f.needed_kv_gib - f.available_kv_gib) / (f.max_model_len - f.estimated_max_len)
        fixed = f.needed_kv_gib - slope * f.max_model_len
        found.append(f"a request costs {fixed:.2f} GiB whatever its length, and {slope * GIB:,.0f} bytes a token")
    return found


def _plan(facts: ServerFacts, model: ModelConfig | None, gpu: Gpu | None) -> MemoryPlan | None:
    """kvplan's own prediction for the flags the log shows."""
    if model is None or gpu is None or not model.layers:
        return None
    try:
        return plan_memory(
            model,
            gpu,
            tensor_parallel_size=facts.tensor_parallel_size or 1,
            pipeline_parallel_size=facts.pipeline_parallel_size or 1,
            block_size=facts.block_size if facts.block_size and facts.block_size <= 256 else None,
            kv_cache_dtype=facts.kv_cache_dtype or "auto",
            gpu_memory_utilization=facts.gpu_memory_utilization,
            max_model_len=facts.max_model_len,
            max_num_seqs=facts.max_num_seqs,
            max_num_batched_tokens=facts.max_num_batched_tokens,
            num_gpu_blocks_override=facts.num_gpu_blocks_override,
            engine=facts.engine or "vllm",
            version=facts.version or "0.33",
            overrides=MemoryOverrides.from_gib(total=facts.total_gib),
            async_scheduling=bool(facts.async_scheduling),
            enforce_eager=bool(facts.enforce_eager),
            pp_layer_partition=facts.pp_layer_partition,
        )
    except InputError:
        return None


def _lines(facts: ServerFacts, plan: MemoryPlan | None) -> tuple[Line, ...]:
    activation = facts.activation_gib
    if activation is None and facts.peak_torch_gib is not None and facts.weights_gib is not None:
        activation = facts.peak_torch_gib - facts.weights_gib
    logged = {
        "total": facts.total_gib,
        "requested": facts.requested_gib,
        "weights": facts.weights_gib,
        "non_torch": facts.non_torch_gib,
        "activation": activation,
        "cuda_graphs": facts.cuda_graphs_estimated_gib if graphs_charged(facts) else facts.cuda_graphs_gib,
        "kv_cache": facts.pool_gib,
    }
    predicted = (
        {}
        if plan is None
        else {
            "total": plan.total_bytes / GIB,
            "requested": plan.requested_bytes / GIB,
            "weights": plan.weights_bytes / GIB,
            "non_torch": plan.non_torch_bytes / GIB,
            "activation": plan.activation_bytes / GIB,
            "cuda_graphs": plan.cuda_graphs_bytes / GIB,
            "kv_cache": plan.available_bytes / GIB,
        }
    )
    return tuple(
        Line(name, value, predicted.get(name))
        for name, value in logged.items()
        if value is not None or name in predicted
    )


def _largest(lines: tuple[Line, ...]) -> list[str]:
    """Which term explains most of a wrong prediction of the pool."""
    pool = next((line for line in lines if line.name == "kv_cache"), None)
    if pool is None or pool.logged_gib is None or pool.predicted_gib is None:
        return []
    gap = pool.predicted_gib - pool.logged_gib
    if abs(gap) <= 0.01 * abs(pool.logged_gib):
        return []
    apart = [
        (abs(line.predicted_gib - line.logged_gib), line)
        for line in lines
        if line.name in ("weights", "non_torch", "activation")
        and line.logged_gib is not None
        and line.predicted_gib is not None
    ]
    if not apart:
        return [f"the predicted pool is {gap:+.2f} GiB off and the log does not show the terms that would explain it"]
    size, line = max(apart, key=lambda item: item[0])
    return [f"the predicted pool is {gap:+.2f} GiB off; {line.name} explains {size:.2f} GiB of it"]


def _figure(value: float, unit: str) -> str:
    if unit == "GiB" or unit == "x":
        return f"{value:.2f} {unit}" if unit == "GiB" else f"{value:.2f}x"
    return f"{value:,.0f} {unit}"
