"""JSON's grammar without its values: whether a text is JSON, and which keys its object has, in no memory of its own."""

from __future__ import annotations

import json
import re
from collections.abc import Collection

_LONGEST_KEY = 256
"""Characters, escapes and all, of a key that is looked for."""

_DECODER = json.JSONDecoder()
_SPACE = re.compile(r"[ \t\n\r]*")
_NUMBERS = re.compile(r"(?:-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?[ \t\n\r]*,[ \t\n\r]*)*+")
"""Numbers of a list, each with the comma behind it."""

_STRING = re.compile(r'"(?:[^"\\\x00-\x1f]++|\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}))*+"')
_WORD = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?|true|false|null|NaN|-?Infinity")


def check_json(text: str, keys: Collection[str] = ()) -> dict[str, str]:
    """Go through all of ``text``.

    Args:
        keys: those to look for in the outermost object.

    Returns:
        the character that begins the value of each of ``keys`` that is there; nothing where the text is no object.

    Raises:
        json.JSONDecodeError: not JSON; what `json.loads` says of it.
        RecursionError: nested as deeply as Python's stack.
    """
    found: dict[str, str] = {}
    end = _after_space(text, _value(text, _after_space(text, 0), keys, found))
    if end != len(text):
        raise json.JSONDecodeError("Extra data", text, end)
    return found


def _after_space(text: str, at: int) -> int:
    found = _SPACE.match(text, at)
    assert found is not None, "it matches anything"
    return found.end()


def _value(text: str, at: int, keys: Collection[str] = (), found: dict[str, str] | None = None) -> int:
    """Where the value that begins at ``at`` ends."""
    first = text[at : at + 1]
    if first == '"':
        return _string(text, at)
    if first == "{":
        return _object(text, at + 1, keys, found)
    if first == "[":
        return _list(text, at + 1)
    word = _WORD.match(text, at)
    if word is None:
        raise json.JSONDecodeError("Expecting value", text, at)
    return word.end()


def _string(text: str, at: int) -> int:
    """Where the string that begins at ``at`` ends."""
    whole = _STRING.match(text, at)
    return _DECODER.raw_decode(text, at)[1] if whole is None else whole.end()  # it says what is wrong


def _object(text: str, at: int, keys: Collection[str], found: dict[str, str] | None) -> int:
    at = _after_space(text, at)
    if text[at : at + 1] == "}":
        return at + 1
    while True:
        if text[at : at + 1] != '"':
            raise json.JSONDecodeError("Expecting property name enclosed in double quotes", text, at)
        begin, end = at, _string(text, at)
        at = _after_space(text, end)
        if text[at : at + 1] != ":":
            raise json.JSONDecodeError("Expecting ':' delimiter", text, at)
        at = _after_space(text, at + 1)
        if found is not None and end - begin <= _LONGEST_KEY and (key := json.loads(text[begin:end])) in keys:
            found[key] = text[at : at + 1]
        at = _after_space(text, _value(text, at))
        if text[at : at + 1] == "}":
            return at + 1
        if text[at : at + 1] != ",":
            raise json.JSONDecodeError("Expecting ',' delimiter", text, at)
        at = _after_space(text, at + 1)


def _list(text: str, at: int) -> int:
    at = _after_space(text, at)
    if text[at : at + 1] == "]":
        return at + 1
    while True:
        numbers = _NUMBERS.match(text, at)
        assert numbers is not None, "it matches anything"
        at = _after_space(text, _value(text, numbers.end()))
        if text[at : at + 1] == "]":
            return at + 1
        if text[at : at + 1] != ",":
            raise json.JSONDecodeError("Expecting ',' delimiter", text, at)
        at = _after_space(text, at + 1)
