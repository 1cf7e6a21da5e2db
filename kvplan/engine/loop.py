"""Drives a replica step by step on an executor's clock: the simulator's own stepping (`kvplan.steps`), with the device
in the place of the step-time model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kvplan.core.replica import Replica
from kvplan.engine.executor import Executor
from kvplan.steps import clocked_steps

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
    taken: list[float] = []
    done = -1

    def execute() -> float:
        taken.append(executor.execute(core))
        return taken[-1]

    executor.waited()
    logged = (names or []) if log is not None else None
    for line in clocked_steps(replica, execute, waited=executor.waited, names=logged):
        executor.committed(core)
        if log is not None:
            log(line)
        if progress is not None and done != int(core.scalars[0]["finished"] + core.scalars[0]["refused"]):
            done = int(core.scalars[0]["finished"] + core.scalars[0]["refused"])
            progress(done, int(core.scalars[0]["num_requests"]))
    return taken
