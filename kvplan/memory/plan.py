"""The whole sum: what a server of this model, on this GPU, with these flags, will print when it starts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import ceil
from typing import Literal

from kvplan.catalog import Gpu, ModelConfig
from kvplan.errors import InfeasibleError, InputError
from kvplan.memory.activation import activation_peak, cuda_graphs, non_torch
from kvplan.memory.defaults import EngineDefaults, engine_defaults, parse_version
from kvplan.memory.groups import CacheGroup, blocks_per_request, bytes_per_block, cache_groups
from kvplan.memory.kv_dtype import kv_format
from kvplan.memory.overrides import GIB, MemoryOverrides
from kvplan.memory.parallel import stage_layers, tensor_parallel_problem
from kvplan.memory.weights import weights_bytes

Origin = Literal["formula", "measured", "given", "catalogue", "default"]


@dataclass(frozen=True)
class Term:
    """One line of the sum: its bytes on one rank, and where the figure comes from."""

    name: str
    value: int
    origin: str


@dataclass(frozen=True)
class RankMemory:
    """The sum on one pipeline stage (its tensor-parallel ranks are alike).

    ``available_bytes`` is what is left for the cache, negative where the rest does not fit; ``num_gpu_blocks`` is what
    this stage alone could hold, the null block counted.
    """

    stage: int
    layers: int
    weights_bytes: int
    non_torch_bytes: int
    activation_bytes: int
    cuda_graphs_bytes: int
    available_bytes: int
    bytes_per_block: int
    kv_bytes_per_token: int
    num_gpu_blocks: int
    terms: tuple[Term, ...]


@dataclass(frozen=True)
class Problem:
    """Why the engine would not start."""

    kind: Literal["no_cache", "max_model_len", "override", "tensor_parallel"]
    message: str
    needed_bytes: int = 0
    available_bytes: int = 0
    estimated_max_len: int = 0


@dataclass(frozen=True)
class MemoryPlan:
    """The memory of one GPU of the tightest rank, and what the engine prints from it.

    Sizes in bytes. ``num_gpu_blocks`` counts the null block, as vLLM prints it; ``usable_blocks`` does not.
    ``kv_cache_bytes`` is the pool as allocated from (`num_gpu_blocks_override` decides it where given), and
    ``available_bytes`` what profiling left for it. ``kv_cache_size_tokens`` is the figure this engine version logs;
    ``tokens_by_blocks`` and ``tokens_by_concurrency`` are the two definitions it may be.
    """

    model: ModelConfig
    gpu: Gpu
    engine: str
    version: str
    tensor_parallel_size: int
    pipeline_parallel_size: int
    block_size: int
    kv_cache_dtype: str
    gpu_memory_utilization: float
    max_model_len: int
    max_num_seqs: int
    max_num_batched_tokens: int
    in_flight_tokens: int
    total_bytes: int
    requested_bytes: int
    weights_bytes: int
    non_torch_bytes: int
    activation_bytes: int
    cuda_graphs_bytes: int
    available_bytes: int
    kv_cache_bytes: int
    kv_bytes_per_token: int
    bytes_per_block: int
    num_gpu_blocks: int
    kv_cache_size_tokens: int
    tokens_by_blocks: int
    tokens_by_concurrency: int
    max_concurrency: float
    blocks_per_request: int
    cache_groups: tuple[CacheGroup, ...]
    ranks: tuple[RankMemory, ...]
    """Tightest first."""
    terms: tuple[Term, ...]
    problems: tuple[Problem, ...]
    notes: tuple[str, ...]

    @property
    def usable_blocks(self) -> int:
        """Blocks a request can get: one is the null block (vLLM V1)."""
        return max(0, self.num_gpu_blocks - 1) if self.has_null_block else self.num_gpu_blocks

    @property
    def has_null_block(self) -> bool:
        return self.engine == "vllm" and parse_version(self.version) >= (0, 8)

    @property
    def feasible(self) -> bool:
        return not self.problems

    def require(self) -> MemoryPlan:
        """This plan, if the engine would start.

        Raises:
            InfeasibleError: it would not; the message says why, and what the nearest workable settings are.
        """
        if self.feasible:
            return self
        from kvplan.memory.advice import advise  # advice plans again with other settings

        raise InfeasibleError(self.problems[0].message, hint=advise(self).sentence())


@dataclass(frozen=True)
class _Settings:
    """The flags with every default resolved."""

    tp: int
    pp: int
    partition: tuple[int, ...] | None
    utilization: float
    max_model_len: int
    max_num_seqs: int
    max_num_batched_tokens: int
    in_flight: int
    blocks_override: int | None
    cache_bytes: int | None
    enforce_eager: bool


def plan_memory(
    model: ModelConfig,
    gpu: Gpu,
    *,
    tensor_parallel_size: int = 1,
    pipeline_parallel_size: int = 1,
    block_size: int | None = None,
    kv_cache_dtype: str = "auto",
    gpu_memory_utilization: float | None = None,
    max_model_len: int | None = None,
    max_num_seqs: int | None = None,
    max_num_batched_tokens: int | None = None,
    num_gpu_blocks_override: int | None = None,
    kv_cache_memory_bytes: int | None = None,
    engine: str = "vllm",
    version: str = "0.33",
    overrides: MemoryOverrides = MemoryOverrides(),
    async_scheduling: bool = False,
    enable_chunked_prefill: bool | None = None,
    enable_prefix_caching: bool | None = None,
    num_speculative_tokens: int = 0,
    enforce_eager: bool = False,
    disable_hybrid_kv_cache_manager: bool = False,
    pp_layer_partition: Sequence[int] | None = None,
) -> MemoryPlan:
    """What an engine of this version would allocate and print for one GPU.

    Flags bear vLLM's names; None is the engine's default for this version and GPU. A configuration that cannot
    start still gives a plan, with `MemoryPlan.problems`; `MemoryPlan.require` raises.

    Args:
        overrides: terms that are known (measured, or given by a person), in bytes of one rank.
        async_scheduling: two batches are in flight, so window layers keep twice the token budget.
        pp_layer_partition: layers a stage, where they are not cut evenly.

    Raises:
        InputError: a flag outside its range, or values that contradict one another.
    """
    defaults = engine_defaults(
        engine,
        version,
        gpu,
        model,
        max_model_len=max_model_len,
        enable_chunked_prefill=enable_chunked_prefill,
    )
    settings = _resolve(
        model,
        defaults,
        tp=tensor_parallel_size,
        pp=pipeline_parallel_size,
        partition=None if pp_layer_partition is None else tuple(pp_layer_partition),
        utilization=gpu_memory_utilization,
        max_model_len=max_model_len,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_batched_tokens,
        async_scheduling=async_scheduling,
        blocks_override=num_gpu_blocks_override,
        cache_bytes=kv_cache_memory_bytes,
        enforce_eager=enforce_eager,
    )
    size = defaults.block_size if block_size is None else _positive(block_size, "block_size")
    caching = defaults.enable_prefix_caching if enable_prefix_caching is None else enable_prefix_caching
    form = kv_format(kv_cache_dtype, model.dtype, defaults.engine)
    groups = cache_groups(
        model,
        form,
        tensor_parallel_size=settings.tp,
        block_size=size,
        num_speculative_tokens=num_speculative_tokens,
        prefix_caching_of_states=caching and enable_prefix_caching is not None,
        hybrid=defaults.engine == "vllm"
        and parse_version(version) >= (0, 8)
        and not disable_hybrid_kv_cache_manager,
    )
    total = overrides.total_bytes or gpu.memory_bytes
    requested = ceil(total * settings.utilization)
    ranks = _ranks(model, gpu, defaults, settings, groups, overrides, total, requested)
    return _assemble(
        model, gpu, defaults, settings, kv_cache_dtype, size, groups, ranks, total, requested, overrides
    )


def _positive(value: int, field: str) -> int:
    if isinstance(value, bool) or int(value) != value or value < 1:
        raise InputError("must be a positive whole number", field=field, value=value)
    return int(value)


def _resolve(
    model: ModelConfig,
    defaults: EngineDefaults,
    *,
    tp: int,
    pp: int,
    partition: tuple[int, ...] | None,
    utilization: float | None,
    max_model_len: int | None,
    max_num_seqs: int | None,
    max_num_batched_tokens: int | None,
    async_scheduling: bool,
    blocks_override: int | None,
    cache_bytes: int | None,
    enforce_eager: bool,
) -> _Settings:
    fraction = defaults.gpu_memory_utilization if utilization is None else utilization
    if not 0 < fraction <= 1:
        raise InputError("must be above 0 and at most 1", field="gpu_memory_utilization", value=fraction)
    length = max_model_len if max_model_len is not None else model.max_position_embeddings
    if not length:
        raise InputError(
            "the model does not say how long it can go", field="max_model_len", hint="give max_model_len"
        )
    tokens = max_num_batched_tokens or defaults.max_num_batched_tokens
    seqs = max_num_seqs or min(defaults.max_num_seqs, tokens)
    if cache_bytes is not None and cache_bytes <= 0:
        raise InputError("must be positive", field="kv_cache_memory_bytes", value=cache_bytes)
    batches = _positive(pp, "pipeline_parallel_size") + (1 if async_scheduling else 0)
    return _Settings(
        _positive(tp, "tensor_parallel_size"),
        pp,
        partition,
        fraction,
        _positive(length, "max_model_len"),
        _positive(seqs, "max_num_seqs"),
        _positive(tokens, "max_num_batched_tokens"),
        batches * tokens,
        None if blocks_override is None else _positive(blocks_override, "num_gpu_blocks_override"),
        cache_bytes,
        enforce_eager,
    )


def _ranks(
    model: ModelConfig,
    gpu: Gpu,
    defaults: EngineDefaults,
    settings: _Settings,
    groups: tuple[CacheGroup, ...],
    overrides: MemoryOverrides,
    total: int,
    requested: int,
) -> list[RankMemory]:
    stages = stage_layers(model.num_hidden_layers, settings.pp, settings.partition)
    return [
        _rank(model, defaults, settings, groups, overrides, requested, stage, layers)
        for stage, layers in enumerate(stages)
    ]


def _rank(
    model: ModelConfig,
    defaults: EngineDefaults,
    settings: _Settings,
    groups: tuple[CacheGroup, ...],
    overrides: MemoryOverrides,
    requested: int,
    stage: int,
    layers: range,
) -> RankMemory:
    numbers = parse_version(defaults.version) if defaults.engine == "vllm" else (0, 33)
    tp, pp = settings.tp, settings.pp
    weights = weights_bytes(model, tp, pp, stage, partition=settings.partition)
    peak = activation_peak(
        model,
        numbers,
        tensor_parallel_size=tp,
        pipeline_parallel_size=pp,
        stage=stage,
        max_num_batched_tokens=settings.max_num_batched_tokens,
        max_num_seqs=settings.max_num_seqs,
    )
    other = non_torch(numbers, tp, pp)
    graphs = cuda_graphs(
        model,
        layers=len(layers),
        tensor_parallel_size=tp,
        max_num_seqs=settings.max_num_seqs,
        max_num_batched_tokens=settings.max_num_batched_tokens,
        enforce_eager=settings.enforce_eager,
    )
    terms = (
        _term("weights", overrides.weights_bytes, overrides, weights, "formula: the config's shapes"),
        _term("non_torch", overrides.non_torch_bytes, overrides, other.value, other.origin),
        _term("activation", overrides.activation_bytes, overrides, peak.value, peak.origin),
        _term("cuda_graphs", overrides.cuda_graphs_bytes, overrides, graphs.value, graphs.origin),
    )
    values = {term.name: term.value for term in terms}
    charged = values["cuda_graphs"] if defaults.graphs_charged else 0
    available = requested - values["weights"] - values["non_torch"] - values["activation"] - charged
    held = [group.on_stage(layers) for group in groups] if pp > 1 else list(groups)
    block = bytes_per_block(held)
    pool = settings.cache_bytes if settings.cache_bytes is not None else available
    return RankMemory(
        stage,
        len(layers),
        values["weights"],
        values["non_torch"],
        values["activation"],
        values["cuda_graphs"],
        available,
        block,
        sum(group.token_bytes for group in held),
        max(0, pool // block) if block else 0,
        terms,
    )


def _term(name: str, given: int | None, overrides: MemoryOverrides, computed: int, origin: str) -> Term:
    if given is not None:
        return Term(name, given, overrides.origin)
    return Term(name, computed, origin)


def _assemble(
    model: ModelConfig,
    gpu: Gpu,
    defaults: EngineDefaults,
    settings: _Settings,
    kv_cache_dtype: str,
    block_size: int,
    groups: tuple[CacheGroup, ...],
    ranks: list[RankMemory],
    total: int,
    requested: int,
    overrides: MemoryOverrides,
) -> MemoryPlan:
    order = sorted(ranks, key=lambda rank: (rank.num_gpu_blocks, rank.available_bytes))
    tight = order[0]
    blocks = settings.blocks_override if settings.blocks_override is not None else tight.num_gpu_blocks
    per_request = blocks_per_request(groups, settings.max_model_len, settings.in_flight)
    concurrency = blocks / per_request if per_request else 0.0
    by_blocks = blocks // max(1, len(groups)) * min(group.block_size for group in groups) if groups else 0
    by_concurrency = int(concurrency * settings.max_model_len)
    pool = tight.bytes_per_block * blocks if settings.blocks_override is not None else None
    kv_cache = pool if pool is not None else settings.cache_bytes
    total_term = Term("total", total, overrides.origin if overrides.total_bytes else f"driver: {gpu.source}")
    requested_term = Term(
        "requested", requested, f"total x gpu_memory_utilization {settings.utilization:g}, rounded up"
    )
    plan = MemoryPlan(
        model=model,
        gpu=gpu,
        engine=defaults.engine,
        version=defaults.version,
        tensor_parallel_size=settings.tp,
        pipeline_parallel_size=settings.pp,
        block_size=max(block_size, min((group.block_size for group in groups), default=block_size)),
        kv_cache_dtype=kv_cache_dtype,
        gpu_memory_utilization=settings.utilization,
        max_model_len=settings.max_model_len,
        max_num_seqs=settings.max_num_seqs,
        max_num_batched_tokens=settings.max_num_batched_tokens,
        in_flight_tokens=settings.in_flight,
        total_bytes=total,
        requested_bytes=requested,
        weights_bytes=tight.weights_bytes,
        non_torch_bytes=tight.non_torch_bytes,
        activation_bytes=tight.activation_bytes,
        cuda_graphs_bytes=tight.cuda_graphs_bytes,
        available_bytes=tight.available_bytes,
        kv_cache_bytes=max(0, tight.available_bytes) if kv_cache is None else kv_cache,
        kv_bytes_per_token=tight.kv_bytes_per_token,
        bytes_per_block=tight.bytes_per_block,
        num_gpu_blocks=blocks,
        kv_cache_size_tokens=by_concurrency if defaults.tokens_by_concurrency else by_blocks,
        tokens_by_blocks=by_blocks,
        tokens_by_concurrency=by_concurrency,
        max_concurrency=concurrency,
        blocks_per_request=per_request,
        cache_groups=groups,
        ranks=tuple(order),
        terms=(total_term, requested_term, *tight.terms),
        problems=(),
        notes=model.notes,
    )
    return replace(plan, problems=_problems(plan, settings))


def _problems(plan: MemoryPlan, settings: _Settings) -> tuple[Problem, ...]:
    found: list[Problem] = []
    if split := tensor_parallel_problem(plan.model, plan.tensor_parallel_size):
        found.append(
            Problem(
                "tensor_parallel", f"tensor_parallel_size {plan.tensor_parallel_size} is impossible: {split}"
            )
        )
    given = settings.blocks_override is not None or settings.cache_bytes is not None
    tight = plan.ranks[0]
    if not given and tight.available_bytes <= 0:
        found.append(
            Problem(
                "no_cache",
                f"no memory is left for the KV cache: {-tight.available_bytes / GIB:.2f} GiB short on stage {tight.stage}",
                available_bytes=tight.available_bytes,
            )
        )
        return tuple(found)
    if given and plan.weights_bytes + plan.kv_cache_bytes > plan.total_bytes:
        found.append(
            Problem(
                "override",
                f"weights and the pool asked for ({(plan.weights_bytes + plan.kv_cache_bytes) / GIB:.2f} GiB) exceed the "
                f"GPU's {plan.total_bytes / GIB:.2f} GiB",
                needed_bytes=plan.weights_bytes + plan.kv_cache_bytes,
                available_bytes=plan.total_bytes,
            )
        )
    if plan.blocks_per_request > plan.usable_blocks:
        longest = longest_length(plan)
        needed, pool = (
            plan.blocks_per_request * plan.bytes_per_block,
            plan.usable_blocks * plan.bytes_per_block,
        )
        found.append(
            Problem(
                "max_model_len",
                f"one request of max_model_len {plan.max_model_len} needs {plan.blocks_per_request} blocks "
                f"({needed / GIB:.2f} GiB), and {plan.usable_blocks} are usable ({pool / GIB:.2f} GiB)",
                needed,
                pool,
                longest,
            )
        )
    return tuple(found)


def longest_length(plan: MemoryPlan, usable_blocks: int | None = None) -> int:
    """The largest max_model_len one request of which fits the pool; 0 if not even one token does."""
    usable = plan.usable_blocks if usable_blocks is None else usable_blocks
    low, high = 0, max(plan.max_model_len, plan.model.max_position_embeddings)
    while low < high:
        middle = (low + high + 1) // 2
        if blocks_per_request(plan.cache_groups, middle, plan.in_flight_tokens) <= usable:
            low = middle
        else:
            high = middle - 1
    return low


def kv_bytes_per_token(
    model: ModelConfig,
    kv_cache_dtype: str = "auto",
    tensor_parallel_size: int = 1,
    pipeline_parallel_size: int = 1,
) -> int:
    """Cache bytes of one token on one GPU, all its layers at full length; the fullest pipeline stage's."""
    form = kv_format(kv_cache_dtype, model.dtype)
    groups = cache_groups(model, form, tensor_parallel_size=tensor_parallel_size)
    stages = stage_layers(model.num_hidden_layers, pipeline_parallel_size)
    return max(sum(group.on_stage(stage).token_bytes for group in groups) for stage in stages)
