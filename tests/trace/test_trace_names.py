"""Names as numbers and as text, few of them and many: what a dictionary and a list would say."""

from __future__ import annotations

import itertools
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvplan.trace import Trace, hash_numbers, name_numbers
from kvplan.trace.builder import TraceBuilder
from kvplan.trace.name_numbers import NameNumbers
from kvplan.trace.names import Names
from kvplan.trace.rows import BadRows

NAMES = st.one_of(
    st.text(max_size=3),
    st.integers(-2, 2),
    st.sampled_from(
        [1.0, 2.5, True, -1, -2, 2**61 - 1, 2**61, 0, 2**64, "1", "\ud800", ("prefix", 1), ("prefix", "1")]
    ),
)


@given(st.lists(NAMES, max_size=60), st.integers(0, 8))
def test_numbers_are_those_of_a_dictionary(names, few):
    known, expected = {}, []
    for name in names:
        expected.append(known.setdefault(name, len(known)))
    with patch.object(name_numbers, "FEW", few), patch.object(hash_numbers, "LEAST_PLACES", 4):
        numbers = NameNumbers()
        assert [numbers.number(name) for name in names] == expected
        assert len(numbers) == len(known)
        assert [numbers.find(name) for name in names] == expected
        assert numbers.find("not there") == -1
        assert [numbers.number(name) for name in names] == expected


def test_many_names_keep_their_numbers_as_the_table_grows():
    numbers = NameNumbers()
    names = [f"session {n}" for n in range(3 * name_numbers.FEW)]
    assert list(map(numbers.number, names)) == list(range(len(names)))
    assert list(map(numbers.number, reversed(names))) == list(range(len(names)))[::-1]


@given(st.lists(st.one_of(st.none(), st.lists(st.none() | st.text(max_size=20), max_size=5))), st.randoms())
def test_names_are_those_of_a_list(parts, random):
    names, expected = Names(), []
    for part in parts:
        told = [None] * 3 if part is None else part
        names.extend(part, len(told))
        expected += told
    rows = range(len(expected))
    texts = [
        str(row) if name is None else name.encode("utf-8", "replace").decode() for row, name in enumerate(expected)
    ]
    chosen = np.array(sorted(random.sample(rows, random.randint(0, len(rows)))), np.int32)
    every = names.taken(None)
    if all(part is None for part in parts):
        assert every is None
    else:
        assert every.tolist() == texts
        names = Names()
        for name in expected:
            names.append(name)
        taken = names.taken(chosen)
        assert taken is chosen or taken.tolist() == [texts[row] for row in chosen]


@pytest.mark.parametrize("kind", [object, np.dtypes.StringDType()])
def test_a_trace_takes_names_as_objects_and_as_text(kind):
    names = np.array(["a", "a name of more than fifteen bytes", "ä"], kind)
    trace = Trace(np.zeros(3), np.ones(3, int), np.ones(3, int), request_id=names)
    assert trace.request_id.dtype == names.dtype
    assert trace.names().tolist() == names.tolist()
    assert trace.names().dtype == object
    assert [trace.name(row) for row in range(3)] == names.tolist()
    assert trace.take(np.array([0, 2])).names().tolist() == ["a", "ä"]


@pytest.mark.parametrize("kind", [np.int32, np.int64])
def test_a_trace_takes_numbers_for_names(kind):
    trace = Trace(np.zeros(2), np.ones(2, int), np.ones(2, int), request_id=np.array([7, 3], kind))
    assert trace.names().tolist() == ["7", "3"]


def test_rows_that_fail_leave_no_session_behind():
    """Readers count on it: the number of a session that was never added is not given away."""
    builder = TraceBuilder("x", BadRows("x", "skip"))
    for session, prompt in zip("abab", (5, 2**31, 6, 7), strict=True):
        if prompt < 2**31:
            builder.add(0.0, prompt, 1, session=session)
        else:
            with pytest.raises(Exception, match="is more than"):
                builder.add(0.0, prompt, 1, session=session)
    assert [builder.known_session(name) for name in "abc"] == [0, 1, -1]
    assert list(itertools.chain(builder.finish("x").session)) == [0, 0, 1]
