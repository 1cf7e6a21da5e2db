"""The step log: one JSON line a step, in the words of vLLM's own scheduler (DESIGN.md, section 4)."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvplan.core.replica import Replica
from kvplan.core.state import PAGED
from kvplan.core.step_time import TimingTables, step_seconds
from kvplan.files import atomic_write

if TYPE_CHECKING:
    from kvplan.trace.trace import Trace


def run_logging_steps(
    replica: Replica,
    timing: TimingTables,
    trace: Trace,
    path: Path,
    *,
    progress: Callable[[int, int], None] | None = None,
) -> None:
    """Runs a replica step by step to its end and writes a line for each."""
    names = trace.names().tolist()
    core = replica.core
    with atomic_write(path, "w") as file:
        for line in logged_steps(replica, timing, names):
            file.write(json.dumps(line, separators=(",", ":")) + "\n")
            s = core.scalars[0]
            if progress is not None and int(s["step"]) % 1000 == 0:
                progress(int(s["finished"] + s["refused"]), int(s["num_requests"]))


def logged_steps(replica: Replica, timing: TimingTables, names: list[str]) -> Iterator[dict[str, Any]]:
    """Steps a replica on the simulated clock, yielding a log line after each commit."""
    return clocked_steps(replica, lambda: float(step_seconds(timing, replica.load())), names=names)


def clocked_steps(
    replica: Replica,
    execute: Callable[[], float],
    *,
    waited: Callable[[], None] = lambda: None,
    names: list[str] | None = None,
) -> Iterator[dict[str, Any]]:
    """Steps a replica to its end on the clock of whatever executes its plans, yielding after each commit.

    The clock runs on the seconds that steps take and jumps over stretches in which nothing could run: given the same
    seconds, the same plans follow to the last bit, whoever executes them. With asynchronous scheduling a step is
    planned before the one before it is committed.

    Args:
        execute: runs the step just planned; returns its seconds.
        waited: is told when the clock has jumped to an arrival.
        names: the requests' names; the step's log line is yielded with them, an empty one without.
    """
    core = replica.core
    asynchronous = replica.settings.async_scheduling
    now, device_free = 0.0, 0.0
    while True:
        s = core.scalars[0]
        if replica.idle:
            if int(s["next_arrival"]) >= int(s["num_requests"]):
                return
            now = max(now, float(core.requests["arrival_s"][int(s["next_arrival"])]))
            waited()
        hits, queries = int(s["hit_tokens"]), int(s["query_tokens"])
        planned = replica.plan(now)
        line: dict[str, Any] = {}
        s = core.scalars[0]
        if names is not None:
            line = planned_line(replica, names, now, planned)
            line["hit_tokens"], line["query_tokens"] = int(s["hit_tokens"]) - hits, int(s["query_tokens"]) - queries
        seconds = 0.0
        begins = max(now, device_free) if asynchronous else now
        if planned or int(s["num_swapped_out"]):
            seconds = execute()
            replica.observe(begins, seconds)
        elif not int(s["num_running"]) and int(s["num_waiting"]) and not int(s["num_preempted"]):
            replica.refuse_head()
        if asynchronous:
            if int(s["flying_planned"]):
                now = device_free
            device_free = begins + seconds if planned else device_free
        else:
            now += seconds
        replica.commit(now)
        if names is not None:
            s = core.scalars[0]
            line["finished"] = [names[core.finished[i]] for i in range(int(s["num_finished"]))]
            line["free_after"] = _free(replica)
        yield line


def planned_line(replica: Replica, names: list[str], now: float, planned: int) -> dict[str, Any]:
    core = replica.core
    s = core.scalars[0]
    entries = core.planned[:planned]
    line: dict[str, Any] = {
        "step": int(s["step"]) - 1,
        "t": now,
        "tokens": {names[e["request"]]: int(e["tokens"]) * int(e["sequences"]) for e in entries},
        "new": [names[e["request"]] for e in entries if e["fresh"]],
        "running": int(s["num_running"]),
        "waiting": int(s["num_waiting"]),
        "free_blocks": _free(replica),
        "preempted": sorted(names[core.preempted[i]] for i in range(int(s["num_preempted"]))),
    }
    if int(core.config["layout"][0]) == PAGED:
        line["blocks"] = {
            names[e["request"]]: core.tables[0, e["row"], : core.requests["blocks"][e["request"]]].tolist()
            for e in entries
        }
    else:
        line["extents"] = {
            names[e["request"]]: [
                [int(core.extents[core.extent_of[row]]["start"]), int(core.extents[core.extent_of[row]]["size"])]
                for row in range(e["row"], e["row"] + int(core.requests["sequences"][e["request"]]))
            ]
            for e in entries
        }
    return line


def _free(replica: Replica) -> int:
    """Free blocks; under a contiguous layout free slots."""
    s = replica.core.scalars[0]
    if int(replica.core.config["layout"][0]) == PAGED:
        return int(s["free_blocks"])
    return replica.settings.total_slots - int(s["held_slots"]) - int(s["rounded_slots"])
