"""Rows that are none: refused with their line, or left out and counted."""

from __future__ import annotations

import gzip
import io
import os
import sys
import threading

import pyarrow as pa
import pytest

from kvplan.errors import InputError
from kvplan.trace import read_trace
from kvplan.trace.describe import describe

HEADER = "arrival,prompt,output\n"


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("0,-5,1", "prompt: is negative"),
        ("0,nan,1", "prompt: is not a finite number"),
        ("0,5.5,1", "whole number"),
        ("0,,1", "prompt: is empty"),
        ("0,5,x", "output: is not a number"),
        ("-1,5,1", "arrival: is negative"),
        ("soon,5,1", "arrival: is not a number"),
        ("inf,5,1", "finite"),
        ("0,5", "has 2 fields, the header 3"),
        ("0,5,1,9", "has 4 fields, the header 3"),
        ("0,99999999999,1", "more than"),
        ("2023-13-01 00:00:00,5,1", "not an ISO 8601 date"),
        ('"unclosed,5,1', "fields, the header 3"),
    ],
)
def test_a_bad_row_is_refused_with_its_line(written, row, message):
    with pytest.raises(InputError) as refused:
        read_trace(written(f"{HEADER}0,5,1\n{row}\n"))
    assert refused.value.line == 3
    assert message in str(refused.value)
    assert "--on-bad-row skip" in refused.value.hint


@pytest.mark.parametrize("policy", ["skip", "report"])
def test_bad_rows_are_left_out_counted_and_the_first_ten_shown(written, policy):
    bad = "".join(f"0,bad{n},1\n" for n in range(25))
    trace = read_trace(written(f"{HEADER}0,5,1\n{bad}1,6,2\n"), on_bad_row=policy)
    told = describe(trace)
    assert (len(trace), told["bad_rows"], len(told["bad_row_examples"])) == (2, 25, 10)
    assert told["bad_row_examples"][0].startswith("line 3: prompt: is not a number")


def test_refusing_shows_ten_lines_and_counts_all(written):
    bad = "".join(f"0,bad{n},1\n" for n in range(25))
    with pytest.raises(InputError) as refused:
        read_trace(written(HEADER + bad))
    assert refused.value.line == 2
    assert "25 rows are bad, also line 3" in refused.value.hint
    assert "line 11" in refused.value.hint
    assert "line 12" not in refused.value.hint


def test_a_bad_row_deep_in_a_large_file_names_its_own_line(written):
    lines = [f"{n},{n % 99 + 1},1" for n in range(300_000)]
    lines[7], lines[250_000] = "7,x,1", '"250000,5,1'
    trace = read_trace(written(HEADER + "\n".join(lines)), on_bad_row="report")
    assert trace.origin.bad_row_examples[0].startswith("line 9: prompt")
    # An open quote swallows what follows, as in any CSV reader, up to the largest cell that it takes.
    assert trace.origin.bad_row_examples[1].startswith("line 250002:")
    assert len(trace) >= 249_999
    assert (trace.arrival_s[:249_999] == [n for n in range(250_000) if n != 7]).all()


def test_quoted_cells_may_hold_separators_and_line_breaks(written):
    text = 'arrival,prompt,output,comment\n0,5,1,"a, b"\n1,6,2,"two\nlines"\n2,x,3,""\n3,7,4,"c"\n'
    trace = read_trace(written(text), on_bad_row="skip")
    assert trace.prompt_tokens.tolist() == [5, 6, 7]
    assert trace.origin.bad_row_examples == ("line 5: prompt: is not a number (got 'x')",)


def test_broken_json_lines_are_rows_too(written):
    good = '{"timestamp": 0, "input_length": 5, "output_length": 1}'
    path = written(f"{good}\n{{broken\n[1]\n{good}\n")
    with pytest.raises(InputError, match="is not JSON") as refused:
        read_trace(path)
    assert (refused.value.line, refused.value.column) == (2, 2)
    trace = read_trace(path, on_bad_row="skip")
    assert (len(trace), trace.origin.bad_rows) == (2, 2)


def test_bad_entries_of_a_document_name_their_place(written):
    path = written(
        '{"id": "a", "block_size": 64, "requests": [{"t": 0, "in": 64, "out": 1}, {"t": 0, "in": -1, "out": 1}]}'
    )
    with pytest.raises(InputError, match=r"requests\[1\]\.in: is negative"):
        read_trace(path)
    assert len(read_trace(path, on_bad_row="skip")) == 1


def test_all_rows_bad_is_no_trace_whatever_the_policy(written):
    with pytest.raises(InputError, match="none of its 1 row "):
        read_trace(written(f"{HEADER}0,x,1\n"), on_bad_row="skip")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "is empty"),
        ("\n \n", "is empty"),
        (HEADER, "holds no request"),
        ("[]", "no JSON object"),
        ("a,b,c\n1,2,3\n", "table of no known format"),
        ('{"a": 1}', "no known format"),
        (b"\x80\x04\x95pickle", "no known format"),
        (b"PAR1 but nothing else", "damaged Parquet"),
        (b"PK\x03\x04", "zip"),
        ("\ufefftimestamp".encode("utf-16"), "UTF-16"),
        (b"\x1f\x8bnot gzip", "damaged gzip"),
        (b"\x28\xb5\x2f\xfdnot zstd", "damaged zstd"),
        (b"arrival,prompt,output\n0,5,1\n0,\xff,1\n", "not UTF-8"),
        ("[" * 100_000, "nested too deeply|is not JSON|no known format"),
        ('{"requests": ' + "[" * 100_000, "nested too deeply|is not JSON"),
        ("requests: &a [*a, *a]\n", "alias"),
        ("requests: [{prompt: 1, output: 1}, {prompt: 0, output: 1}]\n", r"requests\[1\].prompt"),
    ],
)
def test_what_is_no_trace_is_refused_with_a_line(written, content, message):
    with pytest.raises(InputError, match=message) as refused:
        read_trace(written(content))
    assert refused.value.line is not None


def test_bom_crlf_and_no_last_newline_change_nothing(written):
    plain = read_trace(written(f"{HEADER}0,5,1\n1,6,2\n"))
    for variant in (
        f"\ufeff{HEADER}0,5,1\n1,6,2\n",
        f"{HEADER}0,5,1\r\n1,6,2",
        f"\ufeff{HEADER}0,5,x\r\n0,5,1\r\n1,6,2",
    ):
        trace = read_trace(written(variant), on_bad_row="skip")
        assert trace.prompt_tokens.tolist() == plain.prompt_tokens.tolist()
        assert trace.arrival_s.tolist() == plain.arrival_s.tolist()


def test_unsorted_arrivals_are_sorted_stably_and_it_is_said(written):
    trace = read_trace(written(f"{HEADER}5,1,1\n0,2,1\n5,3,1\n"))
    assert trace.prompt_tokens.tolist() == [2, 1, 3]
    assert trace.names().tolist() == ["1", "0", "2"]  # the place in the file
    assert any("sorted by arrival: 1 row " in note for note in trace.origin.notes)


def test_zero_output_tokens_are_an_empty_answer(written):
    trace = read_trace(written(f"{HEADER}0,5,0\n"))
    assert trace.output_tokens.tolist() == [1]
    assert any("empty answer" in note for note in trace.origin.notes)


def test_whole_floats_are_whole_numbers(written):
    assert read_trace(written(f"{HEADER}0.5,128.0,7.0\n")).prompt_tokens.tolist() == [128]


def test_columns_of_ones_own(written):
    text = "when,asked,said,who\n1500,10,2,a\n2500,20,3,b\n"
    trace = read_trace(
        written(text),
        columns={"arrival": "when", "prompt": "asked", "output": "said", "id": "who"},
        time_unit="ms",
    )
    assert trace.arrival_s.tolist() == [1.5, 2.5]
    assert trace.names().tolist() == ["a", "b"]
    with pytest.raises(InputError, match="no column 'whom'"):
        read_trace(written(text), columns={"prompt": "whom"})
    with pytest.raises(InputError, match="no role"):
        read_trace(written(text), columns={"question": "asked"})


def test_plain_names_are_understood_and_said(written):
    trace = read_trace(written("Request ID;start_time_ms;Input Tokens;output_tokens\na;1500;10;2\n"))
    assert (trace.arrival_s.tolist(), trace.prompt_tokens.tolist(), trace.names().tolist()) == (
        [1.5],
        [10],
        ["a"],
    )
    assert any("columns understood by their names: id=Request ID" in note for note in trace.origin.notes)


def test_columns_of_json_rows(written):
    trace = read_trace(
        written('{"when": 1500, "asked": 10, "said": 2}\n'),
        columns={"arrival": "when", "prompt": "asked", "output": "said"},
        time_unit="ms",
    )
    assert (trace.arrival_s.tolist(), trace.prompt_tokens.tolist()) == ([1.5], [10])


def test_a_limit_stops_reading(data, written):
    assert len(read_trace(data("traces/azure-2023/AzureLLMInferenceTrace_conv.csv"), limit=10)) == 10
    assert len(read_trace(data("traces/mooncake/conversation_trace.jsonl"), limit=10)) == 10
    assert len(read_trace(written(f"{HEADER}0,5,1\n0,6,1\nbad\n"), limit=2)) == 2


# -- where bytes come from ------------------------------------------------------------------------------------


def compressed(data: bytes, how: str) -> bytes:
    if how == "gzip":
        return gzip.compress(data[:40]) + gzip.compress(data[40:])  # two members, as `cat a.gz b.gz` gives
    return pa.Codec("zstd").compress(data, asbytes=True)


@pytest.mark.parametrize("how", ["gzip", "zstd"])
@pytest.mark.parametrize("name", ["azure-2023/AzureLLMInferenceTrace_code.csv", "mooncake/synthetic_trace.jsonl"])
def test_compressed_files_are_unpacked_by_content(data, written, how, name):
    plain = data(f"traces/{name}")
    trace = read_trace(written(compressed(plain.read_bytes(), how)))
    assert (trace.prompt_tokens == read_trace(plain).prompt_tokens).all()


def test_a_cut_off_gzip_is_refused(data, written):
    packed = gzip.compress(data("traces/mooncake/synthetic_trace.jsonl").read_bytes())
    with pytest.raises(InputError, match="damaged gzip"):
        read_trace(written(packed[: len(packed) // 2]))


def test_standard_input(monkeypatch):
    class Stdin:
        buffer = io.BytesIO(f"{HEADER}0,5,1\n".encode())

    monkeypatch.setattr(sys, "stdin", Stdin)
    trace = read_trace("-")
    assert (trace.origin.path, len(trace)) == ("<stdin>", 1)


def test_a_named_pipe(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    feeder = threading.Thread(target=lambda: pipe.write_text(f"{HEADER}0,5,1\n0,bad,1\n"))
    feeder.start()
    trace = read_trace(pipe, on_bad_row="skip")  # read twice: fast, then row by row
    feeder.join()
    assert (len(trace), trace.origin.bad_rows) == (1, 1)


def test_folders_devices_and_missing_files_are_refused(tmp_path):
    for path in (tmp_path, "/dev/zero", tmp_path / "missing", "a\0b"):
        with pytest.raises(InputError):
            read_trace(path)


def test_a_text_dataset_is_counted_by_the_given_tokenizer(written, tmp_path):
    tokenizers = pytest.importorskip("tokenizers")
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel({"one": 0, "two": 1, "[UNK]": 2}, unk_token="[UNK]"))
    words.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    words.save(str(tmp_path / "tokenizer.json"))
    path = written('{"prompt": "one two one two one"}\n')
    assert read_trace(path, tokenizer=str(tmp_path)).prompt_tokens.tolist() == [5]
    assert read_trace(path).prompt_tokens.tolist() == [5]  # 19 characters, four a token
    with pytest.raises(InputError, match="no tokenizer"):
        read_trace(path, tokenizer=str(tmp_path / "missing"))
