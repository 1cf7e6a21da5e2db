"""TraceLab's replay tables: rounds of sessions, each ``prefix_len`` known and ``input_len`` new tokens."""

from __future__ import annotations

from array import array

from kvplan.errors import InputError
from kvplan.trace.builder import TraceBuilder
from kvplan.trace.clock import OPEN_LOOP, PER_SECOND
from kvplan.trace.readers.delimited import csv_header, csv_rows, field_count
from kvplan.trace.rows import number, tokens
from kvplan.trace.source import Source

COLUMNS = ("session_id", "round_idx", "prefix_len", "input_len", "output_len", "tool_wait_after_ms")


def read_rounds(source: Source, builder: TraceBuilder, unit: str) -> None:
    """Add every round. It arrives after its session's start and the waits since; service takes no time."""
    builder.note("prompt = prefix_len + input_len: input_len is what a round adds")
    builder.note(f"time: arrival_time in {unit}, tool_wait_after_ms in ms")
    builder.note(f"sessions: {OPEN_LOOP}")
    header = csv_header(source)
    place = {name: header.index(name) for name in (*COLUMNS, "arrival_time") if name in header}
    due = array("d")  # seconds, when each session's next round arrives
    for line, cells in csv_rows(source):
        if builder.full:
            return
        try:
            if isinstance(cells, InputError):
                raise cells
            if len(cells) != len(header):
                raise field_count(len(cells), len(header))
            session = cells[place["session_id"]]
            prefix, new, output = (
                tokens(cells[place[name]], name) for name in ("prefix_len", "input_len", "output_len")
            )
            wait = float(number(cells[place["tool_wait_after_ms"]], "tool_wait_after_ms")) / 1000
            start = 0.0
            if "arrival_time" in place:
                start = float(number(cells[place["arrival_time"]], "arrival_time")) / PER_SECOND[unit]
            if not 0 <= start < 1e12 or not 0 <= wait < 1e9:
                raise InputError("is no plausible time", value=cells[place["tool_wait_after_ms"]])
            known = builder.known_session(session)
            arrival = start if known < 0 else due[known]
            builder.add(arrival, prefix + new, output, session=session, history=prefix)
            if known >= 0:
                due[known] = arrival + wait
            elif session:
                due.append(arrival + wait)
        except InputError as error:
            builder.bad.add(line, error)
