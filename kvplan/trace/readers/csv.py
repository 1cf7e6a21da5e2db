"""CSV: the whole file through Arrow where it is well formed, row by row with line numbers where it is not."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from typing import Any

import numpy as np

from kvplan.errors import InputError
from kvplan.trace.builder import TraceBuilder
from kvplan.trace.clock import EPOCH_S, PER_SECOND, Clock, epoch_unit
from kvplan.trace.readers.tables import TableFormat
from kvplan.trace.rows import LEAST, MAX_TOKENS, small, tokens
from kvplan.trace.source import Source
from kvplan.trace.trace import Doubles, Longs

_BLOCK_BYTES = 8 << 20


class _NotWellFormed(Exception):
    """The fast way cannot tell which line is at fault; the slow one can."""


def read_csv(source: Source, table: TableFormat, builder: TraceBuilder, unit: str | None) -> None:
    """Add every row of ``source`` to ``builder``. ``unit`` overrides the format's own."""
    builder.rebase = table.rebase
    builder.zero_output_failed = table.zero_output_failed
    builder.sessions_share = table.sessions_share
    if table.note:
        builder.note(table.note)
    if "arrival" in table.columns:
        epoch = None if unit else _first_epoch(source, table.columns["arrival"])
        unit = unit or epoch or table.unit
        moments = ", moments since 1970" if epoch else ""
        builder.note(f"time: {table.columns['arrival']!r} in {unit}{moments}, or ISO 8601 dates")
    unit = unit or table.unit
    try:
        for block in _fast_blocks(source, table, unit, builder.limit):
            builder.extend(*block[:3], **block[3])
    except _NotWellFormed:
        builder.clear()
        _read_slowly(source, table, builder, unit)


def _first_epoch(source: Source, column: str) -> str | None:
    """The unit of the first row's time, where that is a moment since 1970."""
    rows = csv_rows(source)
    _, header = next(rows)
    first = next(rows, (0, []))[1]
    if isinstance(header, InputError) or isinstance(first, InputError) or len(first) != len(header):
        return None
    try:
        return epoch_unit(float(first[header.index(column)]))
    except ValueError:
        return None


# -- the fast way
# ---------------------------------------------------------------------------------------------


def _fast_blocks(
    source: Source, table: TableFormat, unit: str, limit: int | None
) -> Iterator[tuple[Doubles | None, Longs, Longs | None, dict[str, Any]]]:
    import pyarrow as pa
    import pyarrow.csv as arrow

    header = csv_header(source)
    roles = {role: name for role, name in table.columns.items() if name in header}
    if len(set(header)) != len(header) or "hash_ids" in roles:
        raise _NotWellFormed
    types: dict[str, Any] = {roles[role]: pa.int64() for role in ("prompt", "output", *LEAST) if role in roles}
    types |= {roles[role]: pa.string() for role in ("arrival", "id", "session") if role in roles}
    try:
        with source.stream() as stream:
            reader = arrow.open_csv(
                stream,
                read_options=arrow.ReadOptions(block_size=_BLOCK_BYTES, column_names=header, skip_rows=1),
                parse_options=arrow.ParseOptions(delimiter=delimiter(source), newlines_in_values=False),
                convert_options=arrow.ConvertOptions(
                    column_types=types, include_columns=list(types), strings_can_be_null=False, null_values=[]
                ),
            )
            clock = _FastClock(unit)
            rows = 0
            for batch in reader:
                if limit is not None and rows + len(batch) > limit:
                    batch = batch.slice(0, limit - rows)
                rows += len(batch)
                yield _fast_columns(batch, roles, clock)
                if limit is not None and rows >= limit:
                    return
    except pa.ArrowException as error:
        raise _NotWellFormed from error


def _fast_columns(
    batch: Any, roles: dict[str, str], clock: _FastClock
) -> tuple[Doubles | None, Longs, Longs | None, dict[str, Any]]:
    def counts(role: str) -> Longs:
        values: Longs = batch.column(roles[role]).to_numpy(zero_copy_only=False)
        if len(values) and (values.min() < 0 or values.max() > MAX_TOKENS):
            raise _NotWellFormed
        return values

    arrival = clock.seconds(batch.column(roles["arrival"])) if "arrival" in roles else None
    extra: dict[str, Any] = {}
    for role in LEAST:
        if role in roles:
            extra[role] = values = batch.column(roles[role]).to_numpy(zero_copy_only=False)
            if len(values) and (values.min() < LEAST[role] or values.max() > MAX_TOKENS):
                raise _NotWellFormed
    extra |= {
        key: batch.column(roles[role]).to_pylist()
        for key, role in (("name", "id"), ("session", "session"))
        if role in roles
    }
    return arrival, counts("prompt"), counts("output") if "output" in roles else None, extra


class _FastClock:
    """``Clock`` for whole columns of text; refuses what only the slow way can judge."""

    def __init__(self, unit: str) -> None:
        self.per_second = PER_SECOND[unit]
        self.kind: Any = None
        self.base: Any = None

    def seconds(self, texts: Any) -> Doubles:
        import pyarrow as pa
        import pyarrow.compute as pc

        if self.kind is None:
            self.kind = next(
                (
                    kind
                    for kind in (pa.int64(), pa.float64(), pa.timestamp("ns"), pa.timestamp("ns", "UTC"))
                    if _casts(texts[:1], kind)
                ),
                None,
            )
            if self.kind is None:
                raise _NotWellFormed
        kind, per_second = self.kind, self.per_second
        if kind == pa.int64() and not _casts(texts, kind):
            if self.base:
                raise _NotWellFormed
            kind = self.kind = pa.float64()  # "5" then "5.25"
        values = pc.cast(texts, kind)
        if pa.types.is_timestamp(kind):
            values, per_second = values.cast(pa.int64()), PER_SECOND["ns"]
        readings = values.to_numpy(zero_copy_only=False)
        if self.base is None:
            is_epoch = pa.types.is_timestamp(kind) or abs(readings[0]) > EPOCH_S * per_second
            self.base = readings[0] if is_epoch else readings[0] * 0
        since: Doubles = (readings - self.base) / per_second
        if (
            not np.isfinite(since).all()
            or (not pa.types.is_timestamp(kind) and readings.min() < 0)
            or since.max() > 1e12
        ):
            raise _NotWellFormed
        return since


def _casts(texts: Any, kind: Any) -> bool:
    import pyarrow as pa
    import pyarrow.compute as pc

    try:
        pc.cast(texts, kind)
    except pa.ArrowException:
        return False
    return True


# -- the slow way
# ---------------------------------------------------------------------------------------------


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


def _read_slowly(source: Source, table: TableFormat, builder: TraceBuilder, unit: str) -> None:
    roles = dict(table.columns)
    clock = Clock(unit, roles.get("arrival", "arrival"))
    reader = csv_rows(source)
    _, header = next(reader)
    assert isinstance(header, list)
    place = {role: header.index(name) for role, name in roles.items() if name in header}
    for line, cells in reader:
        if builder.full:
            return
        try:
            if isinstance(cells, InputError):
                raise cells
            if len(cells) != len(header):
                raise InputError(f"has {len(cells)} fields, the header {len(header)}")
            _add_row(cells, place, roles, clock, builder)
        except InputError as error:
            builder.bad.add(line, error)


def _add_row(
    cells: list[str], place: dict[str, int], roles: dict[str, str], clock: Clock, builder: TraceBuilder
) -> None:
    extra: dict[str, Any] = {
        role: small(cells[place[role]], roles[role], least) for role, least in LEAST.items() if role in place
    }
    builder.add(
        clock.seconds(cells[place["arrival"]]) if "arrival" in place else None,
        tokens(cells[place["prompt"]], roles["prompt"]),
        tokens(cells[place["output"]], roles["output"]) if "output" in place else None,
        name=cells[place["id"]] if "id" in place else None,
        session=cells[place["session"]] if "session" in place else None,
        ids=_block_ids(cells[place["hash_ids"]]) if "hash_ids" in place else (),
        **extra,
    )


def _block_ids(cell: str) -> list[int]:
    """Ids of a cell like ``11|22`` or ``[11, 22]``; nothing in it is evaluated."""
    parts = cell.strip().strip("[]()").replace("|", " ").replace(",", " ").replace(";", " ").split()
    return [tokens_id(part) for part in parts]


def tokens_id(text: str) -> int:
    """A block id of a CSV cell.

    Raises:
        InputError: it is no number; without a place.
    """
    try:
        return int(text[:40])
    except ValueError:
        raise InputError("holds something that is no block id", field="block_hash_ids", value=text[:40]) from None


def csv_rows(source: Source) -> Iterator[tuple[int, list[str] | InputError]]:
    """(line, cells) of each row, the header first, blank ones left out; an InputError for what is no CSV."""
    lines = source.lines()
    at = 0

    def texts() -> Iterator[str]:
        nonlocal at
        for number, text in lines:
            at = number
            yield text + "\n"

    reader = csv.reader(texts(), delimiter=delimiter(source))
    while True:
        begun = at + 1
        try:
            cells = next(reader, None)
        except csv.Error as error:
            yield begun, InputError(f"is not CSV: {error}")
            continue
        if cells is None:
            return
        if begun == 1:
            cells = [name.strip() for name in cells]
        if cells or begun == 1:
            yield begun, cells
