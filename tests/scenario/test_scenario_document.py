"""Text to values: what YAML surprises people with, what must be refused, and where it stood."""

from __future__ import annotations

import math

import pytest

from kvplan.errors import InputError
from kvplan.scenario.document import parse_document


def value(text: str) -> object:
    return parse_document(text.encode(), source="s.yaml").value


def refusal(text: str | bytes, *, is_json: bool = False) -> InputError:
    data = text.encode() if isinstance(text, str) else text
    with pytest.raises(InputError) as caught:
        parse_document(data, source="s.yaml", is_json=is_json)
    return caught.value


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1e-3", 0.001),  # YAML 1.1: a string
        ("no", "no"),  # YAML 1.1: False
        ("on", "on"),
        ("1:30", "1:30"),  # YAML 1.1: 90
        ("010", 10),  # YAML 1.1: 8
        ("0x10", 16),
        ("131_072", 131072),
        ("2024-01-01", "2024-01-01"),
        ("true", True),
        ("~", None),
        ("'32'", "32"),
        ('"null"', "null"),
        (".5", 0.5),
        ("-.inf", -math.inf),
        ("1.", 1.0),
        ("1.2.3", "1.2.3"),
        ("_1", "_1"),
        ("9" * 5000, "9" * 5000),
    ],
)
def test_scalars_follow_yaml_1_2(text: str, expected: object) -> None:
    found = value(f"a: {text}")
    assert found == {"a": expected}
    assert type(found["a"]) is type(expected)  # type: ignore[index]


def test_keys_are_text_and_bom_and_crlf_do_not_matter() -> None:
    assert parse_document("\ufeffa: 1\r\n0.5: 2\r\n".encode(), source="s").value == {"a": 1, "0.5": 2}


def test_json_with_tabs_escapes_and_characters_beyond_the_first_plane() -> None:
    text = '{\n\t"a\\/b": "\\ud83d\\ude00 \\t \\\\ud83d \\ud83d",\n\t"c": [1e-3, null]}'
    document = parse_document(text.encode(), source="s.json", is_json=True)
    assert document.value == {"a/b": "😀 \t \\ud83d \ufffd", "c": [0.001, None]}
    assert document.position(("c", 1)) == (3, 14)


def test_anchors_and_merges_are_understood_and_own_keys_win() -> None:
    text = "a: &x {b: 1, c: 2}\nd: {<<: *x, c: 3}\ne: *x\n"
    document = parse_document(text.encode(), source="s")
    assert document.value["d"] == {"b": 1, "c": 3}
    assert document.value["e"] == {"b": 1, "c": 2}
    assert document.position(("d", "c")) == (2, 16)
    assert document.position(("d", "b")) == (1, 11)


@pytest.mark.parametrize(
    ("text", "place", "words"),
    [
        ("a: 1\nb: {c: 1, c: 2}", (2, 11), "stands twice"),
        ("a: 1\na: 2", (2, 1), "stands twice"),
        ("a: [1, 2", (2, 1), "not YAML"),
        ("a: b: c", (1, 5), "not YAML"),
        ("a:\n\t- b", (2, 1), "not YAML"),
        ("--- 1\n--- 2", (2, 1), "not YAML"),
        ("a: !!python/object:os.system x", (1, 4), "tag"),
        ("a: &x [*x]", (1, 4), "contains itself"),
        ("? [1, 2]\n: 3", (1, 3), "key must be text"),
    ],
)
def test_refused_with_line_and_column(text: str, place: tuple[int, int], words: str) -> None:
    error = refusal(text)
    assert words in str(error)
    if error.line != place[0]:  # libyaml and the pure parser differ in the end of an unfinished list
        assert text.endswith("[1, 2")
    else:
        assert error.column == place[1]
    assert str(error).startswith(f"s.yaml:{error.line}:{error.column}: ")


def test_bad_bytes_and_bad_json_name_their_line() -> None:
    assert refusal(b"a: 1\nb: \xff").line == 2
    assert "control characters" in str(refusal(b"a: \x00"))
    error = refusal('{"a": 1,\n "b": }', is_json=True)
    assert (error.line, error.column) == (2, 7)


def test_a_bomb_of_aliases_is_refused_at_once() -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 12)]
    assert "aliases expand" in str(refusal("\n".join(lines)))


def test_deep_nesting_is_refused_not_a_crash() -> None:
    assert refusal("[" * 100_000 + "]" * 100_000)
    assert refusal("[" * 100_000 + "]" * 100_000, is_json=True)
    assert "deeply" in str(refusal("[" * 990 + "]" * 990))
