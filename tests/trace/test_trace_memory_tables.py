"""Tables, scrapes, compression and Parquet: no bytes take more memory than ten times the file, or hang."""

from __future__ import annotations

import contextlib
import gzip
import io
import itertools

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvplan.errors import InputError
from kvplan.trace import inline_trace, read_trace
from kvplan.trace.read import ReadOptions, read_source
from kvplan.trace.readers import delimited, prometheus
from kvplan.trace.readers.parquet_pages import pages, row_groups
from kvplan.trace.source import memory_source
from kvplan.trace.unpacked import MOST_TIMES, SURELY, unpacked
from kvplan.trace.writers.tables import write_parquet
from tests.trace.test_trace_fuzz import check_growth, grown_kib, needs_proc

SIZE = 8 << 20
HEADER = "arrival,prompt,output\n"
ROUNDS = "session_id,round_idx,prefix_len,input_len,output_len,tool_wait_after_ms"
METRICS = "# TYPE vllm:a gauge\n"
PROMPT = "vllm:request_prompt_tokens"


def told(data: bytes, **options) -> str:
    """What is said of bytes that are refused."""
    with pytest.raises(InputError) as caught:
        read_source(memory_source(data), ReadOptions(**options))
    assert caught.value.line is not None
    return str(caught.value)


def buckets(name, count):
    return "".join(f'{name}_bucket{{le="{edge}"}} {edge + 1}\n' for edge in range(count))


DENSE = {
    "one quote": lambda: HEADER + '"' + "0,5,1\n" * (SIZE // 6),
    "commas": lambda: HEADER + "," * SIZE,
    "cells": lambda: HEADER + '"ab",' * (SIZE // 5),
    "cells of rows that go on": lambda: HEADER + '",ab,ab,ab,"\n' * (SIZE // 13),
    "a character of four bytes": lambda: HEADER + "0,5,1\n" + "x" * SIZE + "\U0001f600\r\n",
    "rounds of commas": lambda: ROUNDS + "\n" + "," * SIZE,
    "labels": lambda: METRICS + "".join(f'vllm:a{{x="{n}"}} 1\n' for n in range(SIZE // 20)),
    "samples": lambda: METRICS + "a 1\n" * (SIZE // 4) + f"{PROMPT}_count 1\n",
    "buckets": lambda: METRICS + buckets(PROMPT, SIZE // 50) + f"{PROMPT}_count 2e5\n{PROMPT}_sum 1e8\n",
    "a label's name": lambda: METRICS + f"{PROMPT}_bucket{{{'a' * SIZE}}} 1\n",
    "a label's value": lambda: METRICS + f'{PROMPT}_bucket{{le="{"x" * SIZE}\U0001f600"}} 1\n',
    "escapes": lambda: METRICS + PROMPT + '_bucket{le="' + "\\n" * (SIZE // 2) + '"} 1\n',
}


@needs_proc
@pytest.mark.parametrize("name", DENSE)
def test_dense_text_takes_less_than_ten_times_the_file(tmp_path, name):
    path = tmp_path / "dense"
    path.write_text(DENSE[name](), newline="")
    check_growth(path)


# -- rows of a table --------------------------------------------------------------------------------------------


def test_a_row_of_absurdly_many_fields_is_told_of_by_their_number():
    rows = "0,5,1\n" + "," * 1_000_000 + "\n0,6,1\n"
    assert "has 1000001 fields, the header 3" in told((HEADER + rows).encode())
    trace = read_source(memory_source((HEADER + rows).encode()), ReadOptions(on_bad_row="report"))
    assert trace.prompt_tokens.tolist() == [5, 6]
    assert trace.origin.bad_row_examples == ("line 3: has 1000001 fields, the header 3",)


@settings(max_examples=300, deadline=None)
@given(st.lists(st.text(alphabet='a",\n\r', max_size=12), max_size=6))
def test_fields_are_counted_as_the_csv_module_counts_them(lines):
    """A row of at most a thousand fields is refused with the number that it would have been cut into."""
    import csv

    texts = [line.replace("\r", "").replace("\n", "") for line in lines]
    expected = [len(row) for row in csv.reader(text + "\n" for text in texts) if row]
    numbered = delimited._Lines(iter(enumerate(texts, 1)), ",", 3, 1)
    reader, counted = csv.reader(numbered), []
    while numbered.begin_row() and (row := next(reader, None)) is not None:
        if row:
            counted.append(numbered._fields)
            assert len(row) == numbered._fields
    assert counted == expected


@settings(max_examples=200, deadline=None)
@given(st.lists(st.sampled_from(['"', "\n", "ab,", 'c"d', "0,5,1\n", '"x\ny",1\n']), max_size=30), st.integers(1, 9))
def test_blocks_are_the_file_and_end_outside_of_quotes(parts, size):
    body = "".join(parts).encode()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(delimited, "_BLOCK_BYTES", size)
        found = list(delimited.blocks(memory_source(b"a,b,c\n" + body)))
    assert b"".join(block.data for block in found) == body
    line = 2
    for block in found:
        assert block.line == line
        line += block.data.count(b"\n")
    assert all(block.data.endswith(b"\n") and block.data.count(b'"') % 2 == 0 for block in found[:-1])


def test_an_open_quote_reaches_no_further_than_its_bound():
    rows = '0,5,1\n"' + "0,6,1\n" * 1_500_000
    found = list(delimited.blocks(memory_source((HEADER + rows).encode())))
    assert len(found) > 2
    assert max(len(block.data) for block in found) < 6 << 20
    assert b"".join(block.data for block in found) == rows.encode()


def test_an_open_quote_in_the_header_of_rounds_is_no_traceback():
    data = f'{ROUNDS},"x\n' + "1,1,1,1,1,1,1\n" * 30_000
    assert len(read_source(memory_source(data.encode()), ReadOptions())) == 30_000


# -- scrapes ----------------------------------------------------------------------------------------------------


def test_a_wrong_bucket_counts_only_where_its_histogram_is_asked_for():
    wrong = 'vllm:request_generation_tokens_bucket{le="x"} 1\n'
    assert "without a histogram of prompt lengths" in told((METRICS + wrong).encode())
    prompt = f'{PROMPT}_bucket{{le="9"}} 4\n{PROMPT}_count 4\n'
    assert "<memory>:2: le: is no bucket's edge (got 'x')" in told((METRICS + wrong + prompt).encode())


def test_labels_are_those_of_a_word_of_their_own():
    match = prometheus._SAMPLE.fullmatch('a{model="x=\\"le=\\"1",le="5",le="7"} 1')
    assert prometheus._labels(match, ("le",)) == {"le": "7"}


def test_a_client_of_many_windows_takes_the_lengths_of_the_last_before_each(tmp_path):
    path = tmp_path / "chunk-1-trace.csv"
    path.write_text("".join(f"{600 * n},0.01,,Gamma,1,\n" for n in range(60_000)))
    windows = (f'"{600 * n}":{{"input_tokens":"{{{n + 1}: 1}}","output_tokens":"{{1: 1}}"}}' for n in range(60_000))
    (tmp_path / "chunk-1-dataset.json").write_text("{" + ",".join(windows) + "}")
    trace = read_trace(path, limit=50_000)
    assert (trace.prompt_tokens == trace.arrival_s // 600 + 1).all()


@needs_proc
def test_a_client_of_many_windows_takes_less_than_ten_times_its_files(tmp_path):
    path = tmp_path / "chunk-1-dataset.json"
    windows = (f'"{600 * n}":{{"input_tokens":"{{1: 1}}","output_tokens":"{{1: 1}}"}}' for n in range(120_000))
    path.write_text("{" + ",".join(windows) + "}")
    (tmp_path / "chunk-1-trace.csv").write_text("0,0.01,,,,\n600,0.01,,,,\n")
    check_growth(path)


def test_of_windows_that_begin_together_the_last_counts(tmp_path):
    path = tmp_path / "chunk-1-trace.csv"
    path.write_text("0,1,,,,\n10,1,,,,\n20,1,,,,\n")
    window = '"{}":{{"input_tokens":"{{{}: 1}}","output_tokens":"{{1: 1}}"}}'.format
    empty = '"10":{"input_tokens":"{}","output_tokens":"{1: 1}"}'
    dataset = ",".join([window(20, 7), window(0, 5), window(10, 6), empty, window(20, 8)])
    (tmp_path / "chunk-1-dataset.json").write_text(f"{{{dataset}}}")
    trace = read_trace(path)
    assert set(zip((trace.arrival_s // 10 * 10).tolist(), trace.prompt_tokens.tolist(), strict=True)) == {
        (0.0, 5),
        (10.0, 5),  # its last word is that it knows nothing
        (20.0, 8),
    }


# -- compression ------------------------------------------------------------------------------------------------


def packed(parts, how):
    """Each part a gzip member or a zstd frame of its own."""
    pack = gzip.compress if how == "gzip" else lambda part: pa.Codec("zstd").compress(part, asbytes=True)
    return b"".join(map(pack, parts))


@pytest.mark.parametrize("how", ["gzip", "zstd"])
@pytest.mark.parametrize("parts", [1, 3])
def test_a_bomb_is_refused_at_its_bound(how, parts):
    within = packed([b"\0" * (SURELY // parts)] * parts, how)
    with memory_source(within).stream() as stream:
        assert len(stream.read()) == SURELY // parts * parts
    beyond = within + packed([b"\0\0"], how)
    message = told(packed([HEADER.encode(), b"0,5,1\n" * (SURELY // 6)], how))
    assert f"of {how} that unpack to more than {SURELY:,}" in message
    assert {"gzip": "gunzip", "zstd": "zstd -d"}[how] in message
    with pytest.raises(InputError, match="unpack to more"), memory_source(beyond).stream() as stream:
        stream.read()


def test_a_larger_file_may_unpack_to_64_times_itself():
    rest = np.random.default_rng(0).bytes(SURELY // MOST_TIMES + 4096)
    data = rest + b"\0" * SURELY
    with memory_source(packed([data], "gzip")).stream() as stream:
        assert stream.read() == data


@settings(max_examples=100, deadline=None)
@given(st.data(), st.sampled_from(["gzip", "zstd"]), st.integers(0, 4000), st.integers(1, 3))
def test_any_way_of_reading_gives_the_same_bytes_or_the_refusal(draw, how, length, parts):
    """With a bound of twice itself, but 1000 bytes at least: whatever is read before the bound is true."""
    data = bytes(itertools.islice(itertools.cycle(range(251)), length))
    at = sorted(draw.draw(st.integers(0, length)) for _ in range(parts - 1))
    whole = packed([data[a:b] for a, b in itertools.pairwise([0, *at, length])], how)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("kvplan.trace.unpacked.SURELY", 1000)
        patch.setattr("kvplan.trace.unpacked.MOST_TIMES", 2)
        most = max(1000, 2 * len(whole))
        stream, got, refused = unpacked(io.BytesIO(whole), how, len(whole), "x"), bytearray(), False
        assert not stream.seekable()
        try:
            while True:
                size = draw.draw(st.integers(1, 5000))
                how_to = draw.draw(st.sampled_from(["read", "read1", "readinto", "all"]))
                if how_to == "readinto":
                    room = bytearray(size)
                    block = bytes(room[: stream.readinto(room)])
                else:
                    block = stream.read() if how_to == "all" else getattr(stream, how_to)(size)
                if not block:
                    break
                got += block
        except InputError:
            refused = True
    assert refused == (length > most)
    assert bytes(got) == data[: len(got)]
    assert refused or len(got) == length


@needs_proc
@pytest.mark.parametrize("how", ["gzip", "zstd"])
def test_a_bomb_of_a_gigabyte_takes_what_its_bound_takes(tmp_path, how):
    path = tmp_path / "bomb"
    path.write_bytes(packed([HEADER.encode(), *[b"x" * (64 << 20)] * 16], how))
    assert grown_kib(path) < 5 * SURELY / 1024


# -- Parquet ----------------------------------------------------------------------------------------------------


def written_parquet(path, columns, **options):
    pq.write_table(pa.table(columns), path, **({"compression": "zstd", "write_statistics": False} | options))
    return path


def requests(rows):
    return {"arrival": pa.array(np.zeros(rows)), "prompt": pa.array(np.full(rows, 5)), "output": pa.array([1] * rows)}


def lists(pointers, values):
    return pa.ListArray.from_arrays(pa.array(np.array(pointers, np.int32)), values)


def repeated(text, rows):
    return pa.DictionaryArray.from_arrays(pa.array(np.zeros(rows, np.int32)), pa.array([text]))


MANY = 5_000_000
ONE_PAGE = {"use_dictionary": False, "data_page_size": 1 << 30, "max_rows_per_page": MANY, "row_group_size": MANY}
EXPANDING = {
    "rows": (lambda: requests(MANY), {}, f"holds {MANY:,} rows and 0 list entries"),
    "a page": (lambda: requests(MANY), ONE_PAGE, "unpacks to 40,000,"),
    "a list": (
        lambda: requests(1) | {"hash_ids": lists([0, MANY], pa.array(np.zeros(MANY, np.int64)))},
        {},
        f"has {MANY:,} list entries in one row group",
    ),
    "names": (
        lambda: requests(5000) | {"id": repeated("x" * (1 << 20), 5000)},
        {"store_schema": False},
        "bytes of rows, lists and names",
    ),
    "columns": (lambda: requests(1) | {f"c{n}": pa.array([1]) for n in range(10_000)}, {}, "has a footer of"),
}


@needs_proc
@pytest.mark.parametrize("name", EXPANDING)
def test_parquet_that_tells_more_than_it_bears_is_refused_with_the_numbers(tmp_path, name):
    columns, options, message = EXPANDING[name]
    path = written_parquet(tmp_path / "x.parquet", columns(), **options)
    with pytest.raises(InputError, match=message) as caught:
        read_trace(path)
    assert caught.value.line is not None
    assert caught.value.hint
    assert f"{path.stat().st_size:,}" in caught.value.message
    assert grown_kib(path) < max(10 * path.stat().st_size / 1024, 60 << 10)


def varint(number, width=0):
    """A whole number as Thrift writes it, padded to ``width`` bytes, which is as good."""
    number *= 2
    groups = max(width, -(-number.bit_length() // 7))
    return bytes((number >> 7 * at) & 127 | (128 if at < groups - 1 else 0) for at in range(groups))


@pytest.mark.parametrize(
    ("columns", "options", "true", "said", "message"),
    [
        (EXPANDING["a list"][0], {}, MANY, 5, "more values in column 'hash_ids' than its footer says"),
        (lambda: requests(MANY), ONE_PAGE, 8 * MANY, 1000, "'arrival' that unpacks to 40,000,0"),
    ],
    ids=["values", "bytes"],
)
def test_a_footer_that_lies_is_found_out_by_the_pages(tmp_path, columns, options, true, said, message):
    path = written_parquet(tmp_path / "x.parquet", columns(), **options)
    data = path.read_bytes()
    begin = len(data) - 8 - int.from_bytes(data[-8:-4], "little")
    footer = data[begin:]
    for number in range(true, true + 200):  # the levels and the page's header are some bytes more
        footer = footer.replace(varint(number), varint(said, len(varint(number))))
    assert footer != data[begin:]
    path.write_bytes(data[:begin] + footer)
    with pytest.raises(InputError, match=message):
        read_trace(path, limit=10)


def small_parquet():
    file = io.BytesIO()
    columns = requests(60) | {"id": pa.array(["ab"] * 60), "hash_ids": pa.array([[1, 2], [3]] * 30)}
    pq.write_table(pa.table(columns), file, row_group_size=25)
    return file.getvalue()


SMALL_PARQUET = small_parquet()


@settings(max_examples=400, deadline=None)
@given(st.lists(st.tuples(st.integers(4, len(SMALL_PARQUET) - 1), st.integers(0, 255)), min_size=1, max_size=4))
def test_damaged_parquet_is_a_trace_or_an_error_with_a_line(changes):
    data = bytearray(SMALL_PARQUET)
    for at, byte in changes:
        data[at] = byte
    try:
        trace = read_source(memory_source(bytes(data)), ReadOptions(on_bad_row="skip"))
    except InputError as error:
        assert error.line is not None or error.field == "columns"  # noqa: PT017 - a trace is as good an outcome
    else:
        assert len(trace)


@pytest.mark.parametrize("version", ["1.0", "2.0"])
def test_pages_hold_what_the_footer_says(tmp_path, version):
    path = written_parquet(
        tmp_path / "x.parquet", requests(30_000), data_page_version=version, data_page_size=4096, write_statistics=True
    )
    arrow = pq.ParquetFile(path).metadata
    with path.open("rb") as file:
        groups = row_groups(file)
        assert [group.rows for group in groups] == [arrow.row_group(at).num_rows for at in range(arrow.num_row_groups)]
        for at, chunk in enumerate(groups[0].columns):
            told = arrow.row_group(0).column(at)
            assert (chunk.values, chunk.unpacked) == (told.num_values, told.total_uncompressed_size)
            assert chunk.packed == told.total_compressed_size
            found = list(pages(file, chunk))
            assert sum(page.values for page in found) == 30_000
            assert len(found) > 2


def with_segments():
    """A trace of kvplan's own: its lists make Arrow write statistics of levels."""
    file = io.BytesIO()
    turns = [{"prompt": 5, "output": 1, "session": "a", "id": "x"}, {"prompt": 8, "output": 2, "session": "a"}]
    write_parquet(inline_trace(turns), file)
    return file.getvalue()


@pytest.mark.parametrize("bit", [1, 4])
def test_no_bit_of_a_parquet_file_ends_the_process(bit):
    """Arrow 26's own view of a column chunk does, where one makes a histogram of levels too long."""
    whole = with_segments()
    assert len(read_source(memory_source(whole), ReadOptions())) == 2
    for at in range(4, len(whole)):
        data = bytearray(whole)
        data[at] ^= bit
        with contextlib.suppress(InputError):
            assert len(read_source(memory_source(bytes(data)), ReadOptions(on_bad_row="skip")))


@needs_proc
def test_a_long_text_that_every_row_repeats_is_held_once(tmp_path):
    path = written_parquet(
        tmp_path / "x.parquet", requests(5000) | {"session": repeated("x" * (1 << 20), 5000)}, store_schema=False
    )
    assert grown_kib(path) < 60 << 10
    assert read_trace(path).session.tolist() == [0] * 5000


def test_a_limit_reads_the_first_rows_of_what_would_be_too_many(tmp_path):
    path = written_parquet(tmp_path / "x.parquet", requests(MANY))
    assert read_trace(path, limit=20_000).prompt_tokens.tolist() == [5] * 20_000


def test_lists_and_texts_of_parquet_are_read_as_they_are(tmp_path):
    columns = {
        "prompt": pa.array([32, 32, 16, 16]),
        "output": pa.array([1, None, 2, 3]),
        "request_id": pa.array(["a", None, "a", "c" * 2000]),
        "hash_ids": pa.array([["x", "y"], ["x", "y"], None, ["z"]]),
    }
    names = {"prompt": "prompt", "output": "output", "id": "request_id"}
    for texts in (columns["hash_ids"], pa.array([[7, 8], [7, 8], None, [9]], pa.list_(pa.uint16()))):
        trace = read_trace(written_parquet(tmp_path / "x.parquet", columns | {"hash_ids": texts}), columns=names)
        assert list(trace.names()) == ["a", "1", "a", "c" * 2000]
        assert trace.output_tokens.tolist() == [1, 256, 2, 3]
        source = trace.content.segment_source.tolist()
        pointer = trace.content.segment_ptr.tolist()
        assert source[pointer[0] : pointer[1]] == source[pointer[1] : pointer[2]]


@pytest.mark.parametrize(
    ("column", "message"),
    [
        ({"prompt": pa.array([[1, 2]])}, r"prompt: is not a number \(got {}\)"),
        ({"session": pa.array([[1]])}, "session: is not a name"),
        ({"hash_ids": pa.array([[1.5]])}, "hash_ids: is not a list"),
        ({"hash_ids": pa.array([[1, None]])}, "holds something that is no block id"),
    ],
    ids=["lengths", "sessions", "fractions", "nulls"],
)
def test_columns_of_another_kind_are_bad_rows(tmp_path, column, message):
    path = written_parquet(tmp_path / "x.parquet", requests(1) | column)
    with pytest.raises(InputError, match=message):
        read_trace(path)


def test_two_columns_of_one_name_are_refused(tmp_path):
    table = pa.table([pa.array([1]), pa.array([2]), pa.array([3])], names=["prompt", "prompt", "output"])
    pq.write_table(table, tmp_path / "x.parquet")
    with pytest.raises(InputError, match="is the name of two columns"):
        read_trace(tmp_path / "x.parquet")


def test_parquet_within_gzip(tmp_path):
    path = written_parquet(tmp_path / "x.parquet", requests(100))
    (tmp_path / "x.gz").write_bytes(gzip.compress(path.read_bytes()))
    assert len(read_trace(tmp_path / "x.gz")) == 100
    (tmp_path / "bomb.gz").write_bytes(gzip.compress(path.read_bytes() + b"\0" * SURELY))
    with pytest.raises(InputError, match="unpack to more than"):
        read_trace(tmp_path / "bomb.gz")
