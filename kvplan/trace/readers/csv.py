"""CSV: block by block through Arrow where rows are well formed, row by row with line numbers where not."""

from __future__ import annotations

import contextlib
import re
from array import array
from collections.abc import Iterator, Sequence
from typing import Any

from kvplan.errors import InputError
from kvplan.trace.builder import TraceBuilder
from kvplan.trace.clock import Clock, epoch_unit
from kvplan.trace.readers.csv_columns import ColumnParser, NotWellFormedError
from kvplan.trace.readers.delimited import Block, block_rows, blocks, csv_header, csv_rows, delimiter, field_count
from kvplan.trace.readers.tables import TableFormat
from kvplan.trace.rows import LEAST, small, tokens
from kvplan.trace.source import Source

_SEPARATORS = str.maketrans("|,;", "   ")


def read_csv(source: Source, table: TableFormat, builder: TraceBuilder, unit: str | None) -> None:
    """Add every row of ``source`` to ``builder``. ``unit`` overrides the format's own."""
    builder.rebase = table.rebase
    builder.zero_output_failed = table.zero_output_failed
    builder.sessions_share = table.sessions_share
    if table.note:
        builder.note(table.note)
    header = csv_header(source)
    first = ""
    if "arrival" in table.columns:
        first = _first_cell(source, header, table.columns["arrival"])
        epoch = None if unit else _epoch_of(first)
        unit = unit or epoch or table.unit
        moments = ", moments since 1970" if epoch else ""
        builder.note(f"time: {table.columns['arrival']!r} in {unit}{moments}, or ISO 8601 dates")
    roles = {role: name for role, name in table.columns.items() if name in header}
    clock = Clock(unit or table.unit, roles.get("arrival", "arrival"))
    parser = ColumnParser(header, roles, delimiter(source), clock)
    simple = len(set(header)) == len(header) and "hash_ids" not in roles
    for block in blocks(source):
        if builder.full:
            return
        with contextlib.suppress(NotWellFormedError, InputError):
            if not simple:
                raise NotWellFormedError
            if "arrival" in roles and clock.is_date is None:
                clock.begin(first)
            arrival, prompt, output, extra = parser.columns(block)
            builder.extend(arrival, prompt, output, **extra)
            continue
        _read_slowly(block, source, header, roles, clock, builder)


def _first_cell(source: Source, header: list[str], column: str) -> str:
    """What the first row has in a column; empty where that row is none."""
    _, first = next(csv_rows(source), (0, []))
    if isinstance(first, InputError) or len(first) != len(header):
        return ""
    return first[header.index(column)]


def _epoch_of(cell: str) -> str | None:
    try:
        return epoch_unit(float(cell))
    except ValueError:
        return None


def _read_slowly(
    block: Block, source: Source, header: list[str], roles: dict[str, str], clock: Clock, builder: TraceBuilder
) -> None:
    place = {role: header.index(name) for role, name in roles.items()}
    for line, cells in block_rows(block, source, len(header)):
        if builder.full:
            return
        try:
            if isinstance(cells, InputError):
                raise cells
            if len(cells) != len(header):
                raise field_count(len(cells), len(header))
            _add_row(cells, place, roles, clock, builder)
        except InputError as error:
            builder.bad.add(line, error)


def _add_row(
    cells: list[str], place: dict[str, int], roles: dict[str, str], clock: Clock, builder: TraceBuilder
) -> None:
    extra: dict[str, Any] = {
        role: small(cells[place[role]], roles[role], least) for role, least in LEAST.items() if role in place
    }
    # The lengths first: a clock takes its zero from the first row that is whole.
    prompt = tokens(cells[place["prompt"]], roles["prompt"])
    output = tokens(cells[place["output"]], roles["output"]) if "output" in place else None
    builder.add(
        clock.seconds(cells[place["arrival"]]) if "arrival" in place else None,
        prompt,
        output,
        name=cells[place["id"]] if "id" in place else None,
        session=cells[place["session"]] if "session" in place else None,
        ids=_block_ids(cells[place["hash_ids"]]) if "hash_ids" in place else (),
        **extra,
    )


def _block_ids(cell: str) -> Sequence[int]:
    """Ids of a cell like ``11|22`` or ``[11, 22]``; nothing in it is evaluated.

    Raises:
        InputError: a part is no number; without a place.
    """
    text = cell.strip().strip("[]()").translate(_SEPARATORS)
    try:
        if len(text) < 1 << 16:
            return [int(part[:40]) for part in text.split()]
        return _long_ids(text)
    except ValueError:
        raise InputError("holds something that is no block id", field="hash_ids", value=cell[:60]) from None


def _long_ids(text: str) -> Sequence[int]:
    """As numbers of 8 bytes where that is enough: texts and Python's numbers take a hundred a part."""

    def numbers() -> Iterator[int]:
        return (int(part[0][:40]) for part in re.finditer(r"\S+", text))

    try:
        return array("q", numbers())
    except OverflowError:
        return list(numbers())
