"""Any file that people have becomes a ``Trace``, and says what was understood."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from kvplan.errors import InputError
from kvplan.trace.builder import TraceBuilder
from kvplan.trace.clock import check_unit
from kvplan.trace.detect import Kind, detect_kind
from kvplan.trace.json_formats import JSON_FORMATS, JsonFormat, json_format
from kvplan.trace.json_values import Value, json_values
from kvplan.trace.readers.tables import ROLES, TABLES, TableFormat, named_columns, table_format, unknown_header
from kvplan.trace.rows import BadRows, OnBadRow
from kvplan.trace.source import Source, open_source
from kvplan.trace.trace import Trace

_LOOKED_AT = 64
"""How many JSON values detection looks at."""


@dataclass(frozen=True)
class ReadOptions:
    """What a person may say about a file; None: found out and noted."""

    format: str | None = None
    time_unit: str | None = None
    columns: Mapping[str, str] = field(default_factory=dict)
    on_bad_row: OnBadRow = "error"
    limit: int | None = None
    output_tokens: int | None = None
    block_size: int | None = None
    tokenizer: str | None = None
    seed: int = 0


def format_names() -> tuple[str, ...]:
    """What ``--format`` takes."""
    return tuple(dict.fromkeys([*(table.name for table in TABLES), *(known.name for known in JSON_FORMATS)]))


def read_trace(
    path: str | os.PathLike[str],
    *,
    format: str | None = None,
    time_unit: str | None = None,
    columns: Mapping[str, str] | None = None,
    on_bad_row: OnBadRow = "error",
    limit: int | None = None,
    output_tokens: int | None = None,
    block_size: int | None = None,
    tokenizer: str | None = None,
    seed: int = 0,
) -> Trace:
    """Read a trace file of any known format; ``-`` is standard input; gzip and zstd are unpacked on the way.

    Args:
        format: one of ``format_names()`` instead of detection by content.
        time_unit: ``s``, ``ms``, ``us`` or ``ns`` instead of the format's own or the inferred one.
        columns: role -> column name for a table of one's own (roles: arrival, prompt, output, id, session, ...).
        on_bad_row: ``error`` refuses the file, ``skip`` and ``report`` leave such rows out and count them.
        limit: read only that many requests.
        output_tokens: for requests whose file does not say how long the answer is (256).
        block_size: tokens in a block of the file's hash ids, where it is known better than inferred.
        tokenizer: a tokenizer's folder, ``tokenizer.json`` or name, for files that hold text (else 4 characters a token).
        seed: for files that hold distributions instead of requests.

    Returns:
        The trace; ``origin.notes`` tells what was inferred.

    Raises:
        InputError: what is wrong, with file and line.
    """
    options = ReadOptions(
        format, time_unit, dict(columns or {}), on_bad_row, limit, output_tokens, block_size, tokenizer, seed
    )
    _check(options)
    with open_source(path) as source:
        return read_source(source, options)


def _check(options: ReadOptions) -> None:
    check_unit(options.time_unit)
    if options.format is not None and options.format not in format_names():
        raise InputError("is no format", field="format", value=options.format, hint=", ".join(format_names()))
    for name in ("limit", "output_tokens", "block_size"):
        value = getattr(options, name)
        if value is not None and value < 1:
            raise InputError("must be at least 1", field=name, value=value)
    for role in options.columns:
        if role not in ROLES:
            raise InputError("is no role of a column", field="columns", value=role, hint=", ".join(ROLES))


def read_source(source: Source, options: ReadOptions) -> Trace:
    """``read_trace`` for an open source."""
    if not source.head.strip():
        raise InputError("is empty", source=source.name, line=1)
    kind = detect_kind(source)
    if kind is Kind.JSON:
        return _read_json(source, options)
    return _read_csv(source, options)


def _builder(name: str, source: Source, options: ReadOptions) -> TraceBuilder:
    builder = TraceBuilder(
        name, BadRows(source.name, options.on_bad_row), assumed_output=options.output_tokens, limit=options.limit
    )
    builder.block_size = options.block_size
    return builder


# -- tables -----------------------------------------------------------------------------------------------------


def _read_csv(source: Source, options: ReadOptions) -> Trace:
    from kvplan.trace.readers.csv import csv_header, read_csv

    table = _table(csv_header(source), source, options)
    builder = _builder(table.name, source, options)
    read_csv(source, table, builder, options.time_unit)
    return builder.finish(source.name)


def _table(header: list[str], source: Source, options: ReadOptions) -> TableFormat:
    if options.columns:
        return named_columns(options.columns, header, source.name)
    if options.format is not None:
        named = [table for table in TABLES if table.name == options.format]
        if not named:
            raise InputError("is no table format", field="format", value=options.format, source=source.name, line=1)
        fitting = next((table for table in named if table.fits(header)), None)
        if fitting is None:
            raise unknown_header(header, source.name)
        return fitting
    table = table_format(header)
    if table is None:
        raise unknown_header(header, source.name)
    return table


# -- JSON -------------------------------------------------------------------------------------------------------


def _read_json(source: Source, options: ReadOptions) -> Trace:
    values = json_values(source)
    first = list(itertools.islice(values, _LOOKED_AT))
    sample = [value for _, value in first if isinstance(value, dict)]
    known = _json_format(sample, first, source, options)
    builder = _builder(known.name, source, options)
    reader = known.reader(builder, known.unit(sample, builder, options.time_unit), options)
    for line, value in _until_full(itertools.chain(first, values), builder):
        try:
            if isinstance(value, InputError):
                raise value
            reader.row(value, line)
        except InputError as error:
            builder.bad.add(line, error)
    return builder.finish(source.name, expected_block_size=known.block_size)


def _until_full(values: Iterator[tuple[int, Value]], builder: TraceBuilder) -> Iterator[tuple[int, Value]]:
    for item in values:
        if builder.full:
            return
        yield item


def _json_format(sample: list[dict[str, Any]], first: list[Any], source: Source, options: ReadOptions) -> JsonFormat:
    if options.format is not None:
        known = next((known for known in JSON_FORMATS if known.name == options.format), None)
        if known is None:
            raise InputError("is no JSON format", field="format", value=options.format, source=source.name, line=1)
        return known
    if not sample:
        line, error = next(((line, value) for line, value in first if isinstance(value, InputError)), (1, None))
        message = error.message if error else "holds no JSON object"
        raise InputError(message, source=source.name, line=line, column=error.column if error else None)
    known = json_format(sample)
    if known is None:
        keys = ", ".join(list(sample[0])[:12])
        raise InputError("is JSON of no known format", value=keys, source=source.name, line=first[0][0], hint="see --format")
    return known
