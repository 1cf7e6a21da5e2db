"""The flags of one plan: as a person gave them, and with the engine's defaults filled in."""

from __future__ import annotations

from dataclasses import dataclass

from kvplan.catalog import ModelConfig
from kvplan.errors import InputError
from kvplan.memory.defaults import EngineDefaults
from kvplan.memory.overrides import NO_OVERRIDES, MemoryOverrides


@dataclass(frozen=True)
class MemoryFlags:
    """What `plan_memory` was asked for; None is the engine's default."""

    tensor_parallel_size: int = 1
    pipeline_parallel_size: int = 1
    block_size: int | None = None
    kv_cache_dtype: str = "auto"
    gpu_memory_utilization: float | None = None
    max_model_len: int | None = None
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    num_gpu_blocks_override: int | None = None
    kv_cache_memory_bytes: int | None = None
    engine: str = "vllm"
    version: str = "0.33"
    overrides: MemoryOverrides = NO_OVERRIDES
    async_scheduling: bool = False
    enable_chunked_prefill: bool | None = None
    enable_prefix_caching: bool | None = None
    num_speculative_tokens: int = 0
    enforce_eager: bool = False
    disable_hybrid_kv_cache_manager: bool = False
    pp_layer_partition: tuple[int, ...] | None = None


@dataclass(frozen=True)
class Settings:
    """The same with every default resolved. ``in_flight_tokens`` are scheduled and not yet settled."""

    block_size: int
    gpu_memory_utilization: float
    max_model_len: int
    max_num_seqs: int
    max_num_batched_tokens: int
    in_flight_tokens: int


def resolve(flags: MemoryFlags, defaults: EngineDefaults, model: ModelConfig) -> Settings:
    """Fill in ``defaults`` and check every range.

    Raises:
        InputError: a flag outside its range, or a length that neither flag nor model states.
    """
    fraction = defaults.gpu_memory_utilization
    if flags.gpu_memory_utilization is not None:
        fraction = flags.gpu_memory_utilization
    if not 0 < fraction <= 1:
        raise InputError("must be above 0 and at most 1", field="gpu_memory_utilization", value=fraction)
    length = flags.max_model_len if flags.max_model_len is not None else model.max_position_embeddings
    if not length:
        raise InputError(
            "the model does not say how long a sequence may be",
            field="max_model_len",
            hint="give --max-model-len",
        )
    tokens = _given(flags.max_num_batched_tokens, defaults.max_num_batched_tokens, "max_num_batched_tokens")
    sequences = _given(flags.max_num_seqs, min(defaults.max_num_seqs, tokens), "max_num_seqs")
    for name in ("tensor_parallel_size", "num_gpu_blocks_override", "kv_cache_memory_bytes"):
        if (value := getattr(flags, name)) is not None:
            positive(value, name)
    if flags.num_speculative_tokens < 0:
        raise InputError("must not be negative", field="num_speculative_tokens", value=flags.num_speculative_tokens)
    batches = positive(flags.pipeline_parallel_size, "pipeline_parallel_size") + int(flags.async_scheduling)
    return Settings(
        block_size=_given(flags.block_size, defaults.block_size, "block_size"),
        gpu_memory_utilization=fraction,
        max_model_len=positive(length, "max_model_len"),
        max_num_seqs=sequences,
        max_num_batched_tokens=tokens,
        in_flight_tokens=batches * tokens,
    )


def positive(value: int, field: str) -> int:
    """``value``, if it is a whole number above zero.

    Raises:
        InputError: it is not.
    """
    if isinstance(value, bool) or not isinstance(value, (int, float)) or int(value) != value or value < 1:
        raise InputError("must be a positive whole number", field=field, value=value)
    return int(value)


def _given(value: int | None, default: int, field: str) -> int:
    return default if value is None else positive(value, field)
