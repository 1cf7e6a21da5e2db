"""Thrift's compact protocol, as far as Parquet's footers and page headers need it."""

from __future__ import annotations

from typing import Any

_DEEPEST = 16


def struct(data: bytes, at: int, *, lists: bool = False, depth: int = 0) -> tuple[dict[int, Any], int]:
    """The fields by number of the struct that begins ``at`` a byte, and where it ends.

    Whole numbers, structs as such dictionaries, and lists of them where ``lists`` are wanted; None stands for what is
    neither. A boolean is left out.

    Raises:
        IndexError: ``data`` ends before the struct does.
        ValueError: it is none.
    """
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
        fields[number], at = _value(data, at, head & 15, lists, depth)
    return fields, at + 1


def _value(data: bytes, at: int, kind: int, lists: bool, depth: int) -> tuple[Any, int]:
    """A value and where it ends."""
    if depth > _DEEPEST:
        raise ValueError("a struct is nested too deep")
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
        items = []
        for _ in range(count):
            item, at = _value(data, at, inner, lists, depth + 1)
            if lists:
                items.append(item)
        return items if lists else None, at
    if kind == 12:
        return struct(data, at, lists=lists, depth=depth + 1)
    raise ValueError("a struct has a field of no known type")


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
