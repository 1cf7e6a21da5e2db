"""A run as a trace that Perfetto (or chrome://tracing) opens: requests as slices, the pool and the queue
as counters.

The format is Chrome's Trace Event JSON: ``ph`` b/e are the begin and the end of an asynchronous slice, C a
counter, M a name; ``ts`` is in microseconds. Each run is a process. Per-step records (``--steps FILE``)
become counters too.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from kvplan.report.page import put
from kvplan.report.runs import PARTS, plain

if TYPE_CHECKING:
    import pandas as pd

BEGINNING = '{"otherData":{"writer":"kvplan"}'
"""By which a file is known again as kvplan's."""

LANES = 64
"""Requests are spread over this many tracks, a free one each, so that Perfetto lays out no 20 000 rows."""


def events(
    requests: pd.DataFrame, timeline: pd.DataFrame, steps: Iterable[Mapping[str, Any]] = ()
) -> Iterator[dict[str, Any]]:
    """Every event, metadata first.

    Args:
        requests, timeline: the results' frames, all runs.
        steps: the records of a ``--steps`` file, of the base run.
    """
    runs = list(dict.fromkeys([*timeline["run"], *requests["run"]]))
    for process, run in enumerate(runs, 1):
        yield _name("process_name", process, 0, plain(run))
        yield {
            "ph": "M",
            "name": "process_sort_index",
            "pid": process,
            "tid": 0,
            "args": {"sort_index": process},
        }
        yield from _counters(process, timeline[timeline["run"] == run])
        yield from _slices(process, requests[requests["run"] == run])
    for step in steps:
        t = _us(step["t"])
        load = {"running": _count(step.get("running")), "waiting": _count(step.get("waiting"))}
        yield {"ph": "C", "name": "step: sequences", "pid": 1, "tid": 0, "ts": t, "args": load}
        tokens = sum(step["tokens"].values()) if isinstance(step.get("tokens"), Mapping) else 0
        yield {"ph": "C", "name": "step: tokens", "pid": 1, "tid": 0, "ts": t, "args": {"tokens": tokens}}
        if "free_blocks" in step:
            free = {"free": step["free_blocks"]}
            yield {"ph": "C", "name": "step: free blocks", "pid": 1, "tid": 0, "ts": t, "args": free}


def write_perfetto(
    path: str | Path, requests: pd.DataFrame, timeline: pd.DataFrame, steps: Iterable[Mapping[str, Any]] = ()
) -> Path:
    """The events into ``path``, whole or not at all."""
    body = ",\n".join(json.dumps(event, separators=(",", ":")) for event in events(requests, timeline, steps))
    return put(Path(path), f'{BEGINNING},"displayTimeUnit":"ms","traceEvents":[\n{body}\n]}}\n'.encode())


def _counters(process: int, frame: pd.DataFrame) -> Iterator[dict[str, Any]]:
    names = {"pool share": list(PARTS), "sequences": ["running", "waiting"], "preemptions": ["preemptions"]}
    for name, columns in names.items():
        values = frame[columns].to_numpy(float)
        for t, row in zip(frame["t_s"].to_numpy(float), values, strict=True):
            args = {
                column: round(float(value), 6) for column, value in zip(columns, row, strict=True) if np.isfinite(value)
            }
            yield {"ph": "C", "name": name, "pid": process, "tid": 0, "ts": _us(t), "args": args}


def _slices(process: int, frame: pd.DataFrame) -> Iterator[dict[str, Any]]:
    """Queue, prefill and decode of each request that ended, nested in one slice that bears its name."""
    marks = frame[["arrival_s", "first_scheduled_s", "first_token_s", "finish_s"]].to_numpy(float)
    columns = [
        frame[name].to_numpy() for name in ("id", "prompt_tokens", "output_tokens", "preemptions", "cached_tokens")
    ]
    for number in np.flatnonzero(np.isfinite(marks).all(axis=1)):
        arrival, scheduled, first, finish = (_us(mark) for mark in marks[number])
        name, prompt, output, preemptions, cached = (column[number] for column in columns)
        base = {"cat": "request", "id": f"{process}.{number}", "pid": process, "tid": int(number) % LANES + 1}
        args = {
            "prompt_tokens": int(prompt),
            "output_tokens": int(output),
            "preemptions": int(preemptions),
            "cached_tokens": int(cached),
        }
        yield {**base, "ph": "b", "name": plain(name, 80), "ts": arrival, "args": args}
        for phase, start, end in (
            ("queue", arrival, scheduled),
            ("prefill", scheduled, first),
            ("decode", first, finish),
        ):
            yield {**base, "ph": "b", "name": phase, "ts": start}
            yield {**base, "ph": "e", "name": phase, "ts": end}
        yield {**base, "ph": "e", "name": plain(name, 80), "ts": finish}


def _us(seconds: float) -> float:
    return round(float(seconds) * 1e6, 3)


def _count(value: Any) -> int:
    """``running`` and ``waiting`` are lists of ids in a step record, or their number."""
    return len(value) if isinstance(value, (list, tuple)) else int(value or 0)


def _name(kind: str, process: int, thread: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": kind, "pid": process, "tid": thread, "args": {"name": name}}
