"""The JSON values of a file one after another: JSON Lines, one document, several in a row, or a long array.

Nothing but the value at hand is kept, so that a file larger than memory can be read where its values are
small.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

from kvplan.errors import InputError
from kvplan.trace.source import Source

Value = dict[str, Any] | InputError
"""A JSON object, or why this line holds none."""

_SPACE = " \t\r\n"
_LOOKED_AT = 20
_JOINED = 4096
"""Lines at once: a document may have a number a line, and a text takes 50 bytes beyond its characters."""


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


class _ShortNumbers(dict[str, int]):
    """Numbers of few digits, each made once: Python makes an object of 32 bytes of every 300 it reads."""

    def __missing__(self, text: str) -> int:
        number = int(text)
        if len(text) < 5:
            self[text] = number
        return number


_LONG = 1 << 20
"""Characters from which on a value's numbers are made once: a dictionary is asked for each, which takes time."""

_SHORT_NUMBERS: Callable[[str], int] = _ShortNumbers().__getitem__  # eleven thousand of them at most
_DECODER = json.JSONDecoder(parse_constant=_no_constant)
_DECODER_OF_LONG = json.JSONDecoder(parse_constant=_no_constant, parse_int=_SHORT_NUMBERS)


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
    for line in text.split("\n", _LOOKED_AT)[:_LOOKED_AT]:
        try:
            if isinstance(json.loads(line), dict):
                return True
        except (ValueError, RecursionError):
            continue
    return False


def _from_lines(source: Source) -> Iterator[tuple[int, Any]]:
    for line, text in source.lines():
        if not text.strip(_SPACE):
            continue
        try:
            parse_int = None if len(text) < _LONG else _SHORT_NUMBERS
            value = json.loads(text, parse_constant=_no_constant, parse_int=parse_int)
            del text  # it may be as long as the file
            yield line, value
        except json.JSONDecodeError as error:
            yield line, InputError(f"is not JSON: {error.msg}", column=error.colno)
        except RecursionError:
            yield line, InputError("is nested too deeply")
        except ValueError as error:  # NaN, or a number of thousands of digits
            yield line, InputError(f"is not JSON: {error}")


class _Window:
    """A moving window over the text of a document that knows its line."""

    def __init__(self, source: Source) -> None:
        self.text = ""
        self.at = 0
        self.line = 1
        self._source = source
        self._parts = source.lines()
        self._more = True

    def extend(self) -> bool:
        """Append at least as much text as there is; False at the end of the file."""
        wanted = max(1 << 16, len(self.text) - self.at)
        longer: list[str] = []
        parts: list[str] = []
        while self._more and wanted > 0:
            part = next(self._parts, None)
            if part is None:
                self._more = False
                break
            parts.append(part[1] + "\n")
            wanted -= len(parts[-1])
            if len(parts) >= _JOINED:
                longer.append("".join(parts))
                parts.clear()
        more = "".join([*longer, *parts])
        self.text = self.text[self.at :] + more
        self.at = 0
        return bool(more)

    def advance(self, end: int) -> None:
        self.line += self.text.count("\n", self.at, end)
        self.at = end

    def next_character(self) -> str:
        """The next character that is not white space, not consumed; empty at the end of the file."""
        while True:
            end = self.at
            while end < len(self.text) and self.text[end] in _SPACE:
                end += 1
            self.advance(end)
            if end < len(self.text):
                return self.text[end]
            if not self.extend():
                return ""

    def value(self) -> Any:
        """Decode the value that begins here, reading on as far as it needs."""
        while True:
            try:
                decoder = _DECODER if len(self.text) < _LONG else _DECODER_OF_LONG
                value, end = decoder.raw_decode(self.text, self.at)
                if end < len(self.text) or isinstance(value, (dict, list)) or not self.extend():
                    self.advance(end)
                    return value
            except json.JSONDecodeError as error:
                if self.extend():
                    continue
                raise self._refusal(error) from None
            except RecursionError:
                raise InputError("is nested too deeply", source=self._source.name, line=self.line) from None
            except ValueError as error:
                raise InputError(f"is not JSON: {error}", source=self._source.name, line=self.line) from None

    def _refusal(self, error: json.JSONDecodeError) -> InputError:
        line = self.line + self.text.count("\n", self.at, error.pos)
        column = error.pos - self.text.rfind("\n", 0, error.pos)
        return InputError(f"is not JSON: {error.msg}", source=self._source.name, line=line, column=column)


def _from_document(source: Source) -> Iterator[tuple[int, Any]]:
    window = _Window(source)
    while character := window.next_character():
        if character != "[":
            line = window.line
            yield line, window.value()
            continue
        window.advance(window.at + 1)
        if window.next_character() == "]":
            window.advance(window.at + 1)
            continue
        while True:
            window.next_character()
            line = window.line
            yield line, window.value()
            separator = window.next_character()
            if separator not in (",", "]"):
                raise InputError("a JSON array lacks its end", source=source.name, line=window.line)
            window.advance(window.at + 1)
            if separator == "]":
                break
