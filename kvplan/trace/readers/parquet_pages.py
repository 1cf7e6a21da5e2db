"""The pages of a Parquet column by their own headers: what Arrow goes by, whatever the footer says.

A page's header stands before it, in Thrift's compact protocol (parquet.thrift, ``PageHeader``).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import IO, Any

_UNPACKED, _PACKED, _DATA, _DATA_V2 = 2, 3, 5, 8
"""Numbers of PageHeader's fields: bytes of the page, and a struct for each kind of data page."""
_VALUES = 1
"""Number of the field of either struct that says how many values there are, nulls included."""
_HEADER_BYTES, _LONGEST_HEADER = 1 << 8, 1 << 24
"""How much is read of a header at first, and at most (as Arrow does): it may hold the longest value."""
_DEEPEST = 8


@dataclass(frozen=True)
class Page:
    """One page: how many values a data page holds (0: another kind), and the bytes it unpacks to."""

    values: int
    unpacked: int


def pages(file: IO[bytes], column: Any) -> Iterator[Page]:
    """The pages of a column chunk, by its ``pyarrow.parquet.ColumnChunkMetaData``.

    Raises:
        ValueError: a header that is none.
    """
    at = column.data_page_offset
    dictionary = column.dictionary_page_offset
    if dictionary is not None and 0 < dictionary < at:
        at = dictionary
    end = at + column.total_compressed_size
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
        raise ValueError("a page's header has no sizes")
    return count


def _header(file: IO[bytes], at: int) -> tuple[dict[int, Any], int]:
    """The fields of the header that begins ``at`` a byte of the file, and its length."""
    size = _HEADER_BYTES
    while True:
        file.seek(at)
        data = file.read(size)
        try:
            return _struct(data, 0, 0)
        except IndexError:
            if len(data) < size or size >= _LONGEST_HEADER:
                raise ValueError("a page's header has no end") from None
        size *= 8


def _struct(data: bytes, at: int, depth: int) -> tuple[dict[int, Any], int]:
    """The fields of a struct by number, and where it ends; IndexError where ``data`` ends before."""
    fields: dict[int, Any] = {}
    number = 0
    while head := data[at]:
        at += 1
        if head >> 4:
            number += head >> 4
        else:
            number, at = _whole(data, at)
        if head & 15 in (1, 2):  # a boolean is its type
            continue
        fields[number], at = _value(data, at, head & 15, depth)
    return fields, at + 1


def _value(data: bytes, at: int, kind: int, depth: int) -> tuple[Any, int]:
    """A value and where it ends; None for what no page is judged by."""
    if depth > _DEEPEST:
        raise ValueError("a page's header is nested too deep")
    if kind in (1, 2, 3):  # within a list a boolean takes a byte
        return None, _within(data, at + 1)
    if kind in (4, 5, 6):
        return _whole(data, at)
    if kind == 7:
        return None, _within(data, at + 8)
    if kind == 8:
        length, at = _varint(data, at)
        return None, _within(data, at + length)
    if kind in (9, 10):
        count, inner = data[at] >> 4, data[at] & 15
        at += 1
        if count == 15:
            count, at = _varint(data, at)
        for _ in range(count):
            _, at = _value(data, at, inner, depth + 1)
        return None, at
    if kind == 12:
        return _struct(data, at, depth + 1)
    raise ValueError("a page's header has a field of no known type")


def _within(data: bytes, end: int) -> int:
    if end > len(data):
        raise IndexError
    return end


def _whole(data: bytes, at: int) -> tuple[int, int]:
    number, at = _varint(data, at)
    return number >> 1 ^ -(number & 1), at


def _varint(data: bytes, at: int) -> tuple[int, int]:
    number = shift = 0
    while True:
        byte = data[at]
        at += 1
        number |= (byte & 127) << shift
        if byte < 128:
            return number, at
        shift += 7
        if shift > 63:
            raise ValueError("a page's header has a number of no end")
