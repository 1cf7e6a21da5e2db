"""Given the measured step times, the simulator must plan what the engine ran, step for step, block for block."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvplan.core.replay import replay
from kvplan.core.replica import Replica, Workload
from kvplan.core.settings import Settings
from kvplan.core.state import CONTIGUOUS, Core
from kvplan.core.step_time import HOST_STEP_S, STEP_LOAD
from kvplan.timing import StepTimes

COUNTS = (
    "num_running", "num_waiting", "num_preempted", "num_finished", "free_blocks", "held_slots", "used_slots",
    "hit_tokens", "query_tokens", "preemptions", "swaps", "refused",
)  # fmt: skip


@dataclass(frozen=True, eq=False)
class SeenStep:
    """A step after its commit, as arrays that can be held against another run's.

    Args:
        seconds: measured; None where the scheduler found nothing to execute.
        parts: by name: the plan's entries, the blocks (or extents) that hold each row's tokens, moves, `COUNTS`. Few
            arrays and no lists: thousands of steps are kept while later ones are timed, and Python's garbage
            collector would walk through all their objects meanwhile.
    """

    seconds: float | None
    parts: dict[str, NDArray[Any]]

    def count(self, name: str) -> int:
        """One of `COUNTS`."""
        return int(self.parts["counts"][COUNTS.index(name)])


def seen_step(core: Core, seconds: float | None) -> SeenStep:
    """What a core shows after a commit."""
    s = core.scalars[0]
    planned = core.planned[: int(s["num_planned"])].copy()
    return SeenStep(
        seconds,
        {
            "entries": planned,
            "memory": _memory(core, planned),
            "copied blocks": core.copies[: int(s["num_copies"])].copy(),
            "blocks swapped out": core.swapped_out[: int(s["num_swapped_out"])].copy(),
            "blocks swapped in": core.swapped_in[: int(s["num_swapped_in"])].copy(),
            "preempted": core.preempted[: int(s["num_preempted"])].copy(),
            "finished": core.finished[: int(s["num_finished"])].copy(),
            "counts": np.array([s[name] for name in COUNTS], np.int64),
        },
    )


def _memory(core: Core, planned: NDArray[Any]) -> NDArray[np.int64]:
    """Where the tokens of each planned row lie, row by row: block ids of every group, or an extent's start and size."""
    sequences = planned["sequences"].astype(np.int64)
    entry = np.repeat(np.arange(len(planned)), sequences)
    rows = planned["row"][entry] + np.arange(len(entry)) - (np.cumsum(sequences) - sequences)[entry]
    if int(core.config["layout"][0]) == CONTIGUOUS:
        held = core.extents[core.extent_of[rows][core.extent_of[rows] >= 0]]
        return np.column_stack([held["start"], held["size"]]).ravel()
    size = int(core.config["block_size"][0])
    columns = -(-(planned["computed"] + planned["tokens"])[entry] // size)
    filled = np.arange(core.tables.shape[2]) < columns[:, None]
    blocks: NDArray[np.int64] = core.tables[:, rows][:, filled].astype(np.int64).ravel()
    return blocks


def differences(settings: Settings, workload: Workload, seen: Sequence[SeenStep]) -> list[str]:
    """Runs the compiled simulator on the seconds of an executed run and names where its steps differ.

    Returns one sentence for each part of the first step that differs, which is where it ends: nothing after it can be
    judged. Empty where every step is the same.
    """
    replica = Replica(replace(settings, skip=False), workload)  # each step singly
    core = replica.core
    tables = StepTimes("executed").compiled()
    load = np.zeros(1, STEP_LOAD)
    for number, theirs in enumerate(seen):
        tables.fixed[HOST_STEP_S] = theirs.seconds or 0.0
        core.scalars["num_finished"] = 0  # of the last commit; a step that commits nothing leaves it as it was
        replay(core, tables, load, replica.record, np.inf, 1)
        ours = seen_step(core, theirs.seconds)
        found = [
            f"step {number}: {name}: the engine had {value.tolist()}, the simulator has {ours.parts[name].tolist()}"
            for name, value in theirs.parts.items()
            if not np.array_equal(value, ours.parts[name])
        ]
        if found:
            return found
    s = core.scalars[0]
    left = int(s["num_requests"] - s["finished"] - s["refused"])
    return [f"{left} requests are left in the simulator after the engine's last step"] if left else []
