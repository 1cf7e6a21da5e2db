"""Given the measured step times, the simulator must plan what the engine ran, step for step, block for block."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from kvplan.core.replay import replay
from kvplan.core.replica import Replica, Workload
from kvplan.core.settings import Settings
from kvplan.core.state import CONTIGUOUS, PLANNED, Core
from kvplan.core.step_time import HOST_STEP_S, STEP_LOAD
from kvplan.timing import StepTimes

SHOWN = 5
"""Differences that are told in words."""

_COUNTS = (
    "num_running", "num_waiting", "num_preempted", "num_finished", "free_blocks", "held_slots", "used_slots",
    "hit_tokens", "query_tokens", "preemptions", "swaps", "refused",
)  # fmt: skip


@dataclass(frozen=True, eq=False)
class SeenStep:
    """A step after its commit, as arrays that can be held against another run's.

    Args:
        seconds: measured; None where the scheduler found nothing to execute.
        parts: by name: the plan's entries, the blocks (or extents) that hold each row's tokens, moves, counts.
    """

    seconds: float | None
    parts: dict[str, Any]


def seen_step(core: Core, seconds: float | None) -> SeenStep:
    """What a core shows after a commit."""
    s = core.scalars[0]
    planned = core.planned[: int(s["num_planned"])]
    return SeenStep(
        seconds,
        {
            "entries": {name: planned[name].tolist() for name in PLANNED.names or ()},
            "memory": _memory(core, planned),
            "copied blocks": core.copies[: int(s["num_copies"])].tolist(),
            "blocks swapped out": core.swapped_out[: int(s["num_swapped_out"])].tolist(),
            "blocks swapped in": core.swapped_in[: int(s["num_swapped_in"])].tolist(),
            "preempted": core.preempted[: int(s["num_preempted"])].tolist(),
            "finished": core.finished[: int(s["num_finished"])].tolist(),
            **{name: int(s[name]) for name in _COUNTS},
        },
    )


def _memory(core: Core, planned: Any) -> list[list[int]]:
    """Where the tokens of each planned row lie: block ids of every group, or an extent's start and size."""
    rows = [row for e in planned for row in range(int(e["row"]), int(e["row"] + e["sequences"]))]
    if int(core.config["layout"][0]) == CONTIGUOUS:
        held = [core.extents[core.extent_of[row]] for row in rows if core.extent_of[row] >= 0]
        return [[int(extent["start"]), int(extent["size"])] for extent in held]
    size = int(core.config["block_size"][0])
    columns = [-(-int(e["computed"] + e["tokens"]) // size) for e in planned for _ in range(int(e["sequences"]))]
    return [core.tables[:, row, :count].ravel().tolist() for row, count in zip(rows, columns, strict=True)]


def differences(settings: Settings, workload: Workload, seen: Sequence[SeenStep]) -> list[str]:
    """Runs the compiled simulator on the seconds of an executed run and names where its steps differ.

    Returns one sentence a step that differs (the first `SHOWN` in words, then one that counts the rest): empty where
    every step is the same. Nothing after a step whose plan differs can be judged, so it ends there.
    """
    replica = Replica(replace(settings, skip=False), workload)  # each step singly
    core = replica.core
    tables = StepTimes("executed").compiled()
    load = np.zeros(1, STEP_LOAD)
    found: list[str] = []
    for number, theirs in enumerate(seen):
        tables.fixed[HOST_STEP_S] = theirs.seconds or 0.0
        replay(core, tables, load, replica.record, np.inf, 1)
        ours = seen_step(core, theirs.seconds)
        for name, value in theirs.parts.items():
            if ours.parts[name] != value:
                found.append(f"step {number}: {name}: the engine had {value}, the simulator has {ours.parts[name]}")
        if found:
            return found[:SHOWN] + ([f"{len(found) - SHOWN} more"] if len(found) > SHOWN else [])
    s = core.scalars[0]
    left = int(s["num_requests"] - s["finished"] - s["refused"])
    return [f"{left} requests are left in the simulator after the engine's last step"] if left else []
