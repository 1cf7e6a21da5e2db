# ruff: noqa: E501 - samples and tables read better on one line
"""The samples of every format in FORMATS.md, read to the values that stand in them."""

from __future__ import annotations

import pytest

from kvplan.trace import read_trace
from kvplan.trace.facts import NoRequestsError

# file, format, arrivals, prompts, outputs
SAMPLES = [
    ("aibrix_workload.jsonl", "aibrix", [0], [3], [22]),
    # s1: 300 + 40, then 150 more after 2 s; "Hello world" is 11 characters; rows without a time come with the row above.
    ("aiperf_mooncake_trace.jsonl", "aiperf", [0, 0.1055, 1, 3, 3, 3, 3], [1200, 1800, 300, 490, 3, 2, 10], [52, 26, 40, 40, 4, 50, 256]),
    ("aiperf_profile_export.jsonl", "aiperf-export", [0], [550], [9]),
    ("bailian_trace.jsonl", "bailian", [0, 1.386, 1.386], [521, 400, 32], [132, 80, 1]),
    # The first turn's delay is waited after it: the second, of 50 + 10 + 100 tokens, comes 1 s later.
    ("genai_perf_payload.jsonl", "aiperf", [0, 0, 1], [50, 6755, 160], [10, 500, 10]),
    ("guidellm_benchmarks_v2.json", "guidellm", [0], [256], [64]),
    ("guidellm_trace.jsonl", "guidellm-trace", [0, 0.5], [256, 512], [128, 64]),
    ("inference_perf_per_request.json", "inference-perf", [0], [256], [64]),
    ("llmservingsim_workload.jsonl", "llmservingsim", [0, 0.00405974, 0.131408507], [128, 1472, 1582], [512, 133, 125]),
    ("otel_genai_semconv.otlp.json", "otlp", [0], [374], [44]),
    ("otel_vllm_llm_request.otlp.json", "otlp", [0], [512], [128]),
    ("sglang_bench_serving.jsonl", "sglang-bench", None, [512, 188], [3, 2]),
    ("vllm_bench_serve_detailed.json", "vllm-bench", [0, 0.22], [512, 188], [3, 2]),
    ("vllm_bench_serve_summary_only.json", "vllm-bench", [0, 0], [350, 350], [2, 3]),
    ("vllm_custom.jsonl", "vllm-custom", [0, 0], [8, 7], [256, 256]),
    ("vllm_multi_turn_conversations.json", "vllm-multi-turn", [0, 0], [1, 4], [2, 1]),
    ("vllm_sharegpt.json", "sharegpt", [0], [4], [3]),
    ("vllm_timed_trace.jsonl", "vllm-timed-trace", [0, 1.5], [1024, 600], [64, 32]),
]  # fmt: skip


@pytest.mark.parametrize(("name", "format", "arrivals", "prompts", "outputs"), SAMPLES, ids=[row[0] for row in SAMPLES])
def test_sample(data, name, format, arrivals, prompts, outputs):
    trace = read_trace(data(f"formats/{name}"))
    assert trace.origin.format == format
    assert (trace.prompt_tokens.tolist(), trace.output_tokens.tolist()) == (prompts, outputs)
    if arrivals is not None:
        assert trace.arrival_s.tolist() == pytest.approx(arrivals)


def test_vllm_metrics_give_as_many_requests_of_the_right_mean(data):
    trace = read_trace(data("formats/vllm_metrics.prom"))
    assert len(trace) == 6226
    assert trace.prompt_tokens.mean() == pytest.approx(3.928691e6 / 6226, rel=0.005)
    assert trace.output_tokens.mean() == pytest.approx(124321 / 6226, rel=0.02)
    assert (trace.prompt_tokens <= 500).sum() == pytest.approx(1345, abs=1)  # the bucket's own count
    assert trace.origin.facts["num_gpu_blocks"] == "573"
    assert trace.origin.facts["prefix_cache_hit_rate"] == 0.6


def test_sglang_metrics_say_that_the_last_bucket_is_cut_off(data):
    trace = read_trace(data("formats/sglang_metrics.prom"))
    assert any("1 of 2 lie above 100" in note for note in trace.origin.notes)
    assert trace.prompt_tokens.sum() == pytest.approx(400, rel=0.3)  # two requests cannot spread evenly


OPEN_METRICS = """# TYPE python_gc counter
python_gc_total{generation="0"} 5.0
# TYPE vllm:request_prompt_tokens histogram
vllm:request_prompt_tokens_bucket{engine="0",le="10.0"} 4.0 # {trace_id="x"} 7.0 1700000000.0
vllm:request_prompt_tokens_bucket{engine="1",le="10.0"} 4.0
vllm:request_prompt_tokens_bucket{engine="0",le="+Inf"} 4.0
vllm:request_prompt_tokens_bucket{engine="1",le="+Inf"} 4.0
vllm:request_prompt_tokens_count{engine="0"} 4.0
vllm:request_prompt_tokens_count{engine="1"} 4.0
vllm:request_prompt_tokens_created{engine="0"} 1.7e9
# EOF
"""


def test_engines_of_one_scrape_are_summed_and_exemplars_passed_over(written):
    trace = read_trace(written(OPEN_METRICS))
    assert len(trace) == 8
    assert trace.prompt_tokens.max() <= 10


def test_parallel_samples_come_from_spans(data):
    assert read_trace(data("formats/otel_genai_semconv.otlp.json")).n.tolist() == [3]


def test_a_startup_log_tells_the_engine_and_no_request(data):
    with pytest.raises(NoRequestsError) as told:
        read_trace(data("formats/startup_lines.log"))
    facts = told.value.facts
    assert (facts["num_gpu_blocks"], facts["kv_cache_size_tokens"], facts["max_total_num_tokens"]) == (
        512,
        41408,
        433168,
    )
    assert (facts["max_model_len"], facts["max_concurrency"]) == (32768, 1.26)


def test_a_format_can_be_named_and_a_wrong_one_is_refused(data, written):
    from kvplan.errors import InputError

    path = written(
        '{"timestamp": 0, "input_length": 5, "output_length": 2}\n{"timestamp": 1500, "input_length": 5, "output_length": 2}\n'
    )
    assert read_trace(path).arrival_s.tolist() == [0, 1.5]  # Mooncake's ms
    assert read_trace(path, time_unit="s").arrival_s.tolist() == [0, 1500]
    assert read_trace(path, format="bailian").origin.format == "bailian"
    with pytest.raises(InputError, match="no format"):
        read_trace(path, format="moonshine")
    with pytest.raises(InputError, match="not a unit of time"):
        read_trace(path, time_unit="minutes")


GUIDELLM_OLD = """{"benchmarks": [{"requests": {"successful": [{"type_": "generative_text_response",
"scheduler_info": {"request_start": 1759354691.5}, "prompt": "x", "prompt_tokens": 9, "output_tokens": 16}]}}]}"""


def test_guidellm_results_before_0_4(written):
    trace = read_trace(written(GUIDELLM_OLD))
    assert (trace.prompt_tokens.tolist(), trace.output_tokens.tolist()) == ([9], [16])


def test_guidellm_results_without_samples_say_so(written):
    from kvplan.errors import InputError

    stripped = '{"metadata": {"version": 2}, "benchmarks": [{"requests": {"successful": [], "errored": [], "incomplete": [], "total": null}}]}'
    with pytest.raises(InputError, match="samples were stripped"):
        read_trace(written(stripped))
