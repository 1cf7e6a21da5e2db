"""The JSON values of a file one after another: JSON Lines, one document, several in a row, or a long array.

Nothing but the value at hand is kept, so that a file larger than memory can be read where its values are small; a
large one stays text, of which its reader decodes what it needs (``LongObject``).
"""

from __future__ import annotations

import json
from codecs import BOM_UTF8
from collections.abc import Iterator
from typing import Any

from kvplan.errors import InputError
from kvplan.trace.json_text import UNFINISHED, JsonText
from kvplan.trace.json_window import DECODER
from kvplan.trace.long_json import checked_value, value_at
from kvplan.trace.source import HEAD_BYTES, Source

Value = dict[str, Any] | InputError
"""A JSON object, or why this line holds none."""

LONG = 1 << 18
"""Bytes of a line from which on it is not decoded at once."""

_SPACE = " \t\r\n"
_LOOKED_AT = 20


def json_values(source: Source) -> Iterator[tuple[int, Value]]:
    """(line, object) for every JSON object of ``source``; the elements of an outermost array one by one.

    In JSON Lines a broken line is given as an InputError in place of its value and reading goes on; a broken
    document raises it, since nobody can tell where the next value begins.
    """
    values = _from_lines(source) if _is_json_lines(source.head) else _from_document(source)
    for line, value in values:
        if isinstance(value, (dict, InputError)):
            yield line, value
        else:
            yield line, InputError("is not a JSON object", value=value)


def _is_json_lines(head: bytes) -> bool:
    text = head.decode("utf-8", "replace").lstrip("\ufeff" + _SPACE)
    if text.startswith("["):
        return False
    first, *others = text.split("\n", _LOOKED_AT)[:_LOOKED_AT]
    # A document with a request a line has lines that are objects, too: the last of a list has no comma behind it.
    return _is_object(first) or (any(map(_is_object, others)) and not _goes_on(text, len(head) >= HEAD_BYTES))


def _is_object(line: str) -> bool:
    try:
        return isinstance(json.loads(line), dict)
    except (ValueError, RecursionError):
        return False


def _goes_on(text: str, cut: bool) -> bool:
    """Whether the value that begins in the first line, but does not end there, is sound as far as ``text`` shows."""
    try:
        DECODER.raw_decode(text)
    except json.JSONDecodeError as error:
        return cut and (error.pos >= len(text.rstrip(_SPACE)) or error.msg.startswith("Unterminated string"))
    except (ValueError, RecursionError):
        return False
    return True


def _from_lines(source: Source) -> Iterator[tuple[int, Any]]:
    for line, raw in source.raw_lines():
        if len(raw) >= LONG:
            yield from _from_long_line(source, line, raw)
            continue
        text = source.text(raw, line)
        if not text.strip(_SPACE):
            continue
        try:
            yield line, DECODER.decode(text)
        except json.JSONDecodeError as error:
            yield line, InputError(f"is not JSON: {error.msg}", column=error.colno)
        except RecursionError:
            yield line, InputError("is nested too deeply")
        except ValueError as error:  # NaN, or a number of thousands of digits
            yield line, InputError(f"is not JSON: {error}")


def _from_long_line(source: Source, line: int, raw: bytes | bytearray) -> Iterator[tuple[int, Any]]:
    source.check_utf8(raw, line)
    text = JsonText(bytearray(raw) if isinstance(raw, bytes) else raw, line=line)
    del raw
    if line == 1 and text.data.startswith(BOM_UTF8):
        del text.data[: len(BOM_UTF8)]
    if text.after_blank(0) == len(text.data):
        return
    try:
        value, _ = value_at(text, text.check())
        del text
    except InputError as error:
        value = error
    yield line, value


def _from_document(source: Source) -> Iterator[tuple[int, Any]]:
    text = JsonText(bytearray(), source.blocks(), name=source.name)
    at = text.after_blank(0)
    in_list = False
    while in_list or at < len(text.data):
        if not in_list and text.data[at : at + 1] == b"[":
            at = text.after_blank(at + 1)
            in_list = text.data[at : at + 1] != b"]"
            if not in_list:
                at = text.after_blank(at + 1)
            continue
        found, at, in_list = _some(text, at, in_list)
        yield from found
        del found  # it may be as long as the file
        if at > len(text.data) // 2:
            text, at = text.rest(at), 0


def _some(text: JsonText, at: int, in_list: bool) -> tuple[list[tuple[int, Any]], int, bool]:
    """The next values with their lines, where what follows them begins, and whether a list is still open there."""
    if in_list:
        found, end, closed = text.rows(at)
    else:
        (found, end), closed = text.documents(at), True
    if not found:
        line, _ = text.line_and_column(at)
        value, end = checked_value(text, at)
        found = [(line, value)]
        if in_list:
            end, closed = text.after(end, b"[", UNFINISHED)
    return found, text.after_blank(end) if closed else end, not closed
