"""The whole sum: what a server of this model, on this GPU, with these flags, will print when it starts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import ceil
from typing import Any

from kvplan.catalog import Gpu, ModelConfig
from kvplan.memory.defaults import EngineDefaults, engine_defaults, parse_version
from kvplan.memory.flags import MemoryFlags, Settings, resolve
from kvplan.memory.groups import CacheGroup, blocks_per_request, cache_groups
from kvplan.memory.kv_dtype import model_kv_format
from kvplan.memory.overrides import NO_OVERRIDES, MemoryOverrides
from kvplan.memory.parallel import stage_layers, tensor_parallel_problem
from kvplan.memory.problems import Problem, length_does_not_fit, longest_length, no_cache, too_large
from kvplan.memory.ranks import RankMemory, Term, rank_memories


@dataclass(frozen=True)
class MemoryPlan:
    """The memory of one GPU of the tightest rank, and what the engine prints from it.

    Sizes in bytes of one GPU. ``num_gpu_blocks`` counts the null block, as vLLM prints it; `usable_blocks`
    does not. ``available_bytes`` is what the engine has left for the cache (negative where the rest does not
    fit); ``kv_cache_bytes`` the pool it takes its blocks from, which ``num_gpu_blocks_override`` or
    ``kv_cache_memory_bytes`` may set. ``kv_bytes_per_token`` counts all layers of the rank at full length.
    ``kv_cache_size_tokens`` is the figure this engine version logs; it is one of ``tokens_by_blocks`` (blocks
    x block_size) and ``tokens_by_concurrency`` (max_concurrency x max_model_len).
    """

    model: ModelConfig
    gpu: Gpu
    flags: MemoryFlags
    defaults: EngineDefaults
    engine: str
    version: str
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
    tokens_by_blocks: int
    tokens_by_concurrency: int
    max_concurrency: float
    blocks_per_request: int
    cache_groups: tuple[CacheGroup, ...]
    ranks: tuple[RankMemory, ...]
    """One a pipeline stage, the tightest first."""
    terms: tuple[Term, ...]
    problems: tuple[Problem, ...]
    notes: tuple[str, ...]

    @property
    def kv_cache_size_tokens(self) -> int:
        return self.tokens_by_concurrency if self.defaults.tokens_by_concurrency else self.tokens_by_blocks

    @property
    def usable_blocks(self) -> int:
        """Blocks that requests can get: vLLM V1 keeps one back as the null block."""
        return max(0, self.num_gpu_blocks - 1) if self.has_null_block else self.num_gpu_blocks

    @property
    def has_null_block(self) -> bool:
        return self.engine == "vllm" and parse_version(self.version) >= (0, 8)

    @property
    def tensor_parallel_size(self) -> int:
        return self.flags.tensor_parallel_size

    @property
    def pipeline_parallel_size(self) -> int:
        return self.flags.pipeline_parallel_size

    @property
    def feasible(self) -> bool:
        """Whether the engine would start."""
        return not self.problems

    @property
    def longest_max_model_len(self) -> int:
        """The longest max_model_len one request of which fits this pool, as far as the model goes; 0 for
        none."""
        at_most = max(self.max_model_len, self.model.max_position_embeddings)
        return longest_length(self.cache_groups, self.usable_blocks, self.in_flight_tokens, at_most)


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
    overrides: MemoryOverrides = NO_OVERRIDES,
    async_scheduling: bool = False,
    enable_chunked_prefill: bool | None = None,
    enable_prefix_caching: bool | None = None,
    num_speculative_tokens: int = 0,
    enforce_eager: bool = False,
    disable_hybrid_kv_cache_manager: bool = False,
    pp_layer_partition: Sequence[int] | None = None,
) -> MemoryPlan:
    """What an engine of this version would allocate and print for one GPU.

    Flags bear vLLM's names; None is the engine's default for this version and GPU. A configuration that
    cannot start still gives a plan, with `MemoryPlan.problems`; `kvplan.memory.require_feasible` raises for
    it.

    Args:
        overrides: terms that are known (measured, or given by a person), in bytes of one rank.
        async_scheduling: two batches are in flight, so window layers keep twice the token budget.
        enable_prefix_caching: state-space layers keep a second page where it is asked for.
        pp_layer_partition: layers a stage, where they are not cut evenly.

    Raises:
        InputError: a flag outside its range, or values that contradict one another.
    """
    flags = MemoryFlags(
        tensor_parallel_size=tensor_parallel_size,
        pipeline_parallel_size=pipeline_parallel_size,
        block_size=block_size,
        kv_cache_dtype=kv_cache_dtype,
        gpu_memory_utilization=gpu_memory_utilization,
        max_model_len=max_model_len,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_batched_tokens,
        num_gpu_blocks_override=num_gpu_blocks_override,
        kv_cache_memory_bytes=kv_cache_memory_bytes,
        engine=engine,
        version=version,
        overrides=overrides,
        async_scheduling=async_scheduling,
        enable_chunked_prefill=enable_chunked_prefill,
        enable_prefix_caching=enable_prefix_caching,
        num_speculative_tokens=num_speculative_tokens,
        enforce_eager=enforce_eager,
        disable_hybrid_kv_cache_manager=disable_hybrid_kv_cache_manager,
        pp_layer_partition=None if pp_layer_partition is None else tuple(pp_layer_partition),
    )
    return plan_flags(model, gpu, flags)


def replan(plan: MemoryPlan, **changes: Any) -> MemoryPlan:
    """The same server with some flags changed; stated weights are dropped where the split changes."""
    flags = replace(plan.flags, **changes)
    if {"tensor_parallel_size", "pipeline_parallel_size"} & set(changes):
        flags = replace(flags, overrides=replace(flags.overrides, weights_bytes=None), pp_layer_partition=None)
    return plan_flags(plan.model, plan.gpu, flags)


def plan_flags(model: ModelConfig, gpu: Gpu, flags: MemoryFlags) -> MemoryPlan:
    """`plan_memory` for flags that are already gathered."""
    defaults = engine_defaults(
        flags.engine,
        flags.version,
        gpu,
        model,
        max_model_len=flags.max_model_len,
        enable_chunked_prefill=flags.enable_chunked_prefill,
    )
    settings = resolve(flags, defaults, model)
    groups = _groups(model, flags, settings, defaults)
    total = flags.overrides.total_bytes or gpu.memory_bytes
    requested = ceil(total * settings.gpu_memory_utilization)
    ranks = rank_memories(model, flags, settings, defaults, groups, total, requested)
    tight = ranks[0]
    override = flags.num_gpu_blocks_override
    blocks = tight.num_gpu_blocks if override is None else override
    pool = flags.kv_cache_memory_bytes if override is None else override * tight.bytes_per_block
    per_request = blocks_per_request(groups, settings.max_model_len, settings.in_flight_tokens)
    concurrency = blocks / per_request if per_request else 0.0
    smallest = min((group.block_size for group in groups), default=settings.block_size)
    plan = MemoryPlan(
        model=model,
        gpu=gpu,
        flags=flags,
        defaults=defaults,
        engine=defaults.engine,
        version=defaults.version,
        block_size=smallest,
        kv_cache_dtype=model.kv_cache_dtype if flags.kv_cache_dtype == "auto" else flags.kv_cache_dtype,
        gpu_memory_utilization=settings.gpu_memory_utilization,
        max_model_len=settings.max_model_len,
        max_num_seqs=settings.max_num_seqs,
        max_num_batched_tokens=settings.max_num_batched_tokens,
        in_flight_tokens=settings.in_flight_tokens,
        total_bytes=total,
        requested_bytes=requested,
        weights_bytes=tight.weights_bytes,
        non_torch_bytes=tight.non_torch_bytes,
        activation_bytes=tight.activation_bytes,
        cuda_graphs_bytes=tight.cuda_graphs_bytes,
        available_bytes=tight.available_bytes,
        kv_cache_bytes=max(0, tight.available_bytes) if pool is None else pool,
        kv_bytes_per_token=tight.kv_bytes_per_token,
        bytes_per_block=tight.bytes_per_block,
        num_gpu_blocks=blocks,
        tokens_by_blocks=blocks // max(1, len(groups)) * smallest,
        tokens_by_concurrency=int(concurrency * settings.max_model_len),
        max_concurrency=concurrency,
        blocks_per_request=per_request,
        cache_groups=groups,
        ranks=ranks,
        terms=(_total_term(gpu, flags, total), _requested_term(settings, requested), *tight.terms),
        problems=(),
        notes=(*model.notes, *_notes(groups, flags, defaults)),
    )
    return replace(plan, problems=_problems(plan))


def kv_bytes_per_token(
    model: ModelConfig,
    kv_cache_dtype: str = "auto",
    tensor_parallel_size: int = 1,
    pipeline_parallel_size: int = 1,
) -> int:
    """Cache bytes of one token on one GPU, all its layers at full length; the fullest pipeline stage's."""
    form = model_kv_format(model, kv_cache_dtype)
    groups = cache_groups(model, form, tensor_parallel_size=tensor_parallel_size)
    stages = stage_layers(model.num_hidden_layers, pipeline_parallel_size)
    return max(sum(group.on_stage(stage).token_bytes for group in groups) for stage in stages)


def _groups(
    model: ModelConfig, flags: MemoryFlags, settings: Settings, defaults: EngineDefaults
) -> tuple[CacheGroup, ...]:
    """vLLM has kept window layers apart since 0.10; the others are counted as if every layer were full."""
    hybrid = defaults.engine == "vllm" and parse_version(defaults.version) >= (0, 10)
    return cache_groups(
        model,
        model_kv_format(model, flags.kv_cache_dtype, defaults.engine),
        tensor_parallel_size=flags.tensor_parallel_size,
        block_size=settings.block_size,
        num_speculative_tokens=flags.num_speculative_tokens,
        prefix_caching_of_states=bool(flags.enable_prefix_caching),
        hybrid=hybrid and not flags.disable_hybrid_kv_cache_manager,
    )


def _total_term(gpu: Gpu, flags: MemoryFlags, total: int) -> Term:
    given = flags.overrides.total_bytes is not None
    return Term("total", total, flags.overrides.origin if given else f"catalogue: {gpu.source}")


def _requested_term(settings: Settings, requested: int) -> Term:
    return Term("requested", requested, f"total x {settings.gpu_memory_utilization:g}, rounded up")


def _notes(groups: tuple[CacheGroup, ...], flags: MemoryFlags, defaults: EngineDefaults) -> tuple[str, ...]:
    windowed = any(group.attention in ("sliding_window", "chunked_local") for group in groups)
    if windowed and defaults.async_scheduling and not flags.async_scheduling and defaults.engine == "vllm":
        return (
            "window layers keep one batch in flight here; with async scheduling, which this version turns on where it "
            "can, they keep two (--async-scheduling)",
        )
    return ()


def _problems(plan: MemoryPlan) -> tuple[Problem, ...]:
    found: list[Problem] = []
    size = plan.tensor_parallel_size
    if why := tensor_parallel_problem(plan.model, size):
        found.append(Problem("tensor_parallel", f"tensor_parallel_size {size} is impossible: {why}"))
    asked = plan.flags.num_gpu_blocks_override is not None or plan.flags.kv_cache_memory_bytes is not None
    tight = plan.ranks[0]
    if not asked and tight.available_bytes <= 0:
        return (*found, no_cache(-tight.available_bytes, tight.stage))
    if asked and plan.weights_bytes + plan.kv_cache_bytes > plan.total_bytes:
        found.append(too_large(plan.weights_bytes, plan.kv_cache_bytes, plan.total_bytes))
    if plan.blocks_per_request > plan.usable_blocks:
        found.append(
            length_does_not_fit(
                plan.max_model_len,
                plan.blocks_per_request,
                plan.usable_blocks,
                plan.bytes_per_block,
                plan.longest_max_model_len,
            )
        )
    return tuple(found)
