"""From a scenario to one deployment: the model and the GPU it names, every default filled in, the pool sized."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kvplan.catalog import Gpu, ModelConfig, load_gpu, load_model
from kvplan.core.settings import CacheGroup, Settings
from kvplan.errors import InfeasibleError, KvplanError
from kvplan.memory import MemoryPlan, load_overrides, plan_memory, require_feasible
from kvplan.memory.kv_dtype import model_kv_format
from kvplan.timing import BlockForm, StepTimes, constant, roofline

if TYPE_CHECKING:
    from kvplan.scenario import Scenario

GIB = 1 << 30

_RULES = (
    "layout",
    "reservation",
    "placement",
    "scheduling_policy",
    "long_prefill_token_threshold",
    "batching",
    "preemption",
    "admission",
    "num_speculative_tokens",
    "acceptance_rate",
    "watermark",
    "scheduler_reserve_full_isl",
)

_TORCH_NAMES = {"fp8": "float8_e4m3fn", "fp8_e4m3": "float8_e4m3fn", "fp8_e5m2": "float8_e5m2"}
"""KV dtypes that vLLM and torch call by different names."""


@dataclass(frozen=True, eq=False)
class Deployment:
    """One replica of a scenario, ready to be simulated or run.

    ``notes`` are sentences for a person about what was assumed.
    """

    model: ModelConfig
    gpu: Gpu
    memory: MemoryPlan
    settings: Settings
    timing: StepTimes
    notes: tuple[str, ...] = ()

    @property
    def slot_bytes(self) -> float:
        """Pool bytes of one token slot on one GPU (a slot of a pool of several groups holds one group's layers)."""
        return self.memory.bytes_per_block / self.memory.block_size


def resolve(scenario: Scenario, *, longest_request: int | None = None) -> Deployment:
    """Sizes the pool and fills in the defaults of one run of a scenario.

    Args:
        longest_request: prompt + output of the trace's longest request. Where ``max_model_len`` is not given it is
            the model's own maximum, or, where not even one such request fits the pool, the longest that does.

    Raises:
        InputError: names that are unknown, settings that contradict one another.
        InfeasibleError: the deployment cannot start, with the reason and what would work.
    """
    notes: list[str] = []
    try:
        model = load_model(scenario.model_source)
        gpu = load_gpu(scenario.gpu)
        plan = _sized(scenario, model, gpu, notes)
        settings = _settings(scenario, plan, notes)
    except InfeasibleError:
        raise
    except KvplanError as error:
        raise scenario.located(error) from error
    return Deployment(model, gpu, plan, settings, _timing(scenario, model, gpu, settings), tuple(notes))


def _sized(scenario: Scenario, model: ModelConfig, gpu: Gpu, notes: list[str]) -> MemoryPlan:
    cache, scheduler, parallel = scenario.cache, scenario.scheduler, scenario.parallel
    flags: dict[str, Any] = {
        "tensor_parallel_size": parallel.tensor_parallel_size,
        "pipeline_parallel_size": parallel.pipeline_parallel_size,
        "block_size": cache.block_size,
        "kv_cache_dtype": cache.kv_cache_dtype,
        "gpu_memory_utilization": cache.gpu_memory_utilization,
        "max_num_seqs": scheduler.max_num_seqs,
        "max_num_batched_tokens": scheduler.max_num_batched_tokens,
        "num_gpu_blocks_override": cache.num_gpu_blocks_override,
        "kv_cache_memory_bytes": cache.kv_cache_memory_bytes,
        "engine": scenario.engine.name,
        "version": scenario.engine.version,
        "async_scheduling": bool(scheduler.async_scheduling),
        "enable_chunked_prefill": scheduler.enable_chunked_prefill,
        "num_speculative_tokens": scheduler.num_speculative_tokens,
    }
    if scenario.memory_overrides_path is not None:
        flags["overrides"] = load_overrides(scenario.memory_overrides_path)
    plan = plan_memory(model, gpu, max_model_len=scheduler.max_model_len, **flags)
    if scheduler.max_model_len is None and 0 < plan.longest_max_model_len < plan.max_model_len:
        longest = plan.longest_max_model_len
        notes.append(
            f"max_model_len is {longest:,}: a request of the model's {plan.max_model_len:,} tokens does not fit the "
            "pool, and the engine would ask for --max-model-len"
        )
        plan = plan_memory(model, gpu, max_model_len=longest, **flags)
    require_feasible(plan)
    return plan


def _settings(scenario: Scenario, plan: MemoryPlan, notes: list[str]) -> Settings:
    cache, scheduler, defaults = scenario.cache, scenario.scheduler, plan.defaults
    given = {**cache.model_dump(), **scheduler.model_dump()}
    paged = cache.layout == "paged"
    states = any(group.attention == "state_space" for group in plan.cache_groups)
    caching = defaults.enable_prefix_caching if cache.enable_prefix_caching is None else cache.enable_prefix_caching
    if cache.enable_prefix_caching is None and caching and (not paged or states or scheduler.batching == "static"):
        caching = False
        notes.append("prefix caching is off: this layout, model or batching has none")
    sizes = {group.block_size for group in plan.cache_groups if group.attention != "state_space"}
    if paged and len(sizes) > 1:
        raise scenario.error(
            "model",
            f"its cache groups hold {', '.join(map(str, sorted(sizes)))} tokens a block; groups of unequal blocks are "
            "not simulated",
            hint="`kvplan memory` sizes such a model",
        )
    groups = tuple(CacheGroup(group.attention, group.window) for group in plan.cache_groups)
    if not paged:
        if any(group.attention not in ("full", "mla") for group in groups):
            notes.append("a contiguous layout keeps every token of every layer, whatever its window")
        groups = (CacheGroup(),)
    chunked = scheduler.enable_chunked_prefill
    blocks = plan.num_gpu_blocks if plan.has_null_block else plan.num_gpu_blocks + 1
    return Settings(
        block_size=plan.block_size,
        num_gpu_blocks=blocks,
        pool_slots=_pool_slots(plan),
        enable_prefix_caching=caching,
        max_model_len=plan.max_model_len,
        max_num_seqs=plan.max_num_seqs,
        max_num_batched_tokens=plan.max_num_batched_tokens,
        enable_chunked_prefill=defaults.enable_chunked_prefill if chunked is None else chunked,
        async_scheduling=bool(scheduler.async_scheduling),
        host_blocks=int(cache.swap_space * GIB) // plan.bytes_per_block,
        draft_slots=scheduler.num_speculative_tokens > 0,
        seed=scenario.seed,
        block_bytes=float(plan.bytes_per_block),
        groups=groups,
        **{name: given[name] for name in _RULES},
    )


def _pool_slots(plan: MemoryPlan) -> int:
    """Token slots of a contiguous layout in the same bytes: no null block, no block at all."""
    if plan.flags.num_gpu_blocks_override is not None:
        return plan.usable_blocks * plan.block_size
    return plan.kv_cache_bytes // plan.kv_bytes_per_token


def _timing(scenario: Scenario, model: ModelConfig, gpu: Gpu, settings: Settings) -> StepTimes:
    timing = scenario.timing
    if timing.constant is not None:
        return constant(timing.constant)
    if scenario.profile_path is not None:
        from kvplan.timing import from_profile, read_profile

        return from_profile(
            read_profile(scenario.profile_path),
            model,
            tensor_parallel_size=scenario.parallel.tensor_parallel_size,
            gpu=gpu,
            async_scheduling=bool(scenario.scheduler.async_scheduling),
            layout=settings.layout,
            form=_block_form(scenario, model, settings),
            coefficients=timing.coefficients,
        )
    return roofline(
        model,
        gpu,
        tensor_parallel_size=scenario.parallel.tensor_parallel_size,
        pipeline_parallel_size=scenario.parallel.pipeline_parallel_size,
        kv_cache_dtype=scenario.cache.kv_cache_dtype,
        async_scheduling=bool(scenario.scheduler.async_scheduling),
        coefficients=timing.roofline,
    )


def _block_form(scenario: Scenario, model: ModelConfig, settings: Settings) -> BlockForm:
    """How the KV cache is kept, in the words of a profile."""
    name = model_kv_format(model, scenario.cache.kv_cache_dtype, scenario.engine.name).name
    stored = str(model.dtype) if name.startswith("auto") else name
    return BlockForm(settings.block_size if settings.paged else 1, _TORCH_NAMES.get(stored, stored))
