"""Long JSON values take less than ten times their text, however dense: as Python objects they take up to 70 times."""

from __future__ import annotations

import itertools
import json

import pytest

from kvplan.trace import read_trace
from tests.trace.test_trace_fuzz import check_growth, needs_proc

SIZE = 7 << 20  # more than ten times this are the 60 MiB that any file may take


def repeated(part, head, tail):
    """``head``, the part as often as it takes, ``tail``."""
    return head + part * ((SIZE - len(head)) // len(part)) + tail


def numbered(form, head, tail):
    """As ``repeated``, each part with a number of its own."""
    parts = itertools.takewhile(lambda part: part[0] < SIZE, ((n * len(form), form % n) for n in itertools.count()))
    return head + "".join(part for _, part in parts) + tail


ROW = '{"input_length": 1, "x": ['
SPANS = '{"resourceSpans": [{"scopeSpans": [{"spans": ['
RUN = '{"input_lens": [1], "output_lens": [1], "itls": ['
DENSE = {
    "lists in a row": lambda: repeated("[],", ROW, "1]}\n"),
    "objects in a row": lambda: repeated('{"":1},', ROW, "1]}\n"),
    "deep lists in a row": lambda: repeated("[" * 400 + "]" * 400 + ",", ROW, "1]}\n"),
    "lists in a pretty document": lambda: repeated("[],\n", '{"input_length": 1,\n"x": [\n', "1]}"),
    "keys of an object": lambda: numbered('"%x":1,', '{"input_length": 1, "x": {', '"":1}}'),
    "keys of a row": lambda: numbered('"%x":1,', "{", '"input_length": 1}'),
    "a text with one wide character": lambda: repeated("a", '{"prompt": "', '\U0001f600"}\n'),
    "latencies of a benchmark": lambda: repeated("[],", RUN, "[]]}"),
    "empty spans": lambda: repeated("{},", SPANS, '{"attributes": []}]}]}]}'),
    "JSON in a span's text": lambda: repeated("[],", '{"spans": [{"attributes": {"gen_ai.prompt": "[', '[]]"}}]}'),
    "requests of a session": lambda: repeated('{"t":0,"in":1,"out":1},', '{"block_size":16,"requests":[', "{}]}"),
    "rows of dense lists": lambda: repeated(ROW + "[]," * 20_000 + "1]}\n", "", ""),
}


@needs_proc
@pytest.mark.parametrize("name", DENSE)
def test_dense_json_takes_less_than_ten_times_the_file(tmp_path, name):
    path = tmp_path / "dense.json"
    path.write_text(DENSE[name](), encoding="utf-8")
    check_growth(path)


@needs_proc
@pytest.mark.parametrize("more", [{}, {"start_times": "1"}, {"request_rate": None}, {"errors": '""'}])
def test_a_benchmark_of_short_requests(tmp_path, more):
    """One byte and a comma a number; a rate stands once."""
    columns = {"input_lens": "1", "output_lens": "1", **more}
    rows = SIZE // sum(len(cell) + 1 for cell in columns.values() if cell)
    path = tmp_path / "run.json"
    told = (f'"{name}": ' + ("1" if cell is None else f"[{','.join([cell] * rows)}]") for name, cell in columns.items())
    path.write_text("{" + ", ".join(told) + "}")
    check_growth(path)


def test_a_long_result_reads_as_a_short_one(tmp_path):
    """Across the batches in which its requests are added: the errors, the bad rows and the arrivals."""
    count = 200_000
    document = {
        "input_lens": [n % 900 + 1 for n in range(count)],
        "output_lens": [n % 7 + 1 for n in range(count)],
        "start_times": [50 + n / 8 for n in range(count)],
        "errors": ["" if n != 70_000 else "gone" for n in range(count - 5)],
        "duration": 10,
    }
    document["input_lens"][150_000] = -1
    path = tmp_path / "run.json"
    path.write_text(json.dumps(document))
    trace = read_trace(path, on_bad_row="report")
    assert len(trace) == count - 2
    assert trace.origin.bad_row_examples == ("line 1: requests[150000].input_lens: is negative (got -1)",)
    kept = [n for n in range(count) if n not in (70_000, 150_000)]
    assert trace.arrival_s.tolist() == [n / 8 for n in kept]
    assert trace.prompt_tokens.tolist() == [document["input_lens"][n] for n in kept]
    assert trace.output_tokens.tolist() == [document["output_lens"][n] for n in kept]
    assert len(read_trace(path, on_bad_row="report", limit=65_600)) == 65_600
