# ruff: noqa: E501 - samples and tables read better on one line
"""Every real trace is recognised by its content, and its figures are those that others computed (SOURCES.md)."""

from __future__ import annotations

import pytest

from kvplan.trace import read_trace
from kvplan.trace.describe import describe

# file, format, rows, span, prompt (mean, p50, p90, p99, max), output (the same); None: not published.
FIGURES = [
    ("azure-2023/AzureLLMInferenceTrace_code.csv", "azure", 8819, 3435.948, (2047.8, 1469, 5188, 7436, 7437), (27.9, 13, 55, 251.5, 1899)),
    ("azure-2023/AzureLLMInferenceTrace_conv.csv", "azure", 19366, 3501.722, (1154.7, 1020, 2734.5, 4142, 14050), (211.1, 129, 424, 601, 1000)),
    ("mooncake/conversation_trace.jsonl", "mooncake", 12031, 3536.999, (12035, 6909, 27367, 85400, 126195), (342.6, 350, 597, 1118.5, 2000)),
    ("mooncake/synthetic_trace.jsonl", "mooncake", 3993, 1022.025, (15325, 11587, 38611, 66456, 191378), (149.1, 69, 389, 768, None)),
    ("mooncake/mooncake_trace.slice93.jsonl", "mooncake", 93, 12.215, (None,) * 5, (None,) * 5),
    ("burstgpt/BurstGPT_1.head400.csv", "burstgpt", 400, 37269, (520.5, 314, 1418, 1958, 2126), (276.5, 229.5, 571, 1421, 2019)),
    ("burstgpt/BurstGPT_3.head400.csv", "burstgpt-v3", 400, 41453, (617.4, 308.5, 1134, 5929, 25085), (170.9, 101, 421.5, 862, 1101)),
    ("vidur/splitwise_conv.csv", "vidur", 19366, 3501.722, (1154.7, 1020, 2734.5, 4142, 14050), (211.1, 129, 424, 601, 1000)),
    ("vidur/splitwise_code.csv", "vidur", 8819, 3435.948, (2047.8, 1469, 5188, 7436, 7437), (27.9, 13, 55, 251.5, 1899)),
    ("vidur/arxiv_summarization_stats_llama2_tokenizer_filtered_v2.csv", "vidur-lengths", 28257, 0, (2588, 2730, 3702, 3933, 4054), (291, 167, 372, 3271, 4056)),
    ("etalon/sharegpt_8k_filtered_stats_llama2_tokenizer.csv", "vidur-lengths", 30731, 0, (2340, 1730, 5696, 7434, 8141), (438.7, 415, 834, 998, 1024)),
    ("vattention/arxiv_long_offline.csv", "vidur-lengths", 427, 0, (87426, None, None, 169372, 192786), (None,) * 5),
    ("ragpulse/0_trace.jsonl", "ragpulse", 7106, 604603, (2944, 3140, 3959, 5438, 7712), (283, 234, 563, 891, 2183)),
    ("llmservingsim/RTX4090_Llama-3.1-8B/requests.jsonl", "llmservingsim", 300, 29.1, (857.5, 731.5, 1460, 2765, 3998), (652.5, 632, 770, 784, None)),
    ("llmservingsim/sharegpt-llama-3.1-8b-300-sps10.hash16.jsonl", "mooncake", 300, 29.1, (857.5, 731.5, 1460, 2765, 3998), (652.5, 632, 770, 784, None)),
    ("splitwise-sim/test_trace.csv", "splitwise", 3, 3, (None, 2048, None, None, 4096), (None, 16, None, None, 32)),
    ("tracelab/round_trace.jsonl", "tracelab", 19, None, (None,) * 5, (None,) * 5),
    ("tracelab/multi_session_large.csv", "tracelab-csv", 303, None, (None,) * 5, (None,) * 5),
    ("tracelab/session_workload_example.csv", "tracelab-csv", 11, None, (None,) * 5, (None,) * 5),
    ("servegen/offline_trace_a.head93.jsonl", "servegen-offline", 93, 0, (None,) * 5, (None,) * 5),
    ("servegen/language/m-small/chunk-23-trace.csv", "servegen-client", None, None, (None,) * 5, (None,) * 5),
    ("servegen/language/m-small/chunk-23-dataset.json", "servegen-client", None, None, (None,) * 5, (None,) * 5),
    ("inference-perf/trace.csv", "azure", 20, None, (None,) * 5, (None,) * 5),
    ("inference-perf/simple_chain.json", "otel-flat", 3, 6, (None,) * 5, (None,) * 5),
    ("inference-perf/prefix_sharing_example.json", "otel-flat", 7, 12, (None,) * 5, (None,) * 5),
]  # fmt: skip
STATISTICS = ("mean", "p50", "p90", "p99", "max")


@pytest.mark.parametrize(
    ("name", "format", "rows", "span", "prompt", "output"),
    FIGURES,
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_figures_equal_the_published_ones(data, name, format, rows, span, prompt, output):
    told = describe(read_trace(data(f"traces/{name}")))
    assert told["format"] == format
    assert told["bad_rows"] == 0
    if rows is not None:
        assert told["rows"] == rows
    if span is not None:
        assert told["span_s"] == pytest.approx(span, abs=0.05)
    for values, published in ((told["prompt"], prompt), (told["output"], output)):
        for statistic, expected in zip(STATISTICS, published, strict=True):
            if expected is not None:
                # SOURCES.md rounds: to a tenth below a thousand, to whole tokens above.
                assert values[statistic] == pytest.approx(
                    expected, abs=0.06 if expected < 1000 and expected != int(expected) else 0.51
                )


# file, share of blocks (or tokens) seen before with an unlimited cache, as SOURCES.md has them
SHARING = [
    ("mooncake/conversation_trace.jsonl", "blocks", 0.366),
    ("mooncake/synthetic_trace.jsonl", "blocks", 0.640),
    ("llmservingsim/sharegpt-llama-3.1-8b-300-sps10.hash16.jsonl", "blocks", 1220 / 15942),
    ("ragpulse/0_trace.jsonl", "tokens", 0.315),
]


@pytest.mark.parametrize(("name", "unit", "rate"), SHARING, ids=[row[0] for row in SHARING])
def test_prefix_sharing_equals_the_published_one(data, name, unit, rate):
    told = describe(read_trace(data(f"traces/{name}")))
    assert (told["prefix_hit_unit"], told["prefix_hit_rate"]) == (unit, pytest.approx(rate, abs=1e-3))


def test_mooncake_counts_every_block(data):
    told = describe(read_trace(data("traces/mooncake/conversation_trace.jsonl")))
    assert (told["blocks"], told["blocks"] - told["blocks_seen_before"]) == (288_500, 182_790)


def test_servegen_offline_shares_a_system_prompt_of_160_tokens(data):
    from kvplan.trace.sharing import prefix_hits

    hits = prefix_hits(read_trace(data("traces/servegen/offline_trace_a.head93.jsonl")))
    assert set(hits.tokens[1:].tolist()) == {160}


def test_every_kv_cache_tester_session_is_read_whole(data):
    import json

    for path in sorted(data("traces/kv-cache-tester").glob("*.json")):
        document = json.loads(path.read_text())
        trace = read_trace(path)
        assert trace.origin.format == "weka"
        assert int(trace.prompt_tokens.sum()) == document["totals"]["combined_tokens"]["input"]
        assert trace.origin.block_size == 64


def test_servegen_draws_the_clients_rate_and_lengths(data):
    path = data("traces/servegen/language/m-small/chunk-23-trace.csv")
    trace = read_trace(path)
    rates = [float(line.split(",")[1]) for line in path.read_text().splitlines()]
    assert len(trace) == pytest.approx(600 * sum(rates), rel=1e-3)
    assert 193 <= trace.prompt_tokens.min() <= trace.prompt_tokens.max() <= 262  # the one busy window


def test_files_beside_traces_are_named_for_what_they_are(data):
    from kvplan.trace.facts import NoRequestsError

    told = {}
    for name in (
        "llmservingsim/RTX4090_Llama-3.1-8B/meta.json",
        "llmservingsim/RTX4090_Llama-3.1-8B/timeseries.csv",
        "ragpulse/2_passages.jsonl",
    ):
        with pytest.raises(NoRequestsError) as caught:
            read_trace(data(f"traces/{name}"))
        told[caught.value.format] = caught.value.facts
    assert list(told) == ["llmservingsim-meta", "llmservingsim-timeseries", "ragpulse-chunks"]
    assert told["llmservingsim-meta"]["num_gpu_blocks"] == 2588
