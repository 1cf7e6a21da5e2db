"""What was read, and what was inferred in reading it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Console

from kvplan.terminal.formats import count, counted, seconds

if TYPE_CHECKING:
    from kvplan.trace.trace import Trace


def print_trace(console: Console, trace: Trace) -> None:
    """One line for the trace, one for each thing that its reader had to infer."""
    origin = trace.origin
    bad = f", {count(origin.bad_rows)} bad rows left out" if origin.bad_rows else ""
    span = seconds(float(trace.arrival_s[-1]))
    _say(console, f"trace: {origin.format}, {counted(len(trace), 'request')} in {span}{bad}")
    for note in origin.notes:
        _say(console, f"trace: {note}")


def _say(console: Console, line: str) -> None:
    console.print(line, markup=False, soft_wrap=True)
