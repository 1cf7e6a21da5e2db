"""A Parquet file's row groups by its footer and its pages by their own headers, which Arrow goes by whatever that says.

Arrow's own ``metadata.row_group(i).column(j)`` ends the process where statistics do not fit (seen in 26.0.1, for a
single wrong bit): an exception of C++ that nothing there catches. So the footer is read here, as parquet.thrift has
``FileMetaData``.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import dataclass
from typing import IO, Any

from kvplan.trace.readers.thrift import struct

_UNPACKED, _PACKED, _DATA, _DATA_V2 = 2, 3, 5, 8
"""Numbers of PageHeader's fields: bytes of the page, and a struct for each kind of data page."""
_VALUES = 1
"""Number of the field of either struct that says how many values there are, nulls included."""
_HEADER_BYTES, _LONGEST_HEADER = 1 << 8, 1 << 24
"""How much is read of a header at first, and at most (as Arrow does): it may hold the longest value."""
_ROW_GROUPS, _COLUMNS, _ROWS, _METADATA = 4, 1, 3, 3
"""Of FileMetaData, of RowGroup (two), of ColumnChunk."""
_CHUNK_VALUES, _CHUNK_UNPACKED, _CHUNK_PACKED, _CHUNK_DATA, _CHUNK_DICTIONARY = 5, 6, 7, 9, 11
"""Of ColumnMetaData."""


@dataclass(frozen=True)
class Chunk:
    """A column of a row group: its values, nulls included, bytes unpacked and packed, and where its pages begin."""

    values: int
    unpacked: int
    packed: int
    begin: int


@dataclass(frozen=True)
class RowGroup:
    """``columns``: one a leaf of the schema, in its order."""

    rows: int
    columns: tuple[Chunk, ...]


@dataclass(frozen=True)
class Page:
    """One page: how many values a data page holds (0: another kind), and the bytes it unpacks to."""

    values: int
    unpacked: int


def footer_bytes(file: IO[bytes]) -> int:
    """How long the footer is, as the file's end says; 0 where the file is too short to say."""
    size = file.seek(0, io.SEEK_END)
    file.seek(max(0, size - 8))
    return int.from_bytes(file.read(8)[:4], "little") if size >= 12 else 0


def row_groups(file: IO[bytes]) -> list[RowGroup]:
    """The row groups by the footer.

    Raises:
        ValueError: it is none.
    """
    length = footer_bytes(file)
    file.seek(-8 - length, io.SEEK_END)
    try:
        footer, _ = struct(file.read(length), 0, lists=True)
    except IndexError:
        raise ValueError("the footer has no end") from None
    groups = footer.get(_ROW_GROUPS, [])
    return [RowGroup(_count(group, _ROWS), tuple(map(_chunk, group[_COLUMNS]))) for group in _structs(groups, _COLUMNS)]


def _chunk(column: Any) -> Chunk:
    if not isinstance(column, dict) or not isinstance(about := column.get(_METADATA), dict):
        raise ValueError("the footer has a column of no kind")
    begin, dictionary = _count(about, _CHUNK_DATA), about.get(_CHUNK_DICTIONARY)
    if isinstance(dictionary, int) and 0 < dictionary < begin:
        begin = dictionary
    values, unpacked, packed = (_count(about, field) for field in (_CHUNK_VALUES, _CHUNK_UNPACKED, _CHUNK_PACKED))
    return Chunk(values, unpacked, packed, begin)


def _structs(items: Any, needed: int) -> list[dict[int, Any]]:
    """A list of structs that each have a list in the field ``needed``."""
    good = isinstance(items, list) and all(
        isinstance(item, dict) and isinstance(item.get(needed), list) for item in items
    )
    if not good:
        raise ValueError("the footer has a row group without columns")
    return list(items)


def pages(file: IO[bytes], chunk: Chunk) -> Iterator[Page]:
    """The pages of a column of a row group.

    Raises:
        ValueError: a header that is none.
    """
    at, end = chunk.begin, chunk.begin + chunk.packed
    while at < end:
        header, length = _header(file, at)
        data = header.get(_DATA) or header.get(_DATA_V2) or {_VALUES: 0}
        if not isinstance(data, dict):
            raise ValueError("a page's header has no values")
        yield Page(_count(data, _VALUES), _count(header, _UNPACKED))
        at += length + _count(header, _PACKED)


def _count(fields: dict[int, Any], number: int) -> int:
    count = fields.get(number)
    if not isinstance(count, int) or count < 0:
        raise ValueError("a page's header or the footer has no sizes")
    return count


def _header(file: IO[bytes], at: int) -> tuple[dict[int, Any], int]:
    """The fields of the header that begins ``at`` a byte of the file, and its length."""
    size = _HEADER_BYTES
    while True:
        file.seek(at)
        data = file.read(size)
        try:
            return struct(data, 0)
        except IndexError:
            if len(data) < size or size >= _LONGEST_HEADER:
                raise ValueError("a page's header has no end") from None
        size *= 8
