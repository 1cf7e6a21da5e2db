# ruff: noqa: E501 - samples read better on one line
"""What the fuzzer (``make fuzz``) and odd calls of ``kvplan trace`` found, each kept as a test."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest

from kvplan.errors import InputError
from kvplan.scenario import load_scenario
from kvplan.trace import inline_trace, read_trace, synthesize
from kvplan.trace.content import MOST_SEGMENTS
from kvplan.trace.sharing import prefix_hits
from kvplan.trace.writers import WRITERS, write_trace
from tests.fuzz.samples import samples

DEPLOYMENT = "model: llama-3.1-8b\ngpu: h100-sxm\n"


def test_sessions_that_share_nothing_are_written_so(written, tmp_path):
    """Found by make fuzz: a turn may be shorter than its former one where the file does not say what is shared."""
    trace = read_trace(written("arrived_at,num_prefill_tokens,num_decode_tokens,session_id,block_hash_ids\n0,50,7,a,\n1,20,7,a,\n"))  # fmt: skip
    assert trace.content is None
    write_trace(trace, tmp_path / "x.yaml")
    back = read_trace(tmp_path / "x.yaml")
    assert (back.prompt_tokens.tolist(), back.session.tolist(), back.content) == ([50, 20], [0, 0], None)


@pytest.mark.parametrize(("escaped", "name"), [(r"\ud800", "?"), (r"\ud83d\ude00", "😀"), (r"a\u0085\u2028", "a\u0085\u2028")])  # fmt: skip
@pytest.mark.parametrize("to", ["parquet", "yaml"])
def test_names_of_any_characters_are_written_and_read(written, tmp_path, escaped, name, to):
    """Parquet has no word for half a surrogate pair, YAML none for an escaped whole one."""
    trace = read_trace(written(f'{{"arrival":0,"prompt":5,"output":1,"id":"{escaped}"}}\n'))
    path = tmp_path / f"x.{to}"
    write_trace(trace, path)
    assert read_trace(path).names().tolist() == [name]
    if to == "yaml":
        path.write_text(DEPLOYMENT + path.read_text())
        assert load_scenario(path, {}).trace().names().tolist() == [name]


def test_prompts_that_add_up_to_more_than_32_bits_are_bad_rows(written):
    row = '{"session_id": "a", "input_length": 2147483647, "output_length": 5}\n'
    with pytest.raises(InputError, match="history included"):
        read_trace(written(row * 2))


def test_a_session_takes_a_segment_a_turn_however_long_it_is(written):
    turns = 5000
    row = '{"session_id": "a", "input_length": 1, "output_length": 1}\n'
    trace = read_trace(written(row * turns))
    assert trace.prompt_tokens.tolist() == [2 * turn + 1 for turn in range(turns)]
    assert len(trace.content.segment_tokens) == turns
    assert prefix_hits(trace).tokens.tolist() == [max(0, 2 * turn) for turn in range(turns)]


def test_a_session_too_long_to_follow_is_cut_and_it_is_said(written):
    turns = 1600  # each leaves out the last token of all before: a segment for each of them, 1,280,000 in all
    rows = [
        {"session_id": "a", "input_tokens_total": 10 + turn, "prefix_tokens": 9 + turn, "output_tokens": 5}
        for turn in range(turns)
    ]
    trace = read_trace(written("".join(json.dumps(row) + "\n" for row in rows)), format="tracelab")
    assert trace.prompt_tokens.tolist() == [10 + turn for turn in range(turns)]
    assert MOST_SEGMENTS < len(trace.content.segment_tokens) < 1.1 * MOST_SEGMENTS
    assert any("share nothing with the turns before them" in note for note in trace.origin.notes)


def test_a_few_bytes_do_not_ask_for_millions_of_requests(written):
    run = {"backend": "vllm", "completed": 10**9, "total_input_tokens": 2 * 10**9, "total_output_tokens": 10**9}
    trace = read_trace(written(json.dumps(run)))
    assert len(trace) == 200_000
    assert any("200,000 of 1,000,000,000 requests drawn" in note for note in trace.origin.notes)


@pytest.mark.parametrize("seed", [-1, -(2**70)])
def test_a_seed_below_0_is_refused(written, seed):
    with pytest.raises(InputError, match="seed: must be at least 0"):
        read_trace(written("arrival,prompt,output\n0,5,1\n"), seed=seed)


# -- a written scenario is simulated as the trace it came from ----------------------------------------------


def test_a_trace_written_as_yaml_is_a_scenarios_requests(tmp_path):
    spec = {"requests": 60, "arrivals": 2, "prompt": 100, "output": 9, "sessions": {"turns": 3, "think_s": 1}}
    trace = synthesize({**spec, "prefixes": [{"tokens": 20, "share": 0.5}]})
    write_trace(trace, tmp_path / "x.yaml")
    path = tmp_path / "scenario.yaml"
    path.write_text(DEPLOYMENT + (tmp_path / "x.yaml").read_text())
    asked = load_scenario(path, {}).trace()
    for name in ("arrival_s", "prompt_tokens", "output_tokens", "session"):
        assert getattr(asked, name).tolist() == getattr(trace, name).tolist(), name
    for field in dataclasses.fields(trace.content):
        assert np.array_equal(getattr(asked.content, field.name), getattr(trace.content, field.name)), field.name
    assert prefix_hits(asked).tokens.sum() == prefix_hits(trace).tokens.sum() > 0


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        ("{prompt: 5, output: 1, output_content: 3}", "goes with content"),
        ("{prompt: 5, output: 1, content: [[0, 0, 9]]}", "longer than the prompt"),
        ("{prompt: 5, output: 1, content: [[0, 0, 1]], prefix: {id: a, tokens: 2}}", "no prefix"),
        ("{prompt: 5, output: 1, content: [[0, -1, 1]]}", "at least 0"),
        ("{prompt: 5, output: 1, content: [[0, 0, 0]]}", "at least 1"),
        ("{prompt: 5, output: 1, content: [[0, 0]]}", "required"),
        ("{prompt: 5, output: 1, content: 7}", "must be a list"),
    ],
)
def test_impossible_content_names_the_request(tmp_path, request_, message):
    path = tmp_path / "s.yaml"
    path.write_text(f"{DEPLOYMENT}requests:\n  - {request_}\n")
    with pytest.raises(InputError, match=message) as refused:
        load_scenario(path, {})
    assert refused.value.line == 4


def test_output_content_without_content_is_refused_in_python_too():
    with pytest.raises(InputError, match="goes with content"):
        inline_trace([{"prompt": 5, "output": 1, "output_content": 3}])


# -- the fuzzer's own seeds -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "data"), list(samples()), ids=[name for name, _ in samples()])
def test_the_seeds_are_what_they_are_called(written, name, data):
    """A seed that its reader refuses would lead the fuzzer nowhere."""
    path = written(data)
    if name in ("engine-log", "servegen-rates", "servegen-dataset"):
        with pytest.raises(InputError):
            read_trace(path)
        return
    trace = read_trace(path)
    assert len(trace)
    if not name.startswith(("written-", "table-")):
        known = {"synthetic": "synthetic", "scenario": "inline"}.get(name, name.removesuffix("-sessions"))
        assert trace.origin.format == known


# -- compressed output ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("suffix", [".gz", ".zst"])
@pytest.mark.parametrize("to", [name for name, writer in WRITERS.items() if writer.lines is not None])
def test_compressed_output_is_compressed_and_read_back(tmp_path, to, suffix):
    trace = inline_trace([{"arrival": n, "prompt": 600, "output": 2} for n in range(20)])
    path = tmp_path / f"x{WRITERS[to].suffix}{suffix}"
    write_trace(trace, path, to=to)
    assert path.read_bytes()[:2] in (b"\x1f\x8b", b"\x28\xb5")
    assert read_trace(path).prompt_tokens.tolist() == trace.prompt_tokens.tolist()
    if to != "mooncake":
        return
    with pytest.raises(InputError, match="compressed in itself"):
        write_trace(trace, tmp_path / f"x.parquet{suffix}")


# -- what is a document, and what is JSON Lines ---------------------------------------------------------------


WEKA = """{
  "id": "a", "block_size": 64,
  "requests": [
    {"t": 0, "in": 128, "out": 3, "hash_ids": [1, 2]},
    {"t": 1, "in": 64, "out": 4, "hash_ids": [1]}
  ]
}
"""


@pytest.mark.parametrize("copies", [1, 3, 4000])
def test_a_document_whose_lines_are_objects_is_a_document(written, copies):
    trace = read_trace(written(WEKA * copies))
    assert trace.prompt_tokens.tolist() == [128] * copies + [64] * copies
    assert trace.origin.format == "weka"


def test_a_long_document_is_one_though_its_beginning_does_not_show_the_end(written):
    few = '    {"t": 1, "in": 64, "out": 4, "hash_ids": [1]}'
    nested = WEKA.replace(few, f"{few},\n" * 30_000 + few).replace('"requests"', '"extra": [\n{}\n],\n"requests"')
    assert len(read_trace(written(nested))) == 30_002


@pytest.mark.parametrize(
    "broken", ['{"input_length": 5, "x": [1,', '{"input_length": 5, "x": "a', '{"input_length":', "{"]
)
def test_a_broken_first_line_leaves_json_lines_what_they_are(written, broken):
    path = written(broken + "\n" + '{"input_length": 7}\n' * 3)
    trace = read_trace(path, on_bad_row="skip")
    assert trace.prompt_tokens.tolist() == [7, 7, 7]
    assert trace.origin.bad_rows == 1
