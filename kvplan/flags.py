"""A scenario as the flags to paste."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

FLAGS = (
    ("parallel.tensor_parallel_size", "--tensor-parallel-size"),
    ("parallel.pipeline_parallel_size", "--pipeline-parallel-size"),
    ("parallel.data_parallel_size", "--data-parallel-size"),
    ("cache.block_size", "--block-size"),
    ("cache.kv_cache_dtype", "--kv-cache-dtype"),
    ("cache.gpu_memory_utilization", "--gpu-memory-utilization"),
    ("cache.num_gpu_blocks_override", "--num-gpu-blocks-override"),
    ("cache.enable_prefix_caching", "--enable-prefix-caching"),
    ("scheduler.max_model_len", "--max-model-len"),
    ("scheduler.max_num_seqs", "--max-num-seqs"),
    ("scheduler.max_num_batched_tokens", "--max-num-batched-tokens"),
)


def serve_flags(scenario: Mapping[str, Any]) -> str:
    """The scenario as vLLM's own flags, one line each; what is left at null or at one GPU is left out."""
    lines = []
    for path, flag in FLAGS:
        section, _, key = path.partition(".")
        value = (scenario.get(section) or {}).get(key)
        if value is None or (path.startswith("parallel.") and value == 1):
            continue
        if isinstance(value, bool):
            lines.append(flag if value else flag.replace("--", "--no-", 1))
        else:
            lines.append(f"{flag} {value}")
    return " \\\n  ".join(["vllm serve MODEL", *lines])
