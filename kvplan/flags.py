"""A run's settings as the flags to paste."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

NAMED = (
    "tensor_parallel_size",
    "pipeline_parallel_size",
    "block_size",
    "kv_cache_dtype",
    "gpu_memory_utilization",
    "num_gpu_blocks_override",
    "enable_prefix_caching",
    "max_model_len",
    "max_num_seqs",
    "max_num_batched_tokens",
    "enable_chunked_prefill",
)
"""Settings that bear vLLM's flag names, in the order in which people write them."""


def serve_flags(settings: Mapping[str, Any]) -> str:
    """The settings of a run, defaults filled in, as vLLM's own flags, one a line.

    One GPU and ``auto`` need no flag. A contiguous layout has no flag: its settings stand without one.
    """
    lines = []
    for name in NAMED:
        value, flag = settings.get(name), "--" + name.replace("_", "-")
        if value is None or value == "auto" or (name.endswith("parallel_size") and value == 1):
            continue
        if isinstance(value, bool):
            lines.append(flag if value else flag.replace("--", "--no-", 1))
        else:
            lines.append(f"{flag} {value}")
    return " \\\n  ".join(["vllm serve MODEL", *lines])
