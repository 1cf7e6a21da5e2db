"""Block ids are walked in batches and kept in few bytes; what comes of them is what a plain loop says."""

from __future__ import annotations

import io
import itertools
import json
from contextlib import ExitStack
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvplan.errors import InputError
from kvplan.trace import read_trace
from kvplan.trace.block_ids import unchained_ids
from kvplan.trace.builder import TraceBuilder
from kvplan.trace.column import Column
from kvplan.trace.content import ContentBuilder, blocks_content, merged
from kvplan.trace.id_rows import BATCH, PackedIds, distinct, packed
from kvplan.trace.json_values import json_values
from kvplan.trace.readers.csv import _block_ids as cell_ids
from kvplan.trace.rows import BadRows
from kvplan.trace.source import memory_source
from kvplan.trace.trace import Content

HUGE = 1 << 40
COLUMNS = ("segment_ptr", "segment_source", "segment_start", "segment_tokens", "output_source")


def batches_of(size):
    """All modules that cut ids into batches cut them so small that tests cross many boundaries."""
    stack = ExitStack()
    for place in ("id_rows.BATCH", "content.BATCH", "builder.BATCH", "content.ROWS", "settle.ROWS", "trace.ROWS"):
        stack.enter_context(patch(f"kvplan.trace.{place}", size))
    return stack


def plain_content(prompts, rows, size, spaces, wanted):
    """(segments of each wanted row): the definition, id by id."""
    kept = [
        [each for at, each in enumerate(row) if at * size < prompt] for prompt, row in zip(prompts, rows, strict=True)
    ]
    seen = sorted({each for row in kept for each in row})
    if seen and seen[-1] >= HUGE:
        kept = [[seen.index(each) for each in row] for row in kept]
    content = []
    for row in wanted:
        segments = []
        for at, each in enumerate(kept[row]):
            count = min(size, prompts[row] - at * size)
            if at and each == kept[row][at - 1] + 1:
                segments[-1][2] += count
            else:
                segments.append([spaces[row], each * size, count])
        content.append([tuple(segment) for segment in segments])
    return content


def as_lists(content):
    columns = [getattr(content, name).tolist() for name in COLUMNS[1:4]]
    bounds = content.segment_ptr.tolist()
    segments = list(zip(*columns, strict=True))
    return [segments[begin:end] for begin, end in itertools.pairwise(bounds)]


def plain_unchained(rows, spaces):
    before = {}
    for space, row in zip(spaces, rows, strict=True):
        for at, each in enumerate(row):
            before.setdefault((space, each), set()).add(row[at - 1] if at else -1)
    return sum(len(different) > 1 for different in before.values())


IDS = st.one_of(st.integers(0, 4), st.integers(0, 60), st.integers(HUGE - 2, HUGE + 3), st.integers(0, (1 << 61) - 1))
FEW = st.integers(0, 12)
ROWS = st.lists(
    st.tuples(st.integers(0, 40), st.one_of(st.lists(FEW, max_size=9), st.lists(IDS, max_size=6)), st.integers(0, 2)),
    min_size=1,
    max_size=12,
)


@given(ROWS, st.integers(1, 9), st.integers(1, 7), st.booleans(), st.randoms(use_true_random=False))
def test_content_is_what_a_plain_loop_says(rows, size, batch, one_space, random):
    prompts, ids, spaces = map(list, zip(*rows, strict=True))
    if one_space:
        spaces = [0] * len(rows)
    wanted = random.sample(range(len(rows)), random.randint(1, len(rows)))
    flat = np.array([each for row in ids for each in row], np.int64)
    given_ = (np.array(prompts), np.array([len(row) for row in ids]), flat, size)
    with batches_of(batch):
        whole = blocks_content(*given_, spaces=None if one_space else np.array(spaces))
        some = blocks_content(*given_, spaces=np.array(spaces), rows=np.array(wanted))
    assert as_lists(whole) == plain_content(prompts, ids, size, spaces, range(len(rows)))
    assert as_lists(some) == plain_content(prompts, ids, size, spaces, wanted)
    assert as_lists(whole.take(np.array(wanted))) == as_lists(some)
    assert whole.covered_tokens().tolist() == [sum(count for _, _, count in row) for row in as_lists(whole)]
    assert all(getattr(whole, name).dtype in (np.int32, np.int64) for name in COLUMNS[1:4])
    assert all(getattr(whole, name).dtype == np.int64 for name in ("segment_ptr", "output_source"))
    assert whole.output_source.tolist() == [-1] * len(rows)


@given(ROWS, st.integers(1, 7), st.booleans())
def test_unchained_ids_are_counted_as_a_plain_loop_counts(rows, batch, one_space):
    _, ids, spaces = map(list, zip(*rows, strict=True))
    flat = np.array([each for row in ids for each in row], np.int64)
    lengths = np.array([len(row) for row in ids])
    with batches_of(batch):
        found = unchained_ids(lengths, flat, None if one_space else np.array(spaces))
    assert found == plain_unchained(ids, [0] * len(rows) if one_space else spaces)


@given(st.lists(st.lists(IDS, max_size=20), max_size=8), st.integers(1, 9))
def test_packed_ids_are_given_back_as_they_came(rows, batch):
    with batches_of(batch):
        builder = TraceBuilder("x", BadRows("x", "error"))
        for row in rows:
            builder.add(0.0, 1, 1, ids=row)
        told = builder._ids
        assert len(told) == sum(map(len, rows))
        assert told.whole().tolist() == [each for row in rows for each in row]
        values = [np.array(row, np.int64) for row in rows]
        assert distinct(values).tolist() == sorted({each for row in rows for each in row})


@pytest.mark.parametrize(
    ("most", "kind"), [(255, "uint8"), (256, "uint16"), (65536, "uint32"), (1 << 32, "int64"), (1 << 61, "int64")]
)
def test_ids_take_as_few_bytes_as_the_largest_needs(most, kind):
    from array import array

    ids = PackedIds()
    ids.extend([array("q", [0, most])])
    ids.extend([packed(array("q", [1] * BATCH))])
    assert ids.whole().dtype == kind


@given(st.lists(st.tuples(st.sampled_from(["ids", "history", "nothing"]), st.integers(1, 30)), min_size=1, max_size=9))
def test_content_told_in_two_ways_is_joined_row_by_row(rows):
    first, second = ContentBuilder(), ContentBuilder()
    for how, tokens in rows:
        first.add([(5, 0, tokens), (0, tokens, 2)] if how == "ids" else [])
        if how == "history":
            second.turn(0, tokens, 3, shared=tokens)
        else:
            second.add([])
    one, two = first.build(), second.build()
    shift = int(one.segment_source.max(initial=-1)) + 1
    moved = [[(source + shift, start, count) for source, start, count in row] for row in as_lists(two)]
    expected = [own + other for own, other in zip(as_lists(one), moved, strict=True)]
    outputs = [
        own if other < 0 else other + shift
        for own, other in zip(one.output_source.tolist(), two.output_source.tolist(), strict=True)
    ]
    both = merged([one, two])
    assert as_lists(both) == expected
    assert both.output_source.tolist() == outputs
    assert both.output_start is two.output_start


@pytest.mark.parametrize("huge", [1 << 31, 1 << 40])
def test_places_beyond_32_bits_are_kept(huge):
    one = blocks_content(np.array([8, 8]), np.array([2, 2]), np.array([0, 1, huge, 3]), 4)
    assert as_lists(one)[0] == [(0, 0, 8)]
    assert one.segment_start.dtype == (np.int64 if huge < 1 << 40 else np.int32)  # renumbered: 0, 1, 2, 3
    builder = ContentBuilder()
    builder.add([(huge, huge + 1, 5)], output_source=huge, output_start=huge)
    builder.add([(3, 0, 5)])
    two = builder.build()
    assert as_lists(two) == [[(huge, huge + 1, 5)], [(3, 0, 5)]]
    assert as_lists(merged([one, two]))[0] == [(0, 0, 8), (huge + 1, huge + 1, 5)]


@given(st.lists(st.integers(0, 30), min_size=1, max_size=20), st.randoms(use_true_random=False))
def test_taking_rows_copies_each_rows_segments(counts, random):
    pointer = np.append(0, np.cumsum(counts))
    columns = [np.arange(pointer[-1]) + shift for shift in (0, 1000, 2000)]
    content = Content(pointer, *columns, np.arange(len(counts)) - 1)
    rows = [random.randrange(len(counts)) for _ in range(random.randint(0, 30))]
    taken = content.take(np.array(rows, np.int64))
    whole = as_lists(content)
    assert as_lists(taken) == [whole[row] for row in rows]
    assert taken.output_source.tolist() == [row - 1 for row in rows]


@given(st.lists(st.one_of(st.integers(-1, 1), st.lists(st.integers(-1, 1), max_size=4), st.integers(2, 5)), max_size=9))
def test_a_column_is_there_where_something_differs(parts):
    column, expected = Column(-1), []
    for part in parts:
        if isinstance(part, list):
            column.extend(np.array(part, np.int64), len(part))
            expected += part
        elif part > 1:
            column.extend(None, part)
            expected += [-1] * part
        else:
            column.append(part)
            expected.append(part)
    taken = column.taken()
    assert (expected if set(expected) - {-1} else None) == (None if taken is None else taken.tolist())


ROW = st.fixed_dictionaries(
    {
        "timestamp": st.integers(0, 5),
        "input_length": st.integers(0, 40),
        "output_length": st.integers(0, 3),
        "hash_ids": st.lists(FEW, max_size=5) | st.lists(st.sampled_from([-1, "a", "b", 3, 1 << 62, HUGE]), max_size=5),
    }
)


@given(
    st.lists(ROW, min_size=1, max_size=8).filter(lambda rows: any(row["input_length"] for row in rows)),
    st.integers(1, 6),
)
def test_rows_out_of_order_keep_their_own_ids(tmp_path_factory, rows, batch):
    path = tmp_path_factory.mktemp("ids") / "trace.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    with batches_of(batch):
        trace = read_trace(path, format="mooncake", block_size=4)
    order = [at for at in sorted(range(len(rows)), key=lambda at: rows[at]["timestamp"]) if rows[at]["input_length"]]
    assert trace.prompt_tokens.tolist() == [rows[at]["input_length"] for at in order]
    assert [trace.name(at) for at in range(len(order))] == [str(at) for at in order]
    if trace.content is None:
        assert not any(row["hash_ids"] for row in rows)
        return
    names = {}
    numbers = []
    for row in rows:
        plain = all(isinstance(each, int) and 0 <= each < 1 << 61 for each in row["hash_ids"])
        numbers.append([each if plain else names.setdefault(each, (1 << 61) + len(names)) for each in row["hash_ids"]])
    prompts = [row["input_length"] for row in rows]
    assert as_lists(trace.content) == plain_content(prompts, numbers, 4, [0] * len(rows), order)


NUMBERS = [0, -1, -9999, 7, 300, 300, 9999, 12345, 1 << 70, 1.5, -0.0, 1e300]


@pytest.mark.parametrize("text", [json.dumps({"a": NUMBERS}), json.dumps([{"a": NUMBERS}] * 2, indent=0)])
def test_numbers_of_a_long_line_are_those_of_a_short_one(text):
    short = list(json_values(memory_source(text.encode())))
    with patch("kvplan.trace.json_values.LONG", 1), patch("kvplan.trace.json_text.WINDOW", 8):
        assert repr(list(json_values(memory_source(text.encode())))) == repr(short)
    assert short[0][1] == {"a": NUMBERS}


def test_a_long_line_of_broken_numbers_is_a_bad_row():
    text = b'{"a": [1, 2]}\n{"a": [NaN]}\n{"a": [' + b"9" * 5000 + b"]}\n"
    with patch("kvplan.trace.json_values.LONG", 1):
        values = [value for _, value in json_values(memory_source(text))]
    assert values[0] == {"a": [1, 2]}
    assert all(isinstance(value, InputError) for value in values[1:])


@pytest.mark.parametrize("separator", ["|", ", ", ";", "\u2003"])
@pytest.mark.parametrize(
    "ids", [[5, 6, 7], list(range(30_000)), [*range(30_000), -4], [*range(30_000), 1 << 70], [*range(30_000), "x"]]
)
def test_a_long_cell_of_ids_is_read_as_a_short_one(ids, separator):
    cell = f"[{separator.join(map(str, ids))}]"
    if "x" in ids:
        with pytest.raises(InputError, match="no block id"):
            cell_ids(cell)
    else:
        assert list(cell_ids(cell)) == ids


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
@pytest.mark.parametrize(
    "text", ["", "a", "a\n", "\n\n", "ab\r\ncde\nf", "\ufeffab\nc\n\nlong line\n", "a" * 50 + "\nb"]
)
def test_lines_do_not_depend_on_how_the_bytes_come(text, size):
    source = memory_source(text.encode())
    expected = list(source.lines())

    class Slow(io.BytesIO):
        def read(self, wanted=-1):
            return super().read(size)

    source._open = lambda: Slow(text.encode())
    assert list(source.lines()) == expected
    ends = text.removeprefix("\ufeff").replace("\r\n", "\n").split("\n")
    assert [line for _, line in expected] == (ends if ends[-1] else ends[:-1])
