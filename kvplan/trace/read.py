"""Any file that people have becomes a ``Trace``, and says what was understood."""

from __future__ import annotations

import itertools
import os
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from kvplan.errors import InputError
from kvplan.trace.builder import TraceBuilder
from kvplan.trace.clock import check_unit
from kvplan.trace.detect import Kind, detect_kind
from kvplan.trace.facts import NoRequestsError
from kvplan.trace.json_formats import JSON_FORMATS, JsonFormat, RowReader, Setting, json_format
from kvplan.trace.json_values import Value, json_values
from kvplan.trace.long_json import LongObject
from kvplan.trace.readers.csv import read_csv
from kvplan.trace.readers.delimited import csv_header
from kvplan.trace.readers.engine_log import read_engine_log
from kvplan.trace.readers.parquet import parquet_header, read_parquet
from kvplan.trace.readers.prometheus import read_prometheus
from kvplan.trace.readers.servegen import is_dataset, read_client
from kvplan.trace.readers.side_files import side_file
from kvplan.trace.readers.tables import (
    ROLES,
    TABLES,
    TableFormat,
    named_columns,
    table_format,
    unknown_header,
)
from kvplan.trace.readers.tracelab_csv import COLUMNS as ROUNDS
from kvplan.trace.readers.tracelab_csv import read_rounds
from kvplan.trace.readers.yaml_requests import read_scenario
from kvplan.trace.rows import MAX_BLOCK_SIZE, MAX_TOKENS, BadRows, OnBadRow
from kvplan.trace.source import Source, open_source
from kvplan.trace.trace import Trace
from kvplan.trace.words import names

_LOOKED_AT = 64
_HELD = 16 << 20
"""How many JSON values detection looks at, and the bytes that those may take until they are read."""


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
    seed: int | None = None


SERIES = ("t", "running", "waiting", "kv_cache_pct")
"""Columns of the time series that LLMServingSim's real runs come with."""
_KIND_OF_FORMAT = {
    "prometheus": Kind.PROMETHEUS,
    "engine-log": Kind.ENGINE_LOG,
    "scenario": Kind.SCENARIO,
    "tracelab-csv": Kind.CSV,
}


def format_names() -> tuple[str, ...]:
    """What ``--format`` takes."""
    others = (*_KIND_OF_FORMAT, "servegen-client")
    return tuple(dict.fromkeys([*(table.name for table in TABLES), *(known.name for known in JSON_FORMATS), *others]))


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
    seed: int | None = None,
) -> Trace:
    """Read a trace file of any known format; ``-`` is standard input; gzip and zstd are unpacked on the way.

    Args:
        format: one of ``format_names()`` instead of detection by content.
        time_unit: ``s``, ``ms``, ``us`` or ``ns`` instead of the format's own or the inferred one.
        columns: role -> column name for a table of one's own (roles: arrival, prompt, output, id, ...).
        on_bad_row: ``error`` refuses the file, ``skip`` and ``report`` leave such rows out and count them.
        limit: read only that many requests.
        output_tokens: for requests whose file does not say how long the answer is (256).
        block_size: tokens in a block of the file's hash ids, where it is known better than inferred.
        tokenizer: a ``tokenizer.json`` or its folder, for files that hold text (else 4 characters a token).
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
        raise InputError(
            "is no format", field="format", value=options.format, hint=names(options.format, format_names())
        )
    if options.seed is not None and options.seed < 0:
        raise InputError("must be at least 0", field="seed", value=options.seed)
    for name in ("limit", "output_tokens", "block_size"):
        value = getattr(options, name)
        if value is not None and value < 1:
            raise InputError("must be at least 1", field=name, value=value)
    for name, most in (("output_tokens", MAX_TOKENS), ("block_size", MAX_BLOCK_SIZE)):
        value = getattr(options, name)
        if value is not None and value > most:
            raise InputError(f"must be at most {most}", field=name, value=value)
    for role in options.columns:
        if role not in ROLES:
            raise InputError("is no role of a column", field="columns", value=role, hint=", ".join(ROLES))


def read_source(source: Source, options: ReadOptions) -> Trace:
    """``read_trace`` for an open source."""
    if not source.head.strip():
        raise InputError("is empty", source=source.name, line=1)
    kind = _KIND_OF_FORMAT.get(options.format or "") or detect_kind(source)
    if kind is Kind.JSON:
        return _read_json(source, options)
    if kind is Kind.PARQUET:
        return _read_parquet(source, options)
    if kind is Kind.SCENARIO:
        return read_scenario(source, options.seed, options.limit)
    if kind is Kind.ENGINE_LOG:
        raise read_engine_log(source)
    if kind is Kind.PROMETHEUS:
        builder = _builder("prometheus", source, options)
        read_prometheus(source, builder, options.seed or 0)
        return builder.finish(source.name)
    if kind is Kind.SERVEGEN_RATES:
        return _read_servegen(source, options, rates_given=True)
    return _read_csv(source, options)


def _read_servegen(source: Source, options: ReadOptions, rates_given: bool) -> Trace:
    builder = _builder("servegen-client", source, options)
    read_client(source, builder, options.seed or 0, rates_given)
    return builder.finish(source.name)


def _builder(name: str, source: Source, options: ReadOptions) -> TraceBuilder:
    builder = TraceBuilder(
        name,
        BadRows(source.name, options.on_bad_row),
        assumed_output=options.output_tokens,
        limit=options.limit,
    )
    builder.block_size = options.block_size
    builder.most_segments = source.size // 5  # of 24 bytes each: about five times the file
    return builder


# -- tables
# -----------------------------------------------------------------------------------------------------


def _read_csv(source: Source, options: ReadOptions) -> Trace:
    header = csv_header(source)
    if not options.columns and options.format in (None, "tracelab-csv") and set(ROUNDS) <= set(header):
        builder = _builder("tracelab-csv", source, options)
        read_rounds(source, builder, options.time_unit or "ms")
        return builder.finish(source.name)
    if not options.columns and set(SERIES) <= set(header):
        raise NoRequestsError(
            "is a time series of an engine: it tells of the cache, not of requests",
            format="llmservingsim-timeseries",
            facts={"columns": header},
            source=source.name,
            hint="give the requests.jsonl beside it",
        )
    table = _table(header, source, options)
    builder = _builder(table.name, source, options)
    read_csv(source, table, builder, options.time_unit)
    return builder.finish(source.name)


def _read_parquet(source: Source, options: ReadOptions) -> Trace:
    table = _table(parquet_header(source), source, options)
    builder = _builder(table.name, source, options)
    read_parquet(source, table, builder, options.time_unit)
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


# -- JSON
# -------------------------------------------------------------------------------------------------------


def _read_json(source: Source, options: ReadOptions) -> Trace:
    values = json_values(source)
    first = _looked_at(values)
    sample = [value for _, value in first if isinstance(value, dict)]
    if options.format in (None, "servegen-client") and sample and is_dataset(sample[0]):
        del values, first, sample  # the file is read again
        return _read_servegen(source, options, rates_given=False)
    known = _json_format(sample, first, source, options)
    builder = _builder(known.name, source, options)
    unit = known.unit(sample, builder, options.time_unit)
    reader = known.reader(
        Setting(
            builder,
            unit,
            source.path,
            options.time_unit,
            options.tokenizer,
            options.seed or 0,
            options.columns,
        )
    )
    sample.clear()
    _add_values(itertools.chain(_drained(first), values), reader, builder)
    return builder.finish(source.name, expected_block_size=known.block_size)


def _looked_at(values: Iterator[tuple[int, Value]]) -> list[tuple[int, Value]]:
    """The first values, by which the format is told: fewer where they are so long that all at once take much."""
    first, held = [], 0
    for item in itertools.islice(values, _LOOKED_AT):
        first.append(item)
        held += _taken_by(item[1])
        if held >= _HELD:
            break
    return first


def _taken_by(value: Any) -> int:
    """Bytes that a JSON value takes beyond its text."""
    taken, left = 0, [value]
    while left:
        item = left.pop()
        taken += sys.getsizeof(item)
        if isinstance(item, list):
            left.extend(item)
        elif isinstance(item, dict) and not isinstance(item, LongObject):
            left.extend(item.values())
    return taken


def _drained(items: list[tuple[int, Value]]) -> Iterator[tuple[int, Value]]:
    while items:
        yield items.pop(0)


def _add_values(values: Iterator[tuple[int, Value]], reader: RowReader, builder: TraceBuilder) -> None:
    for line, value in values:
        if builder.full:
            return
        try:
            if isinstance(value, InputError):
                raise value
            reader.row(value, line)
        except InputError as error:
            builder.bad.add(line, error)


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
    if options.columns:
        return next(known for known in JSON_FORMATS if known.name == "generic")
    known = json_format(sample)
    if known is None:
        beside = side_file(sample, source.name)
        if beside is not None:
            raise beside
        keys = ", ".join(itertools.islice(sample[0], 12))
        raise InputError(
            "is JSON of no known format",
            value=keys,
            source=source.name,
            line=first[0][0],
            hint="see --format",
        )
    return known
