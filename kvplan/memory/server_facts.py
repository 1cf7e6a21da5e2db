"""What a server said about its memory: one record for every engine's start-up lines."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any


@dataclass(frozen=True)
class ServerFacts:
    """Figures and flags read from a log, a metrics page or a report; None where nothing was said.

    GiB as printed (SGLang prints "GB" and means GiB), of one GPU. ``num_gpu_blocks`` counts the null block.
    ``lines`` says where each figure stands: field to 1-based line.
    """

    engine: str | None = None
    version: str | None = None
    model: str | None = None
    dtype: str | None = None
    quantization: str | None = None
    kv_cache_dtype: str | None = None
    tensor_parallel_size: int | None = None
    pipeline_parallel_size: int | None = None
    pp_layer_partition: tuple[int, ...] | None = None
    max_model_len: int | None = None
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    gpu_memory_utilization: float | None = None
    block_size: int | None = None
    enforce_eager: bool | None = None
    async_scheduling: bool | None = None
    num_speculative_tokens: int | None = None
    num_gpu_blocks_override: int | None = None

    total_gib: float | None = None
    requested_gib: float | None = None
    initial_usage_gib: float | None = None
    weights_gib: float | None = None
    parameters: int | None = None
    activation_gib: float | None = None
    peak_torch_gib: float | None = None
    """V0's peak, weights included."""
    non_torch_gib: float | None = None
    non_kv_gib: float | None = None
    cuda_graphs_gib: float | None = None
    cuda_graphs_estimated_gib: float | None = None
    margin_gib: float | None = None
    """What an engine keeps back beside its terms."""
    available_kv_gib: float | None = None
    k_gib: float | None = None
    v_gib: float | None = None
    kv_allocated_bytes: int | None = None

    num_gpu_blocks: int | None = None
    num_cpu_blocks: int | None = None
    swap_space_gib: float | None = None
    blocks_before_override: int | None = None
    kv_tokens: int | None = None
    max_concurrency: float | None = None
    needed_kv_gib: float | None = None
    estimated_max_len: int | None = None
    mamba_padding_percent: float | None = None

    running: int | None = None
    waiting: int | None = None
    kv_usage_percent: float | None = None
    lines: tuple[tuple[str, int], ...] = ()

    def known(self) -> dict[str, Any]:
        """The fields that say something, ``lines`` left out."""
        named = {field.name: getattr(self, field.name) for field in fields(self) if field.name != "lines"}
        return {name: value for name, value in named.items() if value is not None}

    def with_values(self, **values: Any) -> ServerFacts:
        """A copy with these fields set."""
        return replace(self, **values)

    @property
    def pool_gib(self) -> float | None:
        """The KV pool's GiB, by whichever line gave it."""
        if self.available_kv_gib is not None:
            return self.available_kv_gib
        if self.k_gib is not None and self.v_gib is not None:
            return self.k_gib + self.v_gib
        if self.kv_allocated_bytes is not None:
            return self.kv_allocated_bytes / 2**30
        return None
