"""JSON that stays text means what ``json.loads`` makes of it, at any window size, and is refused where that refuses."""

from __future__ import annotations

import itertools
import json
from unittest.mock import patch

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from kvplan.errors import InputError
from kvplan.trace.json_text import JsonText
from kvplan.trace.json_values import json_values
from kvplan.trace.json_window import DECODER
from kvplan.trace.long_json import LongList, LongObject, checked_value, is_list
from kvplan.trace.source import memory_source

RELAXED = settings(deadline=None)  # other processes may hold the machine
TEXTS = st.text(st.one_of(st.sampled_from('a"\\,:]}[{\n\u2028é\U0001f600\ud83d\ude00'), st.characters()), max_size=60)
NUMBERS = st.one_of(st.integers(), st.integers(0, 300), st.floats(allow_nan=False, allow_infinity=False))
VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), NUMBERS, TEXTS),
    lambda inner: st.one_of(
        st.lists(inner, max_size=30), st.lists(NUMBERS, max_size=60), st.dictionaries(TEXTS, inner, max_size=20)
    ),
    max_leaves=40,
)
WINDOWS = st.sampled_from([1, 2, 3, 5, 8, 13, 21, 40, 64, 100, 1000, 1 << 16])
BLOCKS = st.sampled_from([1, 7, 64, 1 << 20])


def whole(value):
    """What the lists and objects that stay text hold."""
    if is_list(value):
        return [whole(element) for element in value]
    if isinstance(value, dict):
        return {key: whole(inner) for key, inner in value.items()}
    return value


def long_value(raw, window, block=1 << 20):
    """Decoded a window at a time, of a file that comes in blocks."""
    blocks = (raw[at : at + block] for at in range(0, len(raw), block))
    with patch("kvplan.trace.json_text.WINDOW", window):
        text = JsonText(bytearray(), blocks)
        value, end = checked_value(text, text.after_blank(0))
        if text.after_blank(end) < len(text.data):
            raise InputError("is not JSON: Extra data", column=text.line_and_column(text.after_blank(end))[1])
        return whole(value)


@RELAXED
@given(VALUES, st.booleans(), st.sampled_from([None, 0, 2]), WINDOWS, BLOCKS)
@example([[]] * 40_000, True, None, 1 << 16, 1 << 20)
@example({"a": [{"b": "\U0001f600" * 30_000}, 1.5]}, False, None, 1 << 16, 1 << 20)
@example(["\\" * 70_000 + "\U0001f600" * 20_000], True, None, 1 << 16, 1 << 20)
def test_a_long_value_is_the_value(value, ascii_only, indent, window, block):
    text = json.dumps(value, ensure_ascii=ascii_only, indent=indent)
    got = long_value(text.encode("utf-8", "surrogatepass"), window, block)
    assert repr(got) == repr(json.loads(text))  # 1 is not 1.0, nor 0.0 -0.0


BREAKS = st.sampled_from(['"', ",", "]", "}", "{", "[", "1", "\\", "\t", "NaN", ":", " ", "\x01", "-", "e", ".", "tru"])


@RELAXED
@given(VALUES, st.sampled_from([None, 0]), st.data(), WINDOWS)
def test_what_json_refuses_is_refused_where_it_is(value, indent, data, window):
    text = json.dumps(value, indent=indent)
    at = data.draw(st.integers(0, len(text)))
    text = data.draw(
        st.sampled_from([text[:at], text[:at] + text[at + 1 :], text[:at] + data.draw(BREAKS) + text[at:]])
    )
    outcomes = []
    for read in (lambda: DECODER.decode(text), lambda: long_value(text.encode(), window)):
        try:
            outcomes.append(repr(read()))
        except json.JSONDecodeError as error:
            outcomes.append((f"is not JSON: {error.msg}", error.colno))
        except ValueError as error:  # NaN: where is not told
            outcomes.append((f"is not JSON: {error}", None))
        except InputError as error:
            outcomes.append((error.message, error.column))
    assert outcomes[0] == outcomes[1]


@pytest.mark.parametrize("window", [1, 64, 1 << 16])
@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[" * 5000 + "]" * 5000, "is nested too deeply"),
        ('{"a":' * 5000 + "1" + "}" * 5000, "is nested too deeply"),
        ("[" * 600 + "1," * 100_000 + "[" * 500 + "]" * 1100, "is nested too deeply"),
        ("[1, " + "9" * 5000 + "]", "is not JSON: Exceeds the limit"),
        ("[1, " + "9" * 100_000 + "]", "is not JSON: Exceeds the limit"),
        ("[1, -Infinity]", "is not JSON: -Infinity is not JSON"),
        ('["' + "a" * 100_000, "is not JSON: Unterminated string starting at"),
        ('["' + "a" * 100_000 + '\n"]', "is not JSON: Invalid control character at"),
        ('["' + "a" * 100_000 + '\\x"]', "is not JSON: Invalid \\escape"),
    ],
)
def test_what_no_decoder_stands(text, message, window):
    if window == 1 and len(text) > 50_000:
        text = text.replace("a" * 100_000, "a" * 1000).replace("1," * 100_000, "1," * 100)
    with pytest.raises(InputError) as caught:
        long_value(text.encode(), window)
    assert caught.value.message.startswith(message)


def test_as_deep_as_json_goes():
    text = "[" * 400 + "1," * 100_000 + "1" + "]" * 400
    assert repr(long_value(text.encode(), 1 << 16)) == repr(json.loads(text))


def long_list(elements):
    """A list that stays text: it is longer than the window."""
    text = JsonText(bytearray(json.dumps(elements).encode()))
    value, _ = checked_value(text, 0)
    assert isinstance(value, LongList)
    return value


ELEMENTS = [1, 2.5, "a" * 50, [], {}, [[3]], {"a": "b"}, None, *range(40)]


@RELAXED
@given(st.lists(st.sampled_from(ELEMENTS), max_size=60), st.integers(-70, 70), st.integers(-70, 70), WINDOWS)
def test_slices_are_those_of_a_list(elements, start, stop, window):
    elements = [*elements, "b" * (window + 10)]
    with patch("kvplan.trace.json_text.WINDOW", window):
        value = long_list(elements)
        assert len(value) == len(elements)
        for step in (1, 3, -2):
            assert whole(value[start:stop:step]) == elements[start:stop:step]
        for at in range(0, len(elements), 7):  # one after the other, as block ids are taken
            assert whole(value[at : at + 7]) == elements[at : at + 7]
        if -len(elements) <= start < len(elements):
            assert whole(value[start]) == elements[start]
        else:
            with pytest.raises(IndexError):
                value[start]


def test_an_object_is_asked_as_a_dictionary():
    raw = b'{"a": 1, "b": [1, 2], "a": {"c": null}, "\\u0061b": "x"}'
    with patch("kvplan.trace.json_text.WINDOW", 4):
        value, _ = checked_value(JsonText(bytearray(raw)), 0)
        assert isinstance(value, LongObject)
        assert whole(value) == json.loads(raw) == {"a": {"c": None}, "b": [1, 2], "ab": "x"}
        assert list(value) == list(value.keys()) == ["a", "b", "ab"]
        assert [whole(inner) for inner in value.values()] == [{"c": None}, [1, 2], "x"]
        assert [key in value for key in ("a", "c", 1)] == [True, False, False]
        assert (value.get("c", 5), value["ab"], len(value)) == (5, "x", 3)
        with pytest.raises(KeyError):
            value["c"]
        assert repr(value) == repr(json.loads(raw))
        empty, _ = checked_value(JsonText(bytearray(b"{   }")), 0)
        assert isinstance(empty, LongObject)
        assert (bool(empty), list(empty), len(empty), "a" in empty) == (False, [], 0, False)
        nothing, _ = checked_value(JsonText(bytearray(b"[   ]")), 0)
        assert isinstance(nothing, LongList)
        assert (bool(nothing), list(nothing), nothing[:5]) == (False, [], [])


def test_a_message_shows_the_beginning_of_a_long_list():
    numbers = list(range(100_000))
    assert str(InputError("no", value=long_list(numbers))) == str(InputError("no", value=numbers))


DOCUMENTS = {
    "array": lambda rows: json.dumps(rows),
    "pretty array": lambda rows: json.dumps(rows, indent=1),
    "lines": lambda rows: "\n".join(map(json.dumps, rows)),
    "in a row": lambda rows: "".join(map(json.dumps, rows)),
    "arrays in a row": lambda rows: "[]" + json.dumps(rows[:1]) + "\r\n[ ]" + json.dumps(rows[1:]),
    "with a mark": lambda rows: "\ufeff" + "\r\n".join(map(json.dumps, rows)),
}


@pytest.mark.parametrize("shape", DOCUMENTS)
@settings(RELAXED, max_examples=40)
@given(st.lists(st.dictionaries(TEXTS, VALUES, max_size=4), max_size=8), WINDOWS, st.sampled_from([1, 30, 1 << 18]))
def test_a_file_of_objects_is_those_objects(shape, rows, window, long):
    text = DOCUMENTS[shape](rows)
    with patch("kvplan.trace.json_text.WINDOW", window), patch("kvplan.trace.json_values.LONG", long):
        got = list(json_values(memory_source(text.encode())))
        assert repr([whole(value) for _, value in got]) == repr(json.loads(json.dumps(rows)))
        assert [line for line, _ in got] == sorted(line for line, _ in got)


@pytest.mark.parametrize("window", [3, 64, 1 << 16])
def test_each_value_knows_its_line_and_an_error_its_column(window):
    text = '[{"a": [1,\n2]},\n\n {"b": "é"}, {"c":\n1},\n{"d": "é", 5}]'
    lines = []
    with patch("kvplan.trace.json_text.WINDOW", window), pytest.raises(InputError) as caught:
        lines.extend(line for line, _ in json_values(memory_source(text.encode(), "x.json")))
    assert lines == [] or lines == [1, 4, 4]
    assert str(caught.value) == "x.json:6:12: is not JSON: Expecting property name enclosed in double quotes"


@pytest.mark.parametrize("cut", range(1, 20))
def test_a_byte_that_is_no_utf8_is_told_where_it_is(cut):
    """In a document and in a long line, wherever the blocks of the file end."""
    document = '[{"a":\n "é\U0001f600'.encode() + b'\xff"}]'
    line = '{"a": 1}\n{"b": "é\U0001f600'.encode() + b'\xff"}'
    with patch("kvplan.trace.source._BLOCK", cut), patch("kvplan.trace.json_values.LONG", 1):
        for raw, place in ((document, "2:9"), (line, "2:14")):
            with pytest.raises(InputError) as caught:
                list(json_values(memory_source(raw, "x")))
            assert str(caught.value) == f"x:{place}: is not UTF-8 text"


def test_the_rows_before_an_error_are_given():
    """``--limit`` reads the beginning of a file that is broken further on."""
    text = "[" + '{"a": 1}, ' * 5 + '{"a": }]'
    rows = json_values(memory_source(text.encode()))
    assert [value for _, value in itertools.islice(rows, 5)] == [{"a": 1}] * 5
    with pytest.raises(InputError, match="Expecting value"):
        next(rows)


def test_an_array_that_is_cut_off_says_so():
    with pytest.raises(InputError, match="a JSON array lacks its end"):
        list(json_values(memory_source(b'[{"a": 1}, {"a": 2}')))
