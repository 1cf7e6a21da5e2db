"""A window on JSON text: a piece of it, decoded, and what can be told of it before the rest is seen."""

from __future__ import annotations

import json
import re
import sys
from json.decoder import WHITESPACE, scanstring  # type: ignore[attr-defined]  # the scanner in C
from typing import Any, NamedTuple

TOKEN = 16
"""Characters: more than ``-Infinity`` or an escape has. An error as near to a window's end may come of the cut."""
DEEP = 500
"""Levels that can be decoded whatever calls are open; of more it is tried, as Python stands about 1,000."""
SPARE = 50
"""Levels left to those who decode a checked value while more calls are open."""
BLANKS = " \t\r\n"
_HIGH_SURROGATE = re.compile(r"\\u[dD][89abAB]")


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


DECODER = json.JSONDecoder(parse_constant=_no_constant)
"""As ``json.loads``, without NaN and the infinities, which are not JSON."""
scan_once = DECODER.scan_once  # type: ignore[attr-defined]


class Window(NamedTuple):
    """A piece of the text, decoded.

    Args:
        text: the characters.
        begin: the byte at which it begins.
        plain: each character is one byte.
        last: nothing follows.
    """

    text: str
    begin: int
    plain: bool
    last: bool

    def place(self, index: int) -> int:
        """The byte at which the character ``index`` begins."""
        return self.begin + (index if self.plain else len(self.text[:index].encode("utf-8", "surrogatepass")))

    def cuts(self, error: json.JSONDecodeError) -> bool:
        """Whether the error may come of the window's end; a later window will tell."""
        in_string = error.msg.startswith("Unterminated string")
        return not self.last and (in_string or error.pos > len(self.text) - TOKEN)


def scalars(text: str) -> tuple[list[Any], int, bool]:
    """The elements at the beginning of ``text``, at once: (elements, where the next begins, whether the list ends).

    They are cut at a bracket or a comma. Where that stands within a text, the piece is no list and none are returned;
    nor are any where one of them may be a list or an object.
    """
    if text[:1] in ("", "[", "{", "]", ","):
        return [], 0, False
    end = text.find("]")
    closed = end >= 0
    end = end if closed else text.rfind(",")
    if end < 0 or "[" in text[:end] or "{" in text[:end]:
        return [], 0, False
    try:
        values = DECODER.decode(f"[{text[:end]}]")
    except (ValueError, RecursionError):
        return [], 0, False
    return values, end + 1, closed


def key_and_value(text: str, at: int) -> tuple[str, int]:
    """(key, where its value begins); raises JSONDecodeError."""
    if text[at : at + 1] != '"':
        raise json.JSONDecodeError("Expecting property name enclosed in double quotes", text, at)
    key, end = scanstring(text, at + 1, True)
    if text[end : end + 1] != ":":
        end = WHITESPACE.match(text, end).end()
        if text[end : end + 1] != ":":
            raise json.JSONDecodeError("Expecting ':' delimiter", text, end)
    return key, WHITESPACE.match(text, end + 1).end()


def most_levels() -> int:
    """How deep a value may be for sure, if others have ``SPARE`` calls more open than there are now."""
    for levels in range(sys.getrecursionlimit(), DEEP, -SPARE // 2):
        try:
            DECODER.decode("[" * levels + "]" * levels)
        except RecursionError:
            continue
        return levels - SPARE
    return DEEP - SPARE


def whole_escapes(text: str) -> int:
    """Where a piece of a string may end: within no escape, and not between the two of a surrogate pair."""
    last = next((at for at in range(len(text) - 1, len(text) - 13, -1) if _escapes(text, at)), None)
    if last is None:
        return len(text)
    cut = len(text) if last + (6 if text[last + 1 : last + 2] == "u" else 2) <= len(text) else last
    half = cut - 6
    return half if _HIGH_SURROGATE.match(text, half) and _escapes(text, half) else cut


def _escapes(text: str, at: int) -> bool:
    """Whether the character at ``at`` is a backslash that is not escaped itself."""
    return text[at] == "\\" and (at - len(text[:at].rstrip("\\"))) % 2 == 0
