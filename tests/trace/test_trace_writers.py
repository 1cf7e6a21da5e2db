"""Through every writer and back: arrivals, lengths and sharing stay."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kvplan.errors import InputError, KvplanError
from kvplan.trace import Trace, inline_trace, read_trace, synthesize
from kvplan.trace.sharing import prefix_hits
from kvplan.trace.writers import WRITERS, write_trace

REAL = [
    "azure-2023/AzureLLMInferenceTrace_code.csv",
    "mooncake/conversation_trace.jsonl",
    "mooncake/mooncake_trace.slice93.jsonl",
    "kv-cache-tester/trace_0638.json",
    "ragpulse/0_trace.jsonl",
    "llmservingsim/sharegpt-llama-3.1-8b-300-sps10.hash16.jsonl",
]


def rewritten(trace: Trace, to: str, folder) -> Trace:
    path = folder / f"out{WRITERS[to].suffix}"
    write_trace(trace, path, to=to)
    return read_trace(path)


def hits_of_prompts(trace: Trace) -> np.ndarray:
    content = dataclasses.replace(trace.content, output_source=np.full(len(trace), -1))
    return prefix_hits(dataclasses.replace(trace, content=content)).tokens


@pytest.mark.parametrize("to", WRITERS)
@pytest.mark.parametrize("name", REAL)
def test_real_traces(data, tmp_path, name, to):
    trace = read_trace(data(f"traces/{name}"))
    back = rewritten(trace, to, tmp_path)
    assert back.arrival_s == pytest.approx(trace.arrival_s, abs=1e-6)
    assert (back.prompt_tokens == trace.prompt_tokens).all()
    assert (back.output_tokens == trace.output_tokens).all()
    if trace.content is None:
        assert back.content is None
        return
    size = back.origin.block_size or 1
    kept = prefix_hits(back).tokens
    shared = prefix_hits(trace).tokens
    assert (kept <= shared).all()
    assert (shared - kept < size).all()  # at most the last, partial block is told no longer


@pytest.mark.parametrize("to", ["parquet", "yaml"])
def test_nothing_is_lost_in_kvplans_own_formats(tmp_path, to):
    trace = synthesize(
        {
            "requests": 50,
            "arrivals": 2,
            "prompt": 100,
            "output": 9,
            "n": 2,
            "sessions": {"turns": 3, "think_s": 1},
            "prefixes": [{"tokens": 20, "share": 0.5}],
        }
    )
    trace = dataclasses.replace(
        trace, priority=np.arange(50) % 3, request_id=np.array([f"r{i}" for i in range(50)], dtype=object)
    )
    back = rewritten(trace, to, tmp_path)
    for name in ("arrival_s", "prompt_tokens", "output_tokens", "request_id", "priority", "session", "n"):
        assert getattr(back, name).tolist() == getattr(trace, name).tolist(), name
    for name in ("segment_ptr", "segment_source", "segment_start", "segment_tokens", "output_source"):
        assert getattr(back.content, name).tolist() == getattr(trace.content, name).tolist(), name


REQUESTS = st.lists(
    st.fixed_dictionaries(
        {
            "arrival": st.integers(0, 10**8).map(lambda micro: micro / 1e6),
            "prompt": st.integers(1, 2000),
            "output": st.integers(1, 50),
        },
        optional={"prefix": st.fixed_dictionaries({"id": st.sampled_from("abc"), "tokens": st.integers(1, 1500)})},
    ),
    min_size=1,
    max_size=20,
)


@pytest.mark.parametrize("to", WRITERS)
@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(requests=REQUESTS)
def test_any_requests(tmp_path, to, requests):
    trace = inline_trace(requests)
    path = tmp_path / f"any{WRITERS[to].suffix}"
    write_trace(trace, path, to=to)
    unit = {"mooncake": "ms", "aiperf": "ms"}.get(to, "s")
    back = read_trace(path, time_unit=unit)  # a handful of rows cannot tell their unit
    whole_ms = to in ("mooncake", "aiperf") and len(trace) > 1 and trace.span_s / (len(trace) - 1) < 0.01
    shift = trace.arrival_s[0] - back.arrival_s[0]  # a late clock is put at 0
    assert back.arrival_s + shift == pytest.approx(trace.arrival_s, abs=1.1e-3 if whole_ms else 1e-6)
    assert back.prompt_tokens.tolist() == trace.prompt_tokens.tolist()
    if trace.content is not None and to in ("parquet", "yaml"):
        assert prefix_hits(back).tokens.tolist() == prefix_hits(trace).tokens.tolist()


def test_sessions_become_block_ids_and_what_is_lost_is_said(data, tmp_path):
    trace = read_trace(data("traces/tracelab/multi_session_large.csv"))
    written = write_trace(trace, tmp_path / "x.jsonl", to="mooncake")
    assert any("has no word for: request_id, session" in note for note in written.notes)
    assert any("keep 9" in note for note in written.notes)
    kept = prefix_hits(read_trace(tmp_path / "x.jsonl")).tokens.sum()
    assert kept / hits_of_prompts(trace).sum() > 0.98


def test_vllm_timed_traces_are_in_seconds_and_mooncakes_in_milliseconds(tmp_path):
    trace = inline_trace([{"arrival": 0.5 * n, "prompt": 10, "output": 1} for n in range(3)])
    times = {}
    for to in ("mooncake", "vllm-timed-trace", "guidellm"):
        write_trace(trace, tmp_path / "x", to=to)
        times[to] = [json.loads(line)["timestamp"] for line in (tmp_path / "x").read_text().splitlines()]
    assert times == {"mooncake": [0, 500, 1000], "vllm-timed-trace": [0, 0.5, 1], "guidellm": [0, 0.5, 1]}


def test_guidellm_takes_blocks_of_512_only(tmp_path):
    trace = inline_trace([{"prompt": 600, "output": 1, "prefix": {"id": "a", "tokens": 512}}] * 2)
    write_trace(trace, tmp_path / "x", to="guidellm")
    assert [len(json.loads(line)["hash_ids"]) for line in (tmp_path / "x").read_text().splitlines()] == [2, 2]
    with pytest.raises(InputError, match="no block size of guidellm"):
        write_trace(trace, tmp_path / "x", to="guidellm", block_size=16)


def test_the_suffix_chooses_the_format_and_an_unknown_one_is_refused(tmp_path):
    trace = inline_trace([{"prompt": 5, "output": 1}])
    assert write_trace(trace, tmp_path / "a.parquet").format == "parquet"
    with pytest.raises(InputError, match="does not tell the format by its suffix"):
        write_trace(trace, tmp_path / "a.xlsx")
    with pytest.raises(InputError, match="did you mean 'mooncake'"):
        write_trace(trace, tmp_path / "a.xlsx", to="mooncak")


def test_an_unwritable_place_is_an_error_and_leaves_nothing(tmp_path):
    with pytest.raises(KvplanError, match="cannot write"):
        write_trace(inline_trace([{"prompt": 5, "output": 1}]), tmp_path / "missing" / "a.csv")
    assert list(tmp_path.iterdir()) == []
