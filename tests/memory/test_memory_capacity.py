"""vLLM 0.33.0's own groups, block counts, token figures and concurrency, exactly."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from kvplan.catalog import load_gpu, load_model
from kvplan.memory import plan_memory

MODELS = ["llama-3.1-8b", "gemma-3-27b", "gemma-3-12b", "gemma-2-9b", "gpt-oss-20b", "deepseek-v3"]


@pytest.mark.parametrize("name", MODELS)
def test_a_20_gib_pool(name: str, reference: Callable[[str], Any]) -> None:
    document = reference("reference/vllm_0.33_capacity.json")
    expected = next(entry for entry in document["models"] if entry["model"] == name)
    plan = plan_memory(
        load_model(name),
        load_gpu("h100-sxm"),
        kv_cache_memory_bytes=document["pool_gib"] * 2**30,
        block_size=document["block_size"],
        kv_cache_dtype=document["kv_cache_dtype"],
        max_num_batched_tokens=document["max_in_flight_tokens"],
        max_model_len=expected["max_model_len"],
        version="0.33",
    )
    words = {"full": "full", "sliding_window": "sliding", "mla": "mla"}
    assert [[words[group.attention], group.layers] for group in plan.cache_groups] == expected["groups"]
    assert plan.bytes_per_block == expected["bytes_per_block"]
    assert plan.num_gpu_blocks == expected["num_blocks"]
    assert plan.kv_cache_size_tokens == expected["kv_cache_size_tokens"]
    assert round(plan.max_concurrency, 3) == expected["max_concurrency"]


def test_the_list_above_is_the_whole_file(reference: Callable[[str], Any]) -> None:
    assert [entry["model"] for entry in reference("reference/vllm_0.33_capacity.json")["models"]] == MODELS
