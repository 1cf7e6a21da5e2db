"""Every report of a real server: what kvplan makes of it, and the reason where nothing can be made of it.

`VERDICTS` is the whole file. ``agrees``: every figure follows from the model's shape or from another figure, within
0.1% or the printed rounding. ``differs``: it does not, and the finding says why. ``cannot balance``: the report's
own figures contradict one another. ``nothing to check``: the reason is asserted. `BY_HAND` holds reports whose
figures have keys of their own: there the test computes them with kvplan's functions.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from kvplan.catalog import load_gpu, load_model
from kvplan.memory import cache_groups, kv_bytes_per_token, plan_memory, weights_bytes
from kvplan.memory.kv_dtype import kv_format
from kvplan.memory.parallel import tensor_parallel_problem
from kvplan.memory.reports import check_report

GIB = 2**30
NO_FIGURES = "the report has no figures"
OTHER_KINDS = "its figures are of other kinds"
UNKNOWN_MODEL = "the catalogue does not know"
NO_MODEL = "the report names no model"

VERDICTS: dict[str, str | tuple[str, str]] = {
    "vllm-10517-20k": "agrees",
    "vllm-10517-35k": "agrees",
    "vllm-21348-vllm": "differs",  # one rank's GiB beside the blocks of the rank with the least
    "vllm-21348-sglang": "agrees",
    "vllm-22291": ("nothing to check", OTHER_KINDS),
    "vllm-25350-100k": "agrees",
    "vllm-25350-221k": "agrees",
    "vllm-2031-7b": ("nothing to check", OTHER_KINDS),
    "vllm-5248": "agrees",
    "openrlhf-336": "agrees",
    "vllm-6623": "agrees",
    "qwen3-295": "agrees",
    "vllm-19503": "agrees",
    "hf-mem-61": "agrees",
    "hf-mem-70": ("nothing to check", OTHER_KINDS),
    "vllm-43308": ("nothing to check", OTHER_KINDS),
    "vllm-49878": ("nothing to check", UNKNOWN_MODEL),
    "vllm-39254": ("nothing to check", OTHER_KINDS),
    "vllm-40691": "agrees",
    "vllm-54458": ("nothing to check", UNKNOWN_MODEL),
    "dsv4-spark-57": ("nothing to check", UNKNOWN_MODEL),
    "vllm-54703": ("nothing to check", UNKNOWN_MODEL),
    "vllm-51454": ("nothing to check", UNKNOWN_MODEL),
    "vllm-44376": ("nothing to check", UNKNOWN_MODEL),  # two unknowns, two figures: the finding gives both
    "vllm-28228": ("nothing to check", "too few figures"),
    "configiq-112": ("nothing to check", UNKNOWN_MODEL),
    "ik-llamacpp-1607": ("nothing to check", OTHER_KINDS),
    "llmd-planner-205-llama8b": "agrees",
    "llmd-planner-205-llama8b-fp8kv": "agrees",
    "llmd-planner-205-llama8b-fp32": "agrees",
    "llmd-planner-205-llama8b-pp": "agrees",
    "llmd-planner-205-qwen3-14b-v0.15.0": "agrees",
    "llmd-planner-205-qwen3-14b-tp5": ("nothing to check", OTHER_KINDS),
    "llmd-benchmark-732": "agrees",
    "llmd-planner-doc-gpt-oss-120b-tp1": "cannot balance",  # says 0.9, adds up at 0.95
    "llmd-planner-doc-llama-3.3-70b-instruct-fp8-dynamic-tp2": "agrees",
    "llmd-planner-doc-llama-3.1-8b-instruct-tp1": "agrees",
    "llmd-planner-doc-fail-qwen3-32b": "agrees",
    "vllm-34076": "agrees",
    "vllm-32105": "agrees",
    "vllm-14412": ("nothing to check", OTHER_KINDS),
    "trtllm-12188": ("nothing to check", NO_MODEL),
    "vllm-5416": ("nothing to check", NO_FIGURES),
    "miaai-3": ("nothing to check", UNKNOWN_MODEL),
    "trtllm-224": "cannot balance",  # 8,348 blocks of 8 MiB on a 24 GB card
    "trtllm-1012": ("nothing to check", NO_FIGURES),
    "trtllm-2866": ("nothing to check", OTHER_KINDS),
    "tgi-832": "agrees",
    "tgi-653": "agrees",
    "tgi-2160": ("nothing to check", OTHER_KINDS),
    "tgi-1863": "agrees",
    "lmdeploy-277": ("nothing to check", NO_MODEL),
    "lmdeploy-2793": ("nothing to check", OTHER_KINDS),
    "llamacpp-23652": ("nothing to check", NO_MODEL),
    "unsloth-7530": ("nothing to check", UNKNOWN_MODEL),
    "llamacpp-3380": ("nothing to check", NO_FIGURES),
    "lmcache-1740": "agrees",
    "lmcache-1241": ("nothing to check", OTHER_KINDS),
    "sglang-18263": "agrees",
    "sglang-13466": "agrees",
    "sglang-29575": ("nothing to check", NO_MODEL),
    "sglang-1970": ("nothing to check", OTHER_KINDS),
    "freetoken-126": "agrees",
    "freetoken-103": ("nothing to check", NO_MODEL),
    "pegainfer-422": "agrees",
    "pegainfer-554": "agrees",
    "vllm-6868": "agrees",
    "syv-102": ("nothing to check", UNKNOWN_MODEL),
    "granite-128": "differs",  # loaded at 1.87 times its parameters' bytes
    "dsv2-83": "agrees",
    "ttxla-5727": "agrees",
    "ttxla-5860": ("nothing to check", OTHER_KINDS),
    "airunway-139": ("nothing to check", UNKNOWN_MODEL),
    "vllm-27017": ("nothing to check", NO_FIGURES),
    "vllm-18121": ("nothing to check", NO_FIGURES),
}

FINDINGS = {
    "vllm-21348-vllm": "the rank with the least sets the blocks for all",
    "llmd-planner-doc-gpt-oss-120b-tp1": "they add up at gpu_memory_utilization 0.95",
    "trtllm-224": "a pool of 65.22 GiB is more than the GPU's",
    "vllm-2031-7b": "7,449 blocks of this model are 58.20 GiB",
    "vllm-6623": "13,078 blocks of this model are 25.54 GiB",
    "vllm-5248": "507 blocks of this model are 1.98 GiB",
    "vllm-34076": "a stage needs only its own",
    "vllm-44376": "4.44 GiB whatever its length, and 79,527 bytes a token",
    "vllm-40691": "by concurrency it would be 1,082,655",
    "sglang-29575": "8.15 requests of 256,000",
    "granite-128": "83,972 bytes a token",
}


def test_the_table_is_the_whole_file(reference: Callable[[str], Any]) -> None:
    entries = reference("reference/startup_reports.json")
    assert [entry["id"] for entry in entries] == list(VERDICTS)


@pytest.mark.parametrize("report_id", VERDICTS)
def test_a_report_gets_its_verdict(report_id: str, reference: Callable[[str], Any]) -> None:
    entry = next(entry for entry in reference("reference/startup_reports.json") if entry["id"] == report_id)
    checked = check_report(entry)
    expected = VERDICTS[report_id]
    verdict, reason = expected if isinstance(expected, tuple) else (expected, "")
    assert checked.verdict == verdict, checked.reconciliation.findings
    assert checked.reason.startswith(reason)
    assert FINDINGS.get(report_id, "") in "\n".join(checked.reconciliation.findings)


def request_gib(name: str, length: int) -> float:
    return length * kv_bytes_per_token(load_model(name)) / GIB


def pool_gib(name: str, tokens: int, tp: int, dtype: str = "auto") -> float:
    return tokens * kv_bytes_per_token(load_model(name), dtype, tp) / GIB


def window_aware_gib(name: str, length: int, requests: int) -> float:
    groups = cache_groups(load_model(name), kv_format("auto", "bfloat16"))
    return requests * sum(group.resident_bytes(length) for group in groups) / GIB


def state_block(spec: int, kv_dtype: str) -> tuple[int, float]:
    """Block size and padding in percent of a Qwen3.5-27B whose states are kept in bf16."""
    model = load_model("qwen3.5-27b")
    layers = tuple(
        replace(layer, state=replace(layer.state, state_dtype="bfloat16")) if layer.state else layer
        for layer in model.layers
    )
    groups = cache_groups(replace(model, layers=layers), kv_format(kv_dtype, "bfloat16"), num_speculative_tokens=spec)
    state = next(layer.state for layer in layers if layer.state)
    held = state.conv_channels * (state.conv_kernel - 1 + spec) * 2 + state.heads * state.head_dim * state.state_dim * 2
    return groups[0].block_size, 100 * (groups[0].page_bytes - held) / held


def sequences_at_4k(weights_dtype: str, kv_dtype: str, utilization: float) -> float:
    model = load_model("llama-3.3-70b-fp8" if weights_dtype == "fp8" else "llama-3.1-70b")
    plan = plan_memory(
        model,
        load_gpu("h100-sxm"),
        tensor_parallel_size=4,
        kv_cache_dtype=kv_dtype,
        gpu_memory_utilization=utilization,
        max_model_len=4096,
        version="0.19",
    )
    return plan.max_concurrency


BY_HAND: dict[str, Callable[[dict[str, Any]], list[tuple[float, float, float]]]] = {
    # id: the report's figures -> (reported, computed, relative tolerance)
    "vllm-10517-35k": lambda r: [
        (5.82, 0.9 * r["total_gpu_gib"] - r["peak_torch_gib"] - 0.35, 0.001),
        (
            r["peak_torch_gib"],
            (lambda plan: (plan.weights_bytes + plan.activation_bytes) / GIB)(
                plan_memory(load_model("llama-3.1-8b"), load_gpu("rtx-3090"), max_model_len=35000, version="0.6.4")
            ),
            0.001,
        ),
    ],
    "vllm-22291": lambda r: [(r["gb_per_request"], round(request_gib("qwen2.5-7b-gptq-int8", 3072), 2), 0.001)],
    "hf-mem-70": lambda r: [
        (r["kv_gib_full"], 32 * request_gib("gpt-oss-20b", 8192), 0.001),
        (r["kv_gib_window_capped"], window_aware_gib("gpt-oss-20b", 8192, 32), 0.001),
    ],
    "vllm-43308": lambda r: [(54_613, r["kv_memory_gb"] * GIB // (60 * 16_384), 0.001)],
    "llmd-planner-205-llama8b-pp": lambda r: [
        (r[f"weights_pp{pp}"], weights_bytes(load_model("llama-3.1-8b"), 1, pp, 0) / GIB, 0.001) for pp in (1, 2, 4)
    ],
    "tgi-2160": lambda r: [(r["true_mib_per_token"], kv_bytes_per_token(load_model("llama-3-8b")) / 2**20, 0.001)],
    "tgi-832": lambda r: [(31.0, pool_gib("llama-2-70b", r["max_batch_total_tokens"], 4), 0.001)],
    "tgi-653": lambda r: [(7.92, pool_gib("llama-2-7b", r["max_batch_total_tokens"], 1), 0.001)],
    "qwen3-295": lambda r: [(3.586, pool_gib("qwen1.5-7b", r["kv_tokens"], 1), 0.001)],
    "lmcache-1241": lambda r: [
        (2.21, pool_gib("qwen2.5-32b", r["kv_tokens_dense"], 2), 0.003),
        (4.01, pool_gib("qwen3-30b-a3b", r["kv_tokens_moe"], 2), 0.001),
    ],
    "freetoken-103": lambda r: [
        (r["bytes_per_element"], kv_format("q8_0", "bfloat16").side_bytes(128) / 128, 0.0),
        (r["kv_gib_bf16"] / r["kv_gib_fp8"], 2.0, 0.002),
    ],
    "syv-102": lambda r: [
        (r["block_a"], state_block(15, "auto")[0], 0.0),
        (r["padding_a_pct"], state_block(15, "auto")[1], 0.01),
        (r["block_b"], state_block(7, "int8")[0], 0.0),
        (r["padding_b_pct"], state_block(7, "int8")[1], 0.01),
    ],
    "llmd-planner-doc-fail-qwen3-32b": lambda r: [
        (18_227, 4.45 * GIB // kv_bytes_per_token(load_model("qwen3-32b")), 0.001)
    ],
    "vllm-51454": lambda r: [  # a latent cache stands whole on every rank: eight pools against one
        (1, kv_bytes_per_token(load_model("deepseek-v3"), "auto", 8) / (61 * 576 * 2), 0.0),
        (r["kv_ratio"], r["max_concurrency_dp8"] / r["max_concurrency_tp8"], 0.01),
    ],
    "airunway-139": lambda r: [
        (110, sequences_at_4k("bf16", "auto", 0.9), 0.05),
        (r["sequences_at_4k"], sequences_at_4k("fp8", "fp8", 0.95), 0.05),
    ],
    "granite-128": lambda r: [(r["disk_gib"], r["params"] * 2 / GIB, 0.001)],
    "ik-llamacpp-1607": lambda r: [
        (r["sliding_layers"], sum(g.layers for g in load_model("gemma-4-31b").kv_groups if g.window), 0.0),
        (r["window"], load_model("gemma-4-31b").kv_groups[1].window, 0.0),
    ],
}  # fmt: skip


@pytest.mark.parametrize("report_id", BY_HAND)
def test_figures_with_keys_of_their_own(report_id: str, reference: Callable[[str], Any]) -> None:
    entry = next(entry for entry in reference("reference/startup_reports.json") if entry["id"] == report_id)
    for reported, computed, tolerance in BY_HAND[report_id](entry["reported"]):
        assert computed == pytest.approx(reported, rel=tolerance or 1e-12)


def test_a_split_that_the_vocabulary_forbids(reference: Callable[[str], Any]) -> None:
    """llmd-planner-205-qwen3-14b-tp5: 151,936 rows do not divide by 5, nor do 8 KV heads."""
    entry = next(
        entry
        for entry in reference("reference/startup_reports.json")
        if entry["id"] == "llmd-planner-205-qwen3-14b-tp5"
    )
    problem = tensor_parallel_problem(load_model("qwen3-14b"), entry["tp"])
    assert problem is not None
    assert f"a vocabulary of {entry['reported']['vocab']} cannot be divided by 5" in problem
