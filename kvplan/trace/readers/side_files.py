"""Files that come with traces and hold no request themselves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kvplan.trace.facts import NoRequestsError
from kvplan.trace.readers.fields import at

_CHUNK_KEYS = ("sys_prompt_id", "passage_id", "history_id", "user_input_id", "web_search_id")
_META = ("model", "vllm_version", "num_requests", "dataset_hash")
_KV_CACHE = (
    "num_gpu_blocks",
    "block_size",
    "gpu_memory_utilization",
    "enable_prefix_caching",
    "num_kv_tokens",
)
_ENGINE = ("max_num_seqs", "max_num_batched_tokens", "max_model_len", "tensor_parallel_size", "dtype")


def side_file(sample: Sequence[dict[str, Any]], name: str) -> NoRequestsError | None:
    """What to say of a JSON file that is known and holds no request; None for one that is not known."""
    first = sample[0]
    if "token_length" in first and any(key in first for key in _CHUNK_KEYS):
        return NoRequestsError(
            "is a table of RAGPulse's chunk lengths",
            format="ragpulse-chunks",
            facts={},
            source=name,
            hint="give 0_trace.jsonl: it reads the tables beside it",
        )
    if isinstance(first.get("engine_kwargs"), dict):
        facts = {key: first[key] for key in _META if key in first}
        facts |= {key: value for key in _ENGINE if (value := at(first, "engine_kwargs", key)) is not None}
        facts |= {key: value for key in _KV_CACHE if (value := at(first, "kv_cache", key)) is not None}
        return NoRequestsError(
            "holds the settings of a run",
            format="llmservingsim-meta",
            facts=facts,
            source=name,
            hint="give the requests.jsonl beside it",
        )
    return None
