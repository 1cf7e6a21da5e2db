"""The equations that a server's figures must satisfy: some among themselves, some against the model's shape."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from kvplan.catalog import ModelConfig
from kvplan.memory.defaults import parse_version
from kvplan.memory.groups import CacheGroup, blocks_per_request, bytes_per_block, cache_groups
from kvplan.memory.kv_dtype import model_kv_format
from kvplan.memory.parallel import stage_layers
from kvplan.memory.server_facts import ServerFacts
from kvplan.memory.weights import weights_bytes

GIB = 2**30
_TOLERANCE = 1e-3


@dataclass(frozen=True)
class Check:
    """One figure of a log beside the same figure computed.

    ``slack`` is what the rounding of printed figures alone can explain, in the same unit. ``identity``: both sides
    are the server's own figures, so that a difference means that they cannot all be true.
    """

    name: str
    logged: float
    computed: float
    unit: str
    slack: float
    words: str
    identity: bool = False

    @property
    def difference(self) -> float:
        return self.computed - self.logged

    @property
    def error(self) -> float:
        """Relative to what was logged."""
        return self.difference / self.logged if self.logged else float("inf") if self.difference else 0.0

    @property
    def agrees(self) -> bool:
        return abs(self.difference) <= max(self.slack, _TOLERANCE * abs(self.logged))


@dataclass(frozen=True)
class Shape:
    """The cache of a model under the flags a log shows: what its block and token figures are computed from."""

    model: ModelConfig
    groups: tuple[CacheGroup, ...]
    block_bytes: int
    block_size: int
    token_bytes: int
    in_flight_tokens: int

    @property
    def hybrid(self) -> bool:
        return len(self.groups) > 1

    def tokens_by_blocks(self, blocks: int) -> int:
        return blocks // len(self.groups) * self.block_size

    def blocks_per_request(self, length: int) -> int:
        return blocks_per_request(self.groups, length, self.in_flight_tokens)


def shape_of(model: ModelConfig, facts: ServerFacts) -> Shape:
    """The model's cache on the tightest rank, under the flags in ``facts`` (vLLM's defaults where they are silent)."""
    tp, pp = facts.tensor_parallel_size or 1, facts.pipeline_parallel_size or 1
    engine = facts.engine or "vllm"
    numbers = parse_version(facts.version) if facts.version else (0, 33)
    size = facts.block_size or {"sglang": 1, "trtllm": 32, "lmdeploy": 64}.get(engine, 16)
    states = any(group.attention == "state_space" for group in model.kv_groups)
    groups = cache_groups(
        model,
        model_kv_format(model, facts.kv_cache_dtype or "auto", engine),
        tensor_parallel_size=tp,
        block_size=16 if states and size % 16 == 0 and engine == "vllm" else size,
        num_speculative_tokens=facts.num_speculative_tokens or 0,
        hybrid=engine == "vllm" and numbers >= (0, 10),
    )
    stages = stage_layers(model.num_hidden_layers, pp, facts.pp_layer_partition)
    held = [[group.on_stage(stage) for group in groups] for stage in stages] if pp > 1 else [list(groups)]
    fullest = max(held, key=bytes_per_block)
    batches = pp + (1 if facts.async_scheduling else 0)
    return Shape(
        model,
        groups,
        bytes_per_block(fullest),
        min(group.block_size for group in groups),
        sum(group.token_bytes for group in fullest),
        batches * (facts.max_num_batched_tokens or (8192 if numbers >= (0, 8, 5) else 2048)),
    )


def identities(facts: ServerFacts) -> Iterator[Check]:
    """Equations among the server's own figures: no model is needed, and none of them may fail."""
    f = facts
    if f.total_gib and f.gpu_memory_utilization and f.requested_gib is not None:
        computed = f.total_gib * f.gpu_memory_utilization
        yield Check("requested", f.requested_gib, computed, "GiB", 0.02, "total x gpu_memory_utilization", True)
    if balance := _balance(facts):
        yield balance
    if f.kv_tokens and f.max_concurrency and f.max_model_len and _by_concurrency(facts):
        computed = f.max_concurrency * f.max_model_len
        slack = 0.005 * f.max_model_len + 1
        yield Check("tokens", f.kv_tokens, computed, "tokens", slack, "max_concurrency x max_model_len", True)
    elif f.kv_tokens and f.block_size and f.block_size > 1 and f.pool_gib is None and not _by_concurrency(facts):
        computed = f.kv_tokens // f.block_size * f.block_size
        yield Check("tokens", f.kv_tokens, computed, "tokens", 0, f"whole blocks of {f.block_size}", True)
    if f.parameters and f.weights_gib is not None:
        computed = f.parameters * 2 / GIB / (f.tensor_parallel_size or 1)
        words = "parameters x 2 bytes"
        yield Check("weights", f.weights_gib, computed, "GiB", 0.02 * f.weights_gib, words)
    slope = single_slope(facts)
    if slope is not None and f.needed_kv_gib and f.estimated_max_len and f.available_kv_gib:
        computed = f.available_kv_gib / slope
        slack = computed * (0.005 / f.needed_kv_gib + 0.005 / f.available_kv_gib) + (f.block_size or 16)
        words = "available / (needed / max_model_len): one cost a token"
        yield Check("estimated_max_len", f.estimated_max_len, computed, "tokens", slack, words)


def single_slope(facts: ServerFacts) -> float | None:
    """GiB a token, where ``needed`` and ``estimated_max_len`` describe a cost without a fixed part; else None.

    A hybrid model's request costs a fixed part (states, window pages) and so much a token: then the two figures
    determine both, and check nothing.
    """
    f = facts
    if not (f.needed_kv_gib and f.estimated_max_len and f.available_kv_gib and f.max_model_len):
        return None
    slope = f.needed_kv_gib / f.max_model_len
    return slope if abs(f.available_kv_gib / slope / f.estimated_max_len - 1) < 0.05 else None


def _balance(facts: ServerFacts) -> Check | None:
    """requested - weights - activation - non-torch (- graphs since 0.21) = the pool."""
    f = facts
    requested = f.requested_gib
    if requested is None and f.total_gib and f.gpu_memory_utilization:
        requested = f.total_gib * f.gpu_memory_utilization
    if requested is None or f.available_kv_gib is None or f.engine in ("sglang", "trtllm", "lmdeploy"):
        return None
    taken: float
    if f.non_kv_gib is not None:
        taken = f.non_kv_gib
        words = "requested - total non-KV memory"
    elif f.peak_torch_gib is not None:
        taken = f.peak_torch_gib + (f.non_torch_gib or 0.0)
        words = "requested - peak torch memory - non-torch"
    elif f.weights_gib is not None and f.activation_gib is not None:
        taken = f.weights_gib + f.activation_gib + (f.non_torch_gib or 0.0) + (f.margin_gib or 0.0)
        words = "requested - weights - activation - non-torch"
    elif f.initial_usage_gib is not None and f.activation_gib is not None:
        taken = f.initial_usage_gib + f.activation_gib + (f.non_torch_gib or 0.0) + (f.margin_gib or 0.0)
        words = "requested - in use before - activation - margin"
    else:
        return None
    if graphs_charged(facts) and (graphs := f.cuda_graphs_estimated_gib or f.cuda_graphs_gib):
        taken += graphs
        words += " - CUDA graphs"
    return Check("kv_cache", f.available_kv_gib, requested - taken, "GiB", 0.03, words, True)


def graphs_charged(facts: ServerFacts) -> bool:
    """Whether this version subtracts the graphs before it sizes the pool."""
    return facts.version is not None and parse_version(facts.version) >= (0, 21)


def _by_concurrency(facts: ServerFacts) -> bool:
    """Whether the token line can be concurrency x max_model_len; otherwise it counts blocks."""
    f = facts
    if not (f.kv_tokens and f.max_concurrency and f.max_model_len):
        return False
    return abs(f.kv_tokens - f.max_concurrency * f.max_model_len) <= 0.006 * f.max_model_len + 1


def against_model(facts: ServerFacts, shape: Shape) -> Iterator[Check]:
    """The server's figures against the model's cache: pool to blocks to tokens to concurrency."""
    f = facts
    if f.weights_gib is not None and shape.model.layers and not f.parameters:
        tp, pp = f.tensor_parallel_size or 1, f.pipeline_parallel_size or 1
        logged = f.weights_gib
        held = min(
            (weights_bytes(shape.model, tp, pp, rank) / GIB for rank in range(pp)),
            key=lambda gib: abs(gib - logged),
        )
        slack = max(0.01 * logged, _printed(logged))
        yield Check("weights", logged, held, "GiB", slack, "the config's shapes")
    if f.num_cpu_blocks:
        computed = (f.swap_space_gib or 4.0) * GIB // shape.block_bytes
        yield Check("cpu_blocks", f.num_cpu_blocks, computed, "blocks", 1, "swap space (4 GiB) / bytes per block")
    pool = f.pool_gib
    blocks = f.blocks_before_override or f.num_gpu_blocks
    if pool is not None and blocks and pool > 0:
        computed = pool * GIB // shape.block_bytes
        slack = _printed(pool) * GIB / shape.block_bytes + 1
        yield Check("gpu_blocks", blocks, computed, "blocks", slack, "pool / bytes per block")
    if f.kv_tokens:
        yield from _tokens(facts, shape, pool)
    if f.max_concurrency and f.max_model_len:
        yield from _concurrency(facts, shape, pool, f.max_concurrency, f.max_model_len)
    if f.needed_kv_gib and f.max_model_len:
        yield _needed(facts, shape, f.needed_kv_gib, f.max_model_len)
    if f.estimated_max_len and f.available_kv_gib and not shape.hybrid:
        yield _longest(facts, shape, f.estimated_max_len, f.available_kv_gib)


def _printed(gib: float) -> float:
    """Half a unit of the last place a figure was printed with; a whole figure may be GB as well as GiB."""
    if isinstance(gib, int):
        return 1.0
    return 0.005 if abs(gib * 100 - round(gib * 100)) < 1e-4 else 0.00005


def _tokens(facts: ServerFacts, shape: Shape, pool: float | None) -> Iterator[Check]:
    """Tokens by whichever of the two definitions lies nearer; the words name it."""
    f, logged = facts, facts.kv_tokens
    assert logged is not None
    candidates = [count for count in (f.num_gpu_blocks, f.blocks_before_override) if count]
    slack = 0.0
    if not candidates and pool is not None and pool > 0:
        candidates = [int(pool * GIB // shape.block_bytes)]
        slack = (2 if f.k_gib is not None else 1) * _printed(pool) / pool
    elif not candidates and f.max_concurrency and f.max_model_len and not _by_concurrency(f):
        per_request = shape.blocks_per_request(f.max_model_len)
        candidates = [round(f.max_concurrency * per_request)]
        slack = 0.005 / f.max_concurrency
    options: list[tuple[str, int]] = []
    for blocks in candidates:
        by_blocks = f"blocks x {shape.block_size}" + (" / groups" if shape.hybrid else "")
        options.append((by_blocks, shape.tokens_by_blocks(blocks)))
        if f.max_model_len and (shape.hybrid or f.max_model_len % shape.block_size):
            per_request = shape.blocks_per_request(f.max_model_len)
            options.append(("max_concurrency x max_model_len", int(blocks / per_request * f.max_model_len)))
    if options:
        words, computed = min(options, key=lambda option: abs(option[1] - logged))
        yield Check("tokens", logged, computed, "tokens", slack * computed + shape.block_size, words)


def _concurrency(
    facts: ServerFacts, shape: Shape, pool: float | None, logged: float, max_model_len: int
) -> Iterator[Check]:
    f = facts
    per_request, slack = shape.blocks_per_request(max_model_len), 0.0051
    candidates = [float(count) for count in (f.num_gpu_blocks, f.blocks_before_override) if count]
    if not candidates and f.kv_tokens and not shape.hybrid:
        candidates = [f.kv_tokens / shape.block_size]
    elif not candidates and pool:
        candidates = [pool * GIB // shape.block_bytes]
        slack += _printed(pool) * GIB / shape.block_bytes / per_request
    if candidates:
        computed = min((blocks / per_request for blocks in candidates), key=lambda value: abs(value - logged))
        yield Check("max_concurrency", logged, computed, "x", slack, "blocks / blocks a request")


def _needed(facts: ServerFacts, shape: Shape, logged: float, max_model_len: int) -> Check:
    """One request of max_model_len; engines before the per-stage check charged every stage with the whole model."""
    blocks = shape.blocks_per_request(max_model_len)
    options = [("one request of max_model_len", blocks * shape.block_bytes / GIB)]
    if (facts.pipeline_parallel_size or 1) > 1:
        options.append(("one request in the layers of all stages", blocks * bytes_per_block(shape.groups) / GIB))
    words, computed = min(options, key=lambda option: abs(option[1] - logged))
    return Check("needed", logged, computed, "GiB", 0.006, words)


def _longest(facts: ServerFacts, shape: Shape, logged: int, available_gib: float) -> Check:
    options = [("pool, in whole blocks", shape.block_bytes)]
    if (facts.pipeline_parallel_size or 1) > 1:
        options.append(("pool over the layers of all stages, in whole blocks", bytes_per_block(shape.groups)))
    lengths = [(words, available_gib * GIB // block * shape.block_size) for words, block in options]
    words, computed = min(lengths, key=lambda option: abs(option[1] - logged))
    slack = _printed(available_gib) / available_gib * computed + shape.block_size
    return Check("estimated_max_len", logged, computed, "tokens", slack, words)
