"""Drives a replica step by step on an executor's clock.

The clock runs on the seconds that steps take and jumps over stretches in which nothing could run, exactly as the
simulator's does: given the same seconds, the same plans follow to the last bit.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kvplan.core.replica import Replica
from kvplan.engine.executor import Executor
from kvplan.steps import planned_line

StepLog = Callable[[dict[str, Any]], None]
"""Called after each commit with the step's line, as `kvplan simulate --steps` writes it."""


def run_steps(
    replica: Replica,
    executor: Executor,
    *,
    names: list[str] | None = None,
    log: StepLog | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> list[float]:
    """Runs a replica to its end. Returns the seconds of every executed step.

    With asynchronous scheduling a step is planned before the one before it is committed, as in the simulator; the
    executor still runs them one after the other.

    Args:
        names: the requests' names, for ``log``.
        log: is told of each step.
        progress: requests done and their total, after every step in which that number changed.
    """
    core = replica.core
    asynchronous = replica.settings.async_scheduling
    taken: list[float] = []
    now, device_free, done = 0.0, 0.0, -1
    executor.waited()
    while True:
        s = core.scalars[0]
        if replica.idle:
            if int(s["next_arrival"]) >= int(s["num_requests"]):
                return taken
            now = max(now, float(core.requests["arrival_s"][int(s["next_arrival"])]))
            executor.waited()
        before = int(s["hit_tokens"]), int(s["query_tokens"])
        planned = replica.plan(now)
        line = planned_line(replica, names or [], now, planned) if log is not None else {}
        s = core.scalars[0]
        line["hit_tokens"], line["query_tokens"] = int(s["hit_tokens"]) - before[0], int(s["query_tokens"]) - before[1]
        seconds = 0.0
        begins = max(now, device_free) if asynchronous else now
        if planned or int(s["num_swapped_out"]):
            seconds = executor.execute(core)
            taken.append(seconds)
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
        executor.committed(core)
        s = core.scalars[0]
        if log is not None:
            line["finished"] = [(names or [])[core.finished[i]] for i in range(int(s["num_finished"]))]
            log(line)
        if progress is not None and done != int(s["finished"] + s["refused"]):
            done = int(s["finished"] + s["refused"])
            progress(done, int(s["num_requests"]))
