"""Start-up lines of every engine and age, and what is made of them together."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvplan.catalog import load_gpu, load_model
from kvplan.errors import InputError
from kvplan.memory import load_overrides, plan_memory, save_overrides
from kvplan.memory.logs import read_log, read_servers
from kvplan.memory.reconcile import reconcile
from kvplan.memory.server_facts import ServerFacts

# A start of vLLM 0.19.0 on an H100 (public log of llm-d-planner), shortened to the lines that count.
GEMMA_0_19 = """\
(APIServer pid=1) INFO 04-22 16:06:59 [entrypoints/utils.py:299]   version 0.19.0
(APIServer pid=1) INFO 04-22 16:06:59 [utils.py:233] non-default args: {'model_tag': 'google/gemma-3-27b-it', \
'model': 'google/gemma-3-27b-it', \
'max_model_len': 8192, 'gpu_memory_utilization': 0.95, 'enable_prefix_caching': False}
(EngineCore pid=509) INFO 04-22 16:07:22 [v1/engine/core.py:105] Initializing a V1 LLM engine (v0.19.0) with config: \
model='google/gemma-3-27b-it', dtype=torch.bfloat16, max_seq_len=8192, tensor_parallel_size=1, \
pipeline_parallel_size=1, quantization=None, enforce_eager=False, kv_cache_dtype=auto
(EngineCore pid=509) DEBUG 04-22 16:07:24 [gpu_worker.py:284] worker init memory snapshot: torch_peak=0.0GiB, \
free_memory=78.68GiB, total_memory=79.19GiB, cuda_memory=0.51GiB, torch_memory=0.0GiB, non_torch_memory=0.51GiB
(EngineCore pid=509) INFO 04-22 16:10:08 [v1/core/kv_cache_utils.py:829] Overriding num_gpu_blocks=0 with \
num_gpu_blocks_override=512
(EngineCore pid=509) INFO 04-22 16:10:11 [gpu_model_runner.py:5955] Estimated CUDA graph memory: 1.05 GiB total
(EngineCore pid=509) DEBUG 04-22 16:10:11 [gpu_worker.py:435] Memory profiling takes 35.21 seconds. Total non \
KV cache memory: 55.7GiB; torch peak memory increase: 3.99GiB; non-torch forward increase memory: 0.26GiB; weights \
memory: 51.45GiB.
(EngineCore pid=509) INFO 04-22 16:10:11 [v1/worker/gpu_worker.py:436] Available KV cache memory: 19.53 GiB
(EngineCore pid=509) INFO 04-22 16:10:11 [v1/core/kv_cache_utils.py:1319] GPU KV cache size: 36,560 tokens
(EngineCore pid=509) INFO 04-22 16:10:11 [v1/core/kv_cache_utils.py:1324] Maximum concurrency for 8,192 tokens per \
request: 4.46x
(EngineCore pid=509) INFO 04-22 16:10:21 [v1/worker/gpu_worker.py:597] CUDA graph pool memory: 1.14 GiB (actual), 1.05 \
GiB (estimated), difference: 0.09 GiB (7.9%).
(APIServer pid=1) DEBUG 04-22 16:10:22 [v1/metrics/loggers.py:273] Engine 000: vllm cache_config_info with \
initialization after num_gpu_blocks is: 15997
"""


def known(*lines: str) -> dict[str, Any]:
    facts = read_log(lines).known()
    facts.pop("engine", None)
    return facts


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("# GPU blocks: 378, # CPU blocks: 1638", {"num_gpu_blocks": 378, "num_cpu_blocks": 1638}),
        ("# CUDA blocks: 27313, # CPU blocks: 2048", {"num_gpu_blocks": 27313, "num_cpu_blocks": 2048}),
        ("INFO kv_cache_utils.py:395] # GPU blocks: 1381", {"num_gpu_blocks": 1381}),
        (
            "Maximum concurrency for 20000 tokens per request: 1.56x",
            {"max_model_len": 20000, "max_concurrency": 1.56},
        ),
        ("GPU KV cache size: 2,042,016 tokens", {"kv_tokens": 2_042_016}),
        (
            "GPU KV cache size: 41,408 tokens, Maximum concurrency for 32,768 tokens per request: 1.26x",
            {"kv_tokens": 41408, "max_model_len": 32768, "max_concurrency": 1.26},
        ),
        (
            "Overriding num_gpu_blocks=1478 with num_gpu_blocks_override=512",
            {"blocks_before_override": 1478, "num_gpu_blocks_override": 512, "num_gpu_blocks": 512},
        ),
        ("Available KV cache memory: -1.44 GiB", {"available_kv_gib": -1.44}),
        ("Loading model weights took 14.9888 GB", {"weights_gib": 14.9888}),
        ("Model loading took 14.2488 GiB and 22.6 seconds", {"weights_gib": 14.2488}),
        (
            "the current vLLM instance can use total_gpu_memory (23.58GiB) x gpu_memory_utilization (0.99) = 23.35GiB",
            {"total_gib": 23.58, "gpu_memory_utilization": 0.99, "requested_gib": 23.35},
        ),
        (
            "model weights take 21.21GiB; non_torch_memory takes 0.20GiB; PyTorch activation peak memory takes "
            "0.37GiB; the rest of the memory reserved for KV Cache is 1.57GiB.",
            {"weights_gib": 21.21, "non_torch_gib": 0.20, "activation_gib": 0.37, "available_kv_gib": 1.57},
        ),
        (
            "Memory profiling results: total_gpu_memory=23.58GiB initial_memory_usage=15.34GiB "
            "peak_torch_memory=17.06GiB memory_usage_post_profile=15.40GiB non_torch_memory=0.35GiB "
            "kv_cache_size=3.81GiB gpu_memory_utilization=0.90",
            {
                "total_gib": 23.58,
                "initial_usage_gib": 15.34,
                "peak_torch_gib": 17.06,
                "non_torch_gib": 0.35,
                "available_kv_gib": 3.81,
            },
        ),
        (
            "ValueError: To serve at least one request with the models's max seq len (221000), (10.12 GiB KV cache is "
            "needed, which is larger than the available KV cache memory (5.59 GiB). Based on the available memory, the "
            "estimated maximum model length is 122080.",
            {"max_model_len": 221000, "needed_kv_gib": 10.12, "available_kv_gib": 5.59, "estimated_max_len": 122080},
        ),
        (
            "ValueError: The model's max seq len (8192) is larger than the maximum number of tokens that can be "
            "stored in KV cache (6048). Try increasing `gpu_memory_utilization`",
            {"max_model_len": 8192, "kv_tokens": 6048},
        ),
        ("Setting attention block size to 784 tokens to ensure that", {"block_size": 784}),
        (
            "Avg generation throughput: 1.1 tokens/s, Running: 4 reqs, Waiting: 2 reqs, Deferred: 1 reqs, "
            "Preemptions: 3, GPU KV cache usage: 15.3%, Prefix cache hit rate: 0.0%",
            {"running": 4, "waiting": 2, "kv_usage_percent": 15.3},
        ),
        (
            "[TP0] max_total_num_tokens=433168, chunked_prefill_size=8192, context_len=131072, available_gpu_mem=9 GB",
            {"kv_tokens": 433168, "max_model_len": 131072},
        ),
        (
            "KV Cache is allocated. #tokens: 367404, K size: 8.23 GB, V size: 8.23 GB",
            {"kv_tokens": 367404, "k_gib": 8.23, "v_gib": 8.23},
        ),
        ("KV Cache is allocated. #tokens: 8050, KV size: 0.53 GB", {"kv_tokens": 8050, "available_kv_gib": 0.53}),
        (
            "[TensorRT-LLM][INFO] [MemUsageChange] Allocated 53.32 GiB for max tokens in paged KV cache (436800).",
            {"available_kv_gib": 53.32, "kv_tokens": 436800},
        ),
        (
            "[TensorRT-LLM][INFO] Max tokens in paged KV cache: 10718. Allocating 5619318784 bytes.",
            {"kv_tokens": 10718, "kv_allocated_bytes": 5619318784},
        ),
    ],
)
def test_a_line(line: str, expected: dict[str, Any]) -> None:
    assert known(line) == expected


def test_every_line_of_the_sample_file_is_read(reference: Callable[[str], Any]) -> None:
    text = reference("formats/startup_lines.log")
    for line in text.splitlines():
        assert read_log([line]).known(), line


def test_a_file_of_several_servers_is_told_apart(reference: Callable[[str], Any]) -> None:
    servers = read_servers(reference("formats/startup_lines.log").splitlines())
    assert [(facts.engine, facts.num_gpu_blocks, facts.kv_tokens, facts.max_concurrency) for facts in servers] == [
        ("vllm", 378, None, None),
        ("vllm", None, None, 1.56),
        ("vllm", 1381, None, 10.79),
        ("vllm", 27313, None, None),
        ("vllm", None, 2_042_016, 997.08),
        ("vllm", None, 290_864, 33.04),
        ("vllm", 512, 41_408, 1.26),
        ("sglang", None, 433_168, None),
    ]


def test_metrics_pages(reference: Callable[[str], Any]) -> None:
    facts = read_log(reference("formats/vllm_metrics.prom").splitlines())
    assert (facts.num_gpu_blocks, facts.block_size, facts.kv_tokens, facts.gpu_memory_utilization) == (
        573,
        16,
        9168,
        0.82,
    )
    assert reconcile(facts, load_model("llama-3.1-8b")).verdict == "agrees"
    assert read_log(reference("formats/sglang_metrics.prom").splitlines()).engine == "sglang"


def test_something_else_is_refused() -> None:
    with pytest.raises(InputError, match="no start-up line"):
        read_log(["hello", ""], source="x.log")


def test_the_tightest_rank_counts() -> None:
    lines = [
        f"(Worker_TP{rank} pid=1) INFO Available KV cache memory: {gib} GiB" for rank, gib in enumerate((8.2, 8.0, 8.1))
    ]
    assert read_log(lines).available_kv_gib == 8.0


def test_a_real_hybrid_log_is_explained_to_the_last_token() -> None:
    """15,997 blocks in 7 groups: 36,560 tokens by the old definition, 4.46 requests of 8,192."""
    result = reconcile(read_log(GEMMA_0_19.splitlines()), load_model("gemma-3-27b"), load_gpu("h100"))
    assert result.verdict == "agrees"
    computed = {check.name: check.computed for check in result.checks if not check.identity}
    assert computed["tokens"] == 36_560
    assert computed["max_concurrency"] == pytest.approx(4.456, abs=0.001)
    assert abs(computed["gpu_blocks"] - 15_997) <= 1
    errors = {line.name: line.error for line in result.lines}
    assert abs(errors["kv_cache"] or 1) < 0.01
    assert any("blocks / 7 groups x 16 (before vLLM 0.21)" in finding for finding in result.findings)


def test_measured_terms_are_kept_for_later_plans(tmp_path: Path) -> None:
    result = reconcile(read_log(GEMMA_0_19.splitlines()), load_model("gemma-3-27b"))
    save_overrides(result.overrides, tmp_path / "o.yaml", header={"model": "gemma-3-27b"})
    again = load_overrides(tmp_path / "o.yaml")
    assert again == result.overrides
    plan = plan_memory(
        load_model("gemma-3-27b"),
        load_gpu("h100"),
        version="0.19.0",
        gpu_memory_utilization=0.95,
        max_model_len=8192,
        overrides=again,
    )
    assert abs(plan.num_gpu_blocks - 15_997) <= 4


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("memory: {weights_bytes: many}", "weights_bytes"),
        ("memory: {weight_bytes: 1}", "weight_bytes"),
        ("memory: {weights_bytes: -1}", "negative"),
        ("weights: 1", "no mapping"),
        ("a: [", "not YAML"),
    ],
)
def test_a_bad_overrides_file_is_refused(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "o.yaml"
    path.write_text(text)
    with pytest.raises(InputError, match=message):
        load_overrides(path)


def llama_server(**figures: Any) -> ServerFacts:
    flags = {"engine": "vllm", "version": "0.19.0", "block_size": 16, "tensor_parallel_size": 2}
    return ServerFacts(**{**flags, **figures})


def explained(**figures: Any) -> str:
    result = reconcile(llama_server(**figures), load_model("llama-3.1-8b"))
    assert result.verdict == "differs"
    return "\n".join(result.findings)


def test_usual_confusions_are_named() -> None:
    """40 GiB at TP 2 are 655,360 tokens of Llama-3.1-8B in bf16."""
    tokens = 655_360
    assert (
        reconcile(llama_server(available_kv_gib=40.0, kv_tokens=tokens), load_model("llama-3.1-8b")).verdict == "agrees"
    )
    assert "heads not divided by TP" in explained(available_kv_gib=40.0, kv_tokens=tokens // 2)
    assert "cut 2 ways more" in explained(available_kv_gib=40.0, kv_tokens=tokens * 2)


def test_terms_that_contradict_one_another_cannot_balance() -> None:
    facts = llama_server(
        total_gib=79.19,
        gpu_memory_utilization=0.9,
        weights_gib=7.51,
        activation_gib=1.89,
        non_torch_gib=2.07,
        available_kv_gib=63.76,
    )
    result = reconcile(facts, load_model("llama-3.1-8b"))
    assert result.verdict == "cannot balance"
    assert any("they add up at gpu_memory_utilization 0.95" in finding for finding in result.findings)


def test_a_pool_larger_than_the_card_cannot_be() -> None:
    result = reconcile(llama_server(total_gib=24.0, num_gpu_blocks=40_000), load_model("llama-3.1-8b"))
    assert result.verdict == "cannot balance"
    assert "more than the GPU's 24.00 GiB" in result.findings[0]


_COUNTS = st.none() | st.integers(1, 10**7)
_GIB = st.none() | st.floats(-50, 500, allow_nan=False)


@settings(max_examples=150, deadline=None)
@given(
    name=st.sampled_from(["llama-3.1-8b", "gemma-3-12b", "deepseek-v2-lite", "qwen3.5-27b"]),
    counts=st.fixed_dictionaries(
        dict.fromkeys(("num_gpu_blocks", "num_cpu_blocks", "kv_tokens", "max_model_len", "estimated_max_len"), _COUNTS)
    ),
    gib=st.fixed_dictionaries(
        dict.fromkeys(("total_gib", "weights_gib", "activation_gib", "available_kv_gib", "needed_kv_gib"), _GIB)
    ),
    tp=st.sampled_from([None, 1, 2, 8]),
    pp=st.sampled_from([None, 1, 2]),
    block_size=st.sampled_from([None, 1, 16, 128, 784]),
    utilization=st.none() | st.floats(0.1, 1.0),
)
def test_no_set_of_figures_breaks_the_reconciliation(
    name: str,
    counts: dict[str, Any],
    gib: dict[str, Any],
    tp: int | None,
    pp: int | None,
    block_size: int | None,
    utilization: float | None,
) -> None:
    facts = ServerFacts(
        **counts,
        **gib,
        tensor_parallel_size=tp,
        pipeline_parallel_size=pp,
        block_size=block_size,
        gpu_memory_utilization=utilization,
        version="0.19.0",
    )
    for model in (None, load_model(name)):
        result = reconcile(facts, model, load_gpu("h100"))
        assert result.verdict in ("agrees", "differs", "cannot balance", "nothing to check")
