"""Delimited text as rows and as blocks of whole lines, with the numbers of the lines."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from dataclasses import dataclass
from typing import IO

import numpy as np

from kvplan.errors import InputError
from kvplan.trace.source import Source

_BLOCK_BYTES = 1 << 18
"""What Python makes of the rows of a block takes many times its bytes."""
_OPEN_BYTES = 4 << 20
"""How far an open quote reaches at most; the csv module takes 128 KiB a field."""
_SPARE_FIELDS = 1 << 12
"""Fields beyond the header's that a row may have before it is refused uncut, to be told of with its others."""


@dataclass(frozen=True)
class Block:
    """Whole rows: the bytes, and the 1-based number of the first line."""

    line: int
    data: bytes


def delimiter(source: Source) -> str:
    """What separates the columns: a comma, or a tab or semicolon where the first line has no comma."""
    first = source.head.split(b"\n", 1)[0]
    return "," if b"," in first else "\t" if b"\t" in first else ";" if b";" in first else ","


def csv_header(source: Source) -> list[str]:
    """The names of the columns, as the csv module reads the first line."""
    first = source.head.split(b"\n", 1)[0].decode("utf-8", "replace").removeprefix("\ufeff").rstrip("\r")
    try:
        return [name.strip() for name in next(csv.reader([first], delimiter=delimiter(source)), [])]
    except csv.Error as error:
        raise InputError(f"is no CSV header: {error}", source=source.name, line=1) from None


def blocks(source: Source) -> Iterator[Block]:
    """The rows below the header in blocks of about ``_BLOCK_BYTES``; no row, quoted or not, spans two of them.

    Unless an open quote takes in more than ``_OPEN_BYTES``: there a block ends with the last line.
    """
    line, rest = 2, bytearray()  # grows in place: a line of any length is held once
    with source.stream() as stream:
        rest += _without_first_line(stream)
        searched = 0
        while chunk := stream.read(_BLOCK_BYTES):
            rest += chunk
            last = rest.rfind(b"\n", searched) + 1
            searched = len(rest)
            if not last:
                continue
            end = last if rest.count(b'"', 0, last) % 2 == 0 else _last_whole(rest)
            if not end and last > _OPEN_BYTES:
                end = last
            if end:
                block = Block(line, bytes(memoryview(rest)[:end]))
                del rest[:end]
                searched = 0
                line += block.data.count(b"\n")
                yield block
    if rest:
        block = Block(line, bytes(rest))
        rest.clear()
        yield block


def _last_whole(data: bytearray) -> int:
    """Where the last line ends that does so outside of quotes; 0 where there is none."""
    characters = np.frombuffer(data, np.uint8)
    within = np.logical_xor.accumulate(characters == ord('"'))
    ends = np.flatnonzero((characters == ord("\n")) & ~within)
    return int(ends[-1]) + 1 if len(ends) else 0


def _without_first_line(stream: IO[bytes]) -> bytes:
    """What was read with the end of the first line, less that line."""
    while block := stream.read(1 << 16):
        _, newline, rest = block.partition(b"\n")
        if newline:
            return rest
    return b""


def block_rows(block: Block, source: Source, columns: int) -> Iterator[tuple[int, list[str] | InputError]]:
    """(line, cells) of each row of a block, blank ones left out; an InputError for what is no row of ``columns``."""
    return _rows(_block_lines(block, source), delimiter(source), columns, block.line)


def _block_lines(block: Block, source: Source) -> Iterator[tuple[int, str]]:
    """One after the other: as a list, short lines take ten times their bytes."""
    data = memoryview(block.data)
    at, line = 0, block.line
    while at < len(data):
        end = block.data.find(b"\n", at)
        end = len(data) if end < 0 else end
        yield line, source.text(data[at:end], line)
        at, line = end + 1, line + 1


def csv_rows(source: Source) -> Iterator[tuple[int, list[str] | InputError]]:
    """(line, cells) of each row below the header, blank ones left out; an InputError for what is no row."""
    lines = source.lines()
    next(lines, None)
    return _rows(lines, delimiter(source), len(csv_header(source)), 2)


def _rows(
    lines: Iterator[tuple[int, str]], separator: str, columns: int, first: int
) -> Iterator[tuple[int, list[str] | InputError]]:
    numbered = _Lines(lines, separator, columns, first)
    reader = csv.reader(numbered, delimiter=separator)
    while True:
        begun = numbered.begin_row()
        try:
            cells = next(reader, None)
        except csv.Error as error:
            yield begun, InputError(f"is not CSV: {error}")
            continue
        except _TooManyFieldsError as error:
            yield begun, field_count(error.fields, columns)
            continue
        if cells is None:
            return
        if cells:
            yield begun, cells


def field_count(fields: int, columns: int) -> InputError:
    """What to say of a row that has more or fewer fields than the header has columns."""
    return InputError(f"has {fields} fields, the header {columns}")


class _TooManyFieldsError(Exception):
    def __init__(self, fields: int) -> None:
        self.fields = fields


class _Lines(Iterator[str]):
    """Lines for the csv module, which makes a text of every field: a row of absurdly many is refused before that."""

    def __init__(self, lines: Iterator[tuple[int, str]], separator: str, columns: int, first: int) -> None:
        self._lines = lines
        self._separator = separator
        self._most = columns + _SPARE_FIELDS
        self._line = first - 1
        self.begin_row()

    def begin_row(self) -> int:
        """The number of the line with which the next row begins."""
        self._fields = 1
        self._quoted = self._newline_due = False
        return self._line + 1

    def __next__(self) -> str:
        if self._newline_due:  # of its own: a second copy of a long line would take four bytes a character
            self._newline_due = False
            return "\n"
        self._line, text = next(self._lines)
        self._count(text)
        if self._fields > self._most:
            raise _TooManyFieldsError(self._fields)
        self._newline_due = self._quoted
        return text

    def _count(self, text: str) -> None:
        """Add the fields that the csv module would make of one more line of the row."""
        if not self._quoted and '"' not in text:
            self._fields += text.count(self._separator)
            return
        at = 0
        while True:
            if self._quoted or text.startswith('"', at):
                at = _closing_quote(text, at if self._quoted else at + 1)
                self._quoted = at < 0
                if self._quoted:
                    return
            at = text.find(self._separator, at) + 1
            if not at:
                return
            self._fields += 1


def _closing_quote(text: str, at: int) -> int:
    """Where the quoted text that goes on at ``at`` has its last quote; -1 where it is not on this line."""
    while (at := text.find('"', at)) >= 0 and text.startswith('"', at + 1):
        at += 2  # two stand for one
    return at
