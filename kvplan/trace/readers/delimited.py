"""Delimited text as rows and as blocks of whole lines, with the numbers of the lines."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from dataclasses import dataclass

from kvplan.errors import InputError
from kvplan.trace.source import Source

_BLOCK_BYTES = 1 << 18


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
    """The rows below the header in blocks of about a MiB; no row, quoted or not, spans two of them."""
    line, rest, quotes = 2, b"", 0
    with source.stream() as stream:
        rest = _without_first_line(stream)
        while chunk := stream.read(_BLOCK_BYTES):
            rest += chunk
            end = rest.rfind(b"\n") + 1
            quotes = rest.count(b'"', 0, end) if b'"' in rest else 0
            if end and quotes % 2 == 0:  # an odd number: the last line break may stand within quotes
                yield Block(line, rest[:end])
                line += rest.count(b"\n", 0, end)
                rest = rest[end:]
    if rest:
        yield Block(line, rest)


def _without_first_line(stream: object) -> bytes:
    read = stream.read  # type: ignore[attr-defined]
    start = b""
    while b"\n" not in start:
        more = read(1 << 16)
        if not more:
            return b""
        start += more
    return start.split(b"\n", 1)[1]


def block_rows(block: Block, source: Source) -> Iterator[tuple[int, list[str] | InputError]]:
    """(line, cells) of each row of a block, blank ones left out; an InputError for what is no CSV."""
    texts = block.data.split(b"\n")
    if not texts[-1]:
        texts.pop()
    numbered = enumerate(texts, block.line)
    return _rows(((line, source.text(raw, line)) for line, raw in numbered), delimiter(source), block.line)


def csv_rows(source: Source) -> Iterator[tuple[int, list[str] | InputError]]:
    """(line, cells) of each row of the whole file, the header first, blank ones left out."""
    rows = _rows(source.lines(), delimiter(source), 1)
    first = next(rows, (1, []))
    yield first[0], first[1] if isinstance(first[1], InputError) else [name.strip() for name in first[1]]
    yield from rows


def _rows(lines: Iterator[tuple[int, str]], separator: str, first: int) -> Iterator[tuple[int, list[str] | InputError]]:
    at = first - 1

    def texts() -> Iterator[str]:
        nonlocal at
        for number, text in lines:
            at = number
            yield text + "\n"

    reader = csv.reader(texts(), delimiter=separator)
    while True:
        begun = at + 1
        try:
            cells = next(reader, None)
        except csv.Error as error:
            yield begun, InputError(f"is not CSV: {error}")
            continue
        if cells is None:
            return
        if cells:
            yield begun, cells
