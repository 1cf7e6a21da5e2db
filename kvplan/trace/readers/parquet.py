"""Parquet: the same columns as the tables, block ids as a list column, and kvplan's own with its content."""

from __future__ import annotations

import contextlib
import datetime as dt
import io
import shutil
from array import array
from collections.abc import Iterator, Sequence
from typing import Any

from kvplan.errors import InputError
from kvplan.trace.builder import TraceBuilder
from kvplan.trace.clock import Clock
from kvplan.trace.readers.fields import listed, plain
from kvplan.trace.readers.parquet_rows import DAMAGED, ParquetRows
from kvplan.trace.readers.tables import TableFormat
from kvplan.trace.rows import LEAST, small, tokens
from kvplan.trace.source import Source

SEGMENTS = ("segment_source", "segment_start", "segment_tokens")
OUTPUT = ("output_source", "output_start")


def parquet_header(source: Source) -> list[str]:
    """The names of the columns.

    Raises:
        InputError: the file is damaged.
    """
    with _opened(source) as file:
        return list(file.schema.names)


def read_parquet(source: Source, table: TableFormat, builder: TraceBuilder, unit: str | None) -> None:
    """Add every row; a row's number, from 1, stands for its line."""
    builder.rebase = table.rebase
    builder.zero_output_failed = table.zero_output_failed
    builder.sessions_share = table.sessions_share
    if table.note:
        builder.note(table.note)
    clock = Clock(unit or table.unit, table.columns.get("arrival", "arrival"))
    if "arrival" in table.columns:
        builder.note(f"time: {table.columns['arrival']!r}: timestamps, or numbers in {clock.unit}")
    import pyarrow as pa

    line = 0
    with _opened(source) as file:
        names = set(file.schema.names)
        stated = (file.schema.metadata or {}).get(b"block_size", b"")
        if builder.block_size is None and stated.isdigit() and 0 < int(stated[:9]) < 1 << 20:
            builder.block_size = int(stated[:9])
        roles = {role: name for role, name in table.columns.items() if name in names}
        plain_ones = [name for role, name in roles.items() if role != "hash_ids"]
        plain_ones += [name for name in OUTPUT if name in names]
        lists = [name for name in ("hash_ids", *SEGMENTS) if name in names and name not in plain_ones]
        try:
            for batch in file.batches(list(dict.fromkeys(plain_ones)), lists, roles.get("id"), builder.limit):
                for cells in zip(*batch.values(), strict=True):
                    line += 1
                    if builder.full:
                        return
                    try:
                        _add(dict(zip(batch, cells, strict=True)), roles, clock, builder)
                    except InputError as error:
                        builder.bad.add(line, error)
        except (pa.ArrowException, *DAMAGED) as error:
            raise InputError(f"is damaged Parquet: {_first_line(error)}", source=source.name, line=line + 1) from None


def _add(row: dict[str, Any], roles: dict[str, str], clock: Clock, builder: TraceBuilder) -> None:
    got = {role: row.get(name) for role, name in roles.items()}
    arrival = got.get("arrival")
    if isinstance(arrival, dt.datetime):  # pandas' Timestamp included: nanoseconds would be lost otherwise
        arrival = arrival.isoformat()
    segments = _segments(row, builder) if row.get(SEGMENTS[0]) is not None else None
    name = plain(got.get("id"), "id")
    builder.add(
        None if arrival is None else clock.seconds(arrival),
        tokens(got.get("prompt"), roles["prompt"]),
        None if got.get("output") is None else tokens(got["output"], roles["output"]),
        name=None if name is None else str(name),
        session=plain(got.get("session"), "session"),
        ids=_entries(row.get("hash_ids"), "hash_ids") if segments is None else (),
        segments=segments,
        output_content=None if segments is None else _output(row),
        **{role: small(got[role], role, least) for role, least in LEAST.items() if got.get(role) is not None},
    )


def _entries(cell: Any, field: str) -> Sequence[Any]:
    """A cell's list, of whole numbers or others; none is an empty one."""
    return cell if isinstance(cell, array) else listed(cell, field)


def _segments(row: dict[str, Any], builder: TraceBuilder) -> list[tuple[int, int, int]]:
    columns = [_entries(row.get(name), name) for name in SEGMENTS]
    if len({len(column) for column in columns}) != 1:
        raise InputError("have different lengths", field="segment_*")
    segments = []
    for source, start, count in zip(*columns, strict=True):
        if not all(isinstance(part, int) and 0 <= part < 1 << 62 for part in (source, start, count)):
            raise InputError("is no segment", field="segment_*", value=(source, start, count))
        segments.append((source, start, count))
    return segments


def _output(row: dict[str, Any]) -> tuple[int, int]:
    """(source, place in it) of the generated tokens; (-1, 0) where no other request can name them."""
    source, start = (row.get(name) for name in OUTPUT)
    if source is None or source == -1:
        return -1, 0
    start = 0 if start is None else start
    if not all(isinstance(part, int) and 0 <= part < 1 << 62 for part in (source, start)):
        raise InputError("is no place of an output", field="output_source", value=(source, start))
    return source, start


@contextlib.contextmanager
def _opened(source: Source) -> Iterator[ParquetRows]:
    """The file's rows, whatever its compression.

    Raises:
        InputError: its footer is damaged, or larger than any trace's.
    """
    import pyarrow as pa

    with source.stream() as raw:
        if source.compression is not None:  # a decompressor cannot seek
            memory = io.BytesIO()
            shutil.copyfileobj(raw, memory, 1 << 20)
            raw = memory
        try:
            rows = ParquetRows(raw, source)
        except (pa.ArrowException, *DAMAGED) as error:
            raise InputError(f"is damaged Parquet: {_first_line(error)}", source=source.name, line=1) from None
        yield rows


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:200]
