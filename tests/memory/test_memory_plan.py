"""The plan: defaults by version and GPU, terms with their origin, what fits and what would."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvplan.catalog import load_gpu, load_model
from kvplan.errors import InputError
from kvplan.memory import (
    MemoryOverrides,
    advise,
    engine_defaults,
    just_enough,
    plan_memory,
    replan,
)

GIB = 2**30
LLAMA, H100 = load_model("llama-3.1-8b"), load_gpu("h100-sxm")


@pytest.mark.parametrize(
    ("version", "gpu", "utilization", "seqs", "tokens", "caching", "charged"),
    [
        ("0.33", "h100", 0.92, 1024, 8192, True, True),
        ("0.33", "a100", 0.92, 256, 2048, True, True),
        ("0.33", "b200", 0.92, 1024, 16384, True, True),
        ("0.33", "l4", 0.92, 256, 2048, True, True),
        ("0.20.1", "h100", 0.92, 1024, 8192, True, False),
        ("0.19.0", "h100", 0.90, 1024, 8192, True, False),
        ("v0.11.0rc1", "h100", 0.90, 1024, 8192, True, False),
        ("0.6.4", "rtx-3090", 0.90, 256, 512, False, False),
    ],
)
def test_vllms_defaults(
    version: str, gpu: str, utilization: float, seqs: int, tokens: int, caching: bool, charged: bool
) -> None:
    found = engine_defaults("vllm", version, load_gpu(gpu), LLAMA)
    assert (found.gpu_memory_utilization, found.max_num_seqs, found.max_num_batched_tokens) == (
        utilization,
        seqs,
        tokens,
    )
    assert (found.enable_prefix_caching, found.graphs_charged) == (caching, charged)


def test_the_old_budget_is_the_length_until_chunks_are_turned_on_by_themselves() -> None:
    """vllm 10517 and 5416: V0 profiles 29,000 tokens at once, but 512 at 35,000, so the longer length fits better."""
    pools = [
        plan_memory(LLAMA, load_gpu("rtx-3090"), version="0.6.4", max_model_len=length).available_bytes / GIB
        for length in (20_000, 29_000, 35_000)
    ]
    assert pools[0] > pools[1]
    assert pools[2] > pools[0]
    assert pools[2] == pytest.approx(5.82, abs=0.05)


def test_without_chunked_prefill_the_budget_is_at_least_the_length() -> None:
    found = engine_defaults("vllm", "0.33", H100, LLAMA, max_model_len=32768, enable_chunked_prefill=False)
    assert found.max_num_batched_tokens == 32768


@pytest.mark.parametrize(("engine", "version"), [("tgi", "3"), ("vllm", "new"), ("vllm", "")])
def test_an_unknown_engine_or_version_is_refused(engine: str, version: str) -> None:
    with pytest.raises(InputError, match="engine"):
        engine_defaults(engine, version, H100, LLAMA)


def test_the_terms_add_up_and_say_where_they_come_from() -> None:
    plan = plan_memory(LLAMA, H100)
    values = {term.name: term.value for term in plan.terms}
    others = values["weights"] + values["non_torch"] + values["activation"] + values["cuda_graphs"]
    assert values["requested"] - others == plan.available_bytes == plan.kv_cache_bytes
    assert plan.num_gpu_blocks == plan.kv_cache_bytes // plan.bytes_per_block
    assert all(term.origin for term in plan.terms)
    given = plan_memory(LLAMA, H100, overrides=MemoryOverrides.from_gib(origin="measured", activation=2))
    assert {term.name for term in given.terms if term.origin == "measured"} == {"activation"}
    assert given.activation_bytes == 2 * GIB


def test_the_pool_may_be_given_in_two_ways() -> None:
    by_bytes = plan_memory(LLAMA, H100, kv_cache_memory_bytes=8 * GIB, max_model_len=8192)
    by_blocks = plan_memory(LLAMA, H100, num_gpu_blocks_override=4096, max_model_len=8192)
    assert by_bytes.num_gpu_blocks == by_blocks.num_gpu_blocks == 4096
    assert by_bytes.kv_cache_bytes == by_blocks.kv_cache_bytes == 8 * GIB


def test_a_pool_that_cannot_stand_beside_the_weights_is_refused() -> None:
    plan = plan_memory(LLAMA, H100, kv_cache_memory_bytes=70 * GIB)
    assert [problem.kind for problem in plan.problems] == ["too_large"]


@pytest.mark.parametrize(
    ("flag", "value"),
    [
        ("gpu_memory_utilization", 0.0),
        ("gpu_memory_utilization", 1.01),
        ("block_size", 0),
        ("tensor_parallel_size", 0),
        ("pipeline_parallel_size", -1),
        ("max_model_len", 0),
        ("max_num_seqs", 0),
        ("num_gpu_blocks_override", 0),
        ("kv_cache_memory_bytes", -1),
        ("num_speculative_tokens", -1),
    ],
)
def test_flags_out_of_range_are_named(flag: str, value: Any) -> None:
    with pytest.raises(InputError, match=flag):
        plan_memory(LLAMA, H100, **{flag: value})


def test_async_scheduling_keeps_two_batches_of_a_window() -> None:
    model = load_model("gemma-3-27b")
    one, two = (plan_memory(model, H100, async_scheduling=flag) for flag in (False, True))
    assert two.in_flight_tokens == 2 * one.in_flight_tokens
    assert two.blocks_per_request - one.blocks_per_request == 6 * 8192 // 16
    assert two.num_gpu_blocks == one.num_gpu_blocks


def test_advice_starts() -> None:
    plan = plan_memory(load_model("qwen3-32b"), H100, version="0.11", max_model_len=32000)
    advice = advise(plan)
    assert not plan.feasible
    assert (advice.tensor_parallel_size, advice.max_model_len, advice.gpu_memory_utilization) == (2, 18256, 0.95)
    for change in ({"tensor_parallel_size": 2}, {"max_model_len": 18256}, {"gpu_memory_utilization": 0.95}):
        assert replan(plan, **change).feasible
    assert not replan(plan, max_model_len=18257).feasible
    assert not replan(plan, gpu_memory_utilization=0.94).feasible


def test_an_impossible_split_is_answered_with_a_possible_one() -> None:
    advice = advise(plan_memory(load_model("qwen3-14b"), H100, tensor_parallel_size=5))
    assert (advice.tensor_parallel_size, advice.gpu_memory_utilization) == (1, None)


def test_just_enough_is_just_enough() -> None:
    """vllm 22291: 20 requests of 3,072 tokens of Qwen2.5-7B take 3.28 GiB."""
    plan = plan_memory(load_model("qwen2.5-7b"), load_gpu("a10"), version="0.9.2", max_model_len=3072)
    enough = just_enough(plan, 20, 3072)
    assert (enough.blocks_per_request, enough.num_gpu_blocks) == (192, 3841)
    assert enough.kv_cache_memory_bytes == 3841 * 16 * 57_344
    served = replan(plan, kv_cache_memory_bytes=enough.kv_cache_memory_bytes)
    assert served.usable_blocks == 20 * 192
    by_fraction = replan(plan, gpu_memory_utilization=enough.gpu_memory_utilization)
    assert by_fraction.num_gpu_blocks in (3841, 3842)
    with pytest.raises(InputError, match="at_length"):
        just_enough(plan, 1, 3073)
    with pytest.raises(InputError, match="for_requests"):
        just_enough(plan, 0, 3072)


def test_trtllm_rounds_blocks_up() -> None:
    plan = plan_memory(LLAMA, H100, engine="trtllm", version="1.0")
    assert (
        (plan.num_gpu_blocks - 1) * plan.bytes_per_block
        < plan.kv_cache_bytes
        <= plan.num_gpu_blocks * plan.bytes_per_block
    )


@settings(max_examples=60, deadline=None)
@given(
    name=st.sampled_from(["llama-3.1-8b", "gemma-3-12b", "gpt-oss-20b", "deepseek-v2-lite", "qwen3.5-27b"]),
    gpu=st.sampled_from(["h100", "h200", "l40s", "b200"]),
    tp=st.sampled_from([1, 2, 4]),
    utilization=st.floats(0.3, 1.0),
    block_size=st.sampled_from([16, 32, 64, 128]),
    length=st.integers(1, 32768),
)
def test_whatever_the_flags_the_sum_holds(
    name: str, gpu: str, tp: int, utilization: float, block_size: int, length: int
) -> None:
    plan = plan_memory(
        load_model(name),
        load_gpu(gpu),
        tensor_parallel_size=tp,
        gpu_memory_utilization=utilization,
        block_size=block_size,
        max_model_len=length,
    )
    assert plan.num_gpu_blocks * plan.bytes_per_block <= max(0, plan.available_bytes)
    assert plan.feasible == (plan.available_bytes > 0 and plan.blocks_per_request <= plan.usable_blocks)
    if plan.feasible:
        assert plan.max_concurrency > 1
        assert plan.longest_max_model_len >= length
