# ruff: noqa: E501 - samples and tables read better on one line
"""The traps of FORMATS.md and SOURCES.md, one test each."""

from __future__ import annotations

import json

import numpy as np
import pytest

from kvplan.errors import InputError
from kvplan.trace import read_trace
from kvplan.trace.describe import describe
from kvplan.trace.sharing import prefix_hits


def rows(*values: dict) -> str:
    return "".join(json.dumps(value) + "\n" for value in values)


def test_azure_dates_have_seven_digits_crlf_and_no_last_newline(data):
    raw = data("traces/azure-2023/AzureLLMInferenceTrace_conv.csv").read_bytes()
    assert raw.count(b"\r\n") == 19366
    assert not raw.endswith(b"\n")
    trace = read_trace(data("traces/azure-2023/AzureLLMInferenceTrace_conv.csv"))
    assert trace.arrival_s[:3].tolist() == pytest.approx([0, 4.314579, 4.541877], abs=1e-9)


def test_azure_2024_dates_carry_an_offset(written):
    text = "TIMESTAMP,ContextTokens,GeneratedTokens\n2024-05-10 00:00:00.009930+00:00,100,5\n2024-05-10 01:00:01.009930+01:00,7,2\n"
    assert read_trace(written(text)).arrival_s.tolist() == pytest.approx([0, 1])


def test_azure_2025_has_a_column_in_the_second_place(written):
    text = "TIMESTAMP,NumImages,ContextTokens,GeneratedTokens\n2025-01-01 00:00:00.0,3,1000,20\n"
    trace = read_trace(written(text))
    assert (trace.origin.format, trace.prompt_tokens.tolist()) == ("azure-2025", [1000])


def test_burstgpt_v3_inserts_two_columns_and_counts_from_no_zero(data):
    trace = read_trace(data("traces/burstgpt/BurstGPT_3.head400.csv"))
    assert (trace.prompt_tokens[0], trace.output_tokens[0], trace.arrival_s[0]) == (906, 446, 0)
    assert len(np.unique(trace.session[trace.session >= 0])) <= 135


def test_burstgpt_failed_requests_are_counted_and_not_replayed(data):
    trace = read_trace(data("traces/burstgpt/BurstGPT_1.head400.csv"))
    told = describe(trace)
    assert (told["rows"], told["requests"], told["output"]["min"]) == (400, 383, 0)


@pytest.mark.parametrize(
    ("row", "seconds"),
    [
        ({"timestamp": 2000, "input_length": 5, "output_length": 1, "hash_ids": [1]}, 2.0),  # Mooncake: ms
        ({"timestamp": 2000, "input_length": 5, "output_length": 1, "session_id": "a"}, 2.0),  # AIPerf: ms
        ({"timestamp": 2000, "requests": [{"Prompt Length": 5, "Output Length": 1}]}, 2.0),  # AIBrix: ms
        ({"timestamp": 2.0, "input_length": 5, "output_length": 1}, 2.0),  # GuideLLM: s
        (
            {"timestamp": 2, "input_length": 5, "output_length": 1, "chat_id": 7, "hash_ids": [1]},
            2.0,
        ),  # Bailian: s
        ({"timestamp": "2", "input_length": 5, "output_length": 1}, 2.0),  # a string of seconds
        ({"arrival_time_ns": 2_000_000_000, "input_toks": 5, "output_toks": 1}, 2.0),  # LLMServingSim: ns
        ({"timestamp": 1_700_000_002_000_000, "input": "hello", "output": "a"}, 2.0),  # LMCache: epoch µs
        ({"t": 2.0, "in": 5, "out": 1, "hash_ids": []}, 2.0),  # WEKA: s
    ],
)
def test_identical_looking_rows_differ_in_their_unit_of_time(written, row, seconds):
    zero = {"timestamp": type(row.get("timestamp", 0))(0), "arrival_time_ns": 0, "t": 0.0}
    if row.get("timestamp") == 1_700_000_002_000_000:
        zero["timestamp"] = 1_700_000_000_000_000
    first = row | {key: value for key, value in zero.items() if key in row}
    values = [first, row]
    text = json.dumps({"id": "x", "block_size": 64, "requests": values}) if "t" in row else rows(*values)
    assert read_trace(written(text)).arrival_s.tolist() == [0, seconds]


def test_apex_counts_nanoseconds(written):
    text = "StartTimeOffset,ContextTokens,GeneratedTokens,TotalTokens\n0,5,1,6\n2500000000,5,1,6\n"
    assert read_trace(written(text)).arrival_s.tolist() == [0, 2.5]


def test_epoch_nanoseconds_beyond_a_float_keep_their_digits(written):
    start = 1759813207532900363
    record = {
        "metadata": {"request_start_ns": start},
        "metrics": {"input_sequence_length": {"value": 5}, "output_sequence_length": {"value": 1}},
        "error": None,
    }
    later = json.loads(json.dumps(record))
    later["metadata"]["request_start_ns"] = start + 1
    assert read_trace(written(rows(record, later))).arrival_s.tolist() == [0, 1e-9]


@pytest.mark.parametrize(("unit", "digits"), [("s", 0), ("ms", 3), ("us", 6), ("ns", 9)])
def test_moments_since_1970_tell_their_unit(written, unit, digits):
    begin, later = 1_753_780_607 * 10**digits, 1_753_780_609 * 10**digits
    lines = rows(*({"timestamp": str(at), "input_length": 5, "output_length": 1} for at in (begin, later)))
    table = f"arrival,prompt,output\n{begin},5,1\n{later},5,1\n"
    for text in (lines, table):
        trace = read_trace(written(text))
        assert trace.arrival_s.tolist() == [0, 2]
        assert any(f"in {unit}" in note for note in trace.origin.notes)


def test_mooncake_ids_count_partial_blocks_and_weka_ids_full_ones(data):
    mooncake = read_trace(data("traces/mooncake/mooncake_trace.slice93.jsonl"))
    weka = read_trace(data("traces/kv-cache-tester/trace_0504.json"))
    assert (mooncake.content.covered_tokens() == mooncake.prompt_tokens).all()
    assert (weka.content.covered_tokens() == weka.prompt_tokens // 64 * 64).all()
    assert any("ceil" in note for note in mooncake.origin.notes)
    assert any("floor" in note for note in weka.origin.notes)


def test_ids_need_not_begin_at_0(data):
    trace = read_trace(data("traces/mooncake/mooncake_trace.slice93.jsonl"))
    assert prefix_hits(trace).tokens[1] == 512  # block 0 is the system prompt of the first request


def test_the_id_of_a_partial_block_is_not_shared_beyond_its_tokens(written):
    short = {"timestamp": 0, "input_length": 600, "output_length": 1, "hash_ids": [1, 2]}
    long = {"timestamp": 1, "input_length": 1024, "output_length": 1, "hash_ids": [1, 2]}
    same = {"timestamp": 2, "input_length": 600, "output_length": 1, "hash_ids": [1, 2]}
    assert prefix_hits(read_trace(written(rows(short, long, same)))).tokens.tolist() == [0, 600, 600]


def test_unchained_content_hashes_are_found_and_count_only_as_prefixes(written):
    first = {"chat_id": 1, "timestamp": 0, "input_length": 48, "output_length": 1, "hash_ids": [1, 2, 3]}
    # Block 3 repeats, but behind another block: an engine's chained cache cannot serve it.
    second = {"chat_id": 2, "timestamp": 1, "input_length": 48, "output_length": 1, "hash_ids": [1, 9, 3]}
    trace = read_trace(written(rows(first, second)))
    assert prefix_hits(trace).tokens.tolist() == [0, 16]
    assert any("not chained: 1 ids" in note for note in trace.origin.notes)


def test_bailian_rows_without_a_chat_are_of_no_session(written):
    base = {"timestamp": 0, "input_length": 16, "output_length": 1}
    rows = [
        base | {"chat_id": 1},
        base | {"chat_id": None},
        base,
        base | {"chat_id": ""},
        base | {"chat_id": None, "parent_chat_id": 1},
        base | {"chat_id": None, "parent_chat_id": None},
        base | {"chat_id": 2, "parent_chat_id": 1},
    ]
    trace = read_trace(written("".join(json.dumps(row) + "\n" for row in rows)))
    assert trace.origin.format == "bailian"
    assert trace.session.tolist() == [0, -1, -1, -1, 0, -1, 0]


def test_bailian_tolerates_missing_parents_and_cycles(written):
    base = {"timestamp": 0, "input_length": 16, "output_length": 3}
    text = rows(
        base | {"chat_id": 1, "parent_chat_id": 99},
        base | {"chat_id": 2, "parent_chat_id": 1},
        base | {"chat_id": 3, "parent_chat_id": 3},
        base | {"chat_id": 4, "parent_chat_id": -1},
    )
    assert read_trace(written(text)).session.tolist() == [0, 0, 1, 2]


def test_ids_local_to_a_session_share_nothing_with_another(written):
    session = {
        "block_size": 64,
        "hash_id_scope": "local",
        "requests": [{"t": 0, "in": 128, "out": 1, "hash_ids": [1, 2]}],
    }
    text = rows(session | {"id": "a"}, session | {"id": "b"})
    assert prefix_hits(read_trace(written(text))).tokens.tolist() == [0, 0]
    shared = rows(session | {"id": "a", "hash_id_scope": "global"}, session | {"id": "b", "hash_id_scope": "global"})
    assert prefix_hits(read_trace(written(shared))).tokens.tolist() == [0, 128]


def test_subagent_entries_bring_requests_of_their_own(written):
    inner = {"t": 1.0, "type": "s", "in": 70, "out": 2, "hash_ids": [1]}
    session = {
        "id": "a",
        "block_size": 64,
        "requests": [
            {"t": 0.0, "type": "n", "in": 64, "out": 1, "hash_ids": [1]},
            {"type": "subagent", "requests": [inner]},
        ],
    }
    trace = read_trace(written(json.dumps(session)))
    assert trace.prompt_tokens.tolist() == [64, 70]
    assert trace.session.tolist() == [0, 0]


def test_duplicate_rows_are_kept(data, written):
    row = {"timestamp": 5, "input_length": 5, "output_length": 1}
    assert len(read_trace(written(rows(row, row)))) == 2
    assert len(read_trace(data("traces/etalon/sharegpt_8k_filtered_stats_llama2_tokenizer.csv"))) == 30731


def test_a_request_rate_may_be_the_string_inf(written):
    result = {"request_rate": "inf", "input_lens": [5, 6], "output_lens": [1, 1], "completed": 2}
    assert read_trace(written(rows(result))).arrival_s.tolist() == [0, 0]
    paced = read_trace(written(rows(result | {"request_rate": 2.0})))
    assert paced.arrival_s[1] > 0
    assert any("drawn at 2 requests/s" in note for note in paced.origin.notes)


def test_appended_results_follow_one_another(written):
    run = {"input_lens": [5], "output_lens": [1], "start_times": [1000.5], "duration": 7.0}
    assert read_trace(written(rows(run, run))).arrival_s.tolist() == [0, 7]


def test_a_missing_output_length_is_assumed_and_said(written):
    path = written(rows({"timestamp": 0, "input_length": 10, "hash_ids": [123]}))
    trace = read_trace(path)
    assert trace.output_tokens.tolist() == [256]
    assert any("256 tokens assumed" in note for note in trace.origin.notes)
    assert read_trace(path, output_tokens=7).output_tokens.tolist() == [7]


def test_otlp_integers_are_strings(data):
    assert '"intValue":"374"' in data("formats/otel_genai_semconv.otlp.json").read_text().replace(" ", "")
    assert read_trace(data("formats/otel_genai_semconv.otlp.json")).prompt_tokens.tolist() == [374]


def test_naive_span_times_are_utc(data):
    trace = read_trace(data("traces/inference-perf/simple_chain.json"))
    assert trace.arrival_s.tolist() == [0, 3, 6]


def test_equal_messages_at_the_beginning_of_prompts_are_shared(data):
    trace = read_trace(data("traces/inference-perf/simple_chain.json"))
    hits = prefix_hits(trace).tokens
    assert hits[1] == trace.prompt_tokens[0]  # the second question holds the first
    assert hits[2] == trace.prompt_tokens[1]


def test_ragpulse_times_are_strings_one_is_late_and_the_last_line_blank(data):
    path = data("traces/ragpulse/0_trace.jsonl")
    assert path.read_bytes().endswith(b"\n\n")
    trace = read_trace(path)
    assert 82 in trace.arrival_s  # the first row: "82"
    assert any("1 row came before" in note for note in trace.origin.notes)


def test_ragpulse_without_its_tables_shares_nothing_and_says_so(data, written):
    trace = read_trace(written(data("traces/ragpulse/0_trace.jsonl").read_bytes()))
    assert trace.content is None
    assert any("not beside the trace" in note for note in trace.origin.notes)


def test_tracelab_input_len_is_only_what_is_new(data):
    trace = read_trace(data("traces/tracelab/multi_session_large.csv"))
    first = np.flatnonzero(trace.session == 0)
    assert trace.prompt_tokens[first].tolist() == [2318, 2518 + 348, 2997 + 812]
    assert prefix_hits(trace).tokens[first].tolist() == [0, 2518, 2866 + 131]


def test_aiperf_sessions_add_and_bailian_sessions_repeat_their_history(written):
    added = rows(*({"session_id": "s", "timestamp": at, "input_length": 10, "output_length": 5} for at in (0, 1000)))
    assert read_trace(written(added)).prompt_tokens.tolist() == [10, 25]


def test_servegen_distributions_are_never_evaluated(written):
    rates = "0,1,1,,0,0\n600,1,1,,0,0\n"
    evil = json.dumps({"0": {"input_tokens": "{__import__('os').abort(): 1}", "output_tokens": "{1: 1.0}"}})
    path = written(rates, "chunk-1-trace.csv")
    written(evil, "chunk-1-dataset.json")
    with pytest.raises(InputError, match="no distribution"):
        read_trace(path)


def test_a_servegen_window_too_full_to_be_drawn_unasked_says_how(written):
    path = written("0,1000,1,,0,0\n600,1,1,,0,0\n", "chunk-1-trace.csv")
    written(json.dumps({"0": {"input_tokens": "{5: 1.0}", "output_tokens": "{1: 1.0}"}}), "chunk-1-dataset.json")
    with pytest.raises(
        InputError, match=r"(?s)more requests in its first window, at 0 s.*about 600,600 in all.*--limit"
    ):
        read_trace(path)
    assert len(read_trace(path, limit=1000)) == 1000


def test_crlf_in_json_lines(written):
    text = rows({"timestamp": 0, "input_length": 5, "output_length": 1}).replace("\n", "\r\n")
    assert len(read_trace(written(text))) == 1


def test_a_git_lfs_pointer_is_named(written):
    with pytest.raises(InputError, match="git lfs pull"):
        read_trace(written("version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 5\n"))


def test_new_vidur_rows_name_sessions_and_blocks(written):
    text = "arrived_at,num_prefill_tokens,num_decode_tokens,session_id,block_hash_ids\n0.0,32,30,7,11|22\n1.0,32,30,7,11|33\n"
    trace = read_trace(written(text), block_size=16)
    assert prefix_hits(trace).tokens.tolist() == [0, 16]
    assert trace.session.tolist() == [0, 0]
