"""What a plan moves before its rows run: copies on write, swaps, and under the contiguous layout the extents.

Every move reads what stood in its source *before* the step. A plan may free a block (by swapping its owner out) and
hand it out again as the destination of a copy, so blocks leave for the host first. One case needs care: a victim that
had itself just been given a copy (the plan had reached it before preempting it) owns a block that nobody has written
yet; what is to be swapped out then still stands in the copy's source.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from kvplan.core.state import PAGED, Core
from kvplan.engine.pool import KvPool, Pairs


@dataclass(frozen=True)
class _Placed:
    """Contiguous: where the sequences of a request lie, and whether they have parted."""

    starts: tuple[int, ...]
    parted: bool


class Moves:
    """The moves of one replica's plans. Remembers, between steps, what the plan will have changed."""

    def __init__(self, pool: KvPool) -> None:
        self._pool = pool
        self._placed: dict[int, _Placed] = {}
        self._held: dict[int, frozenset[int]] = {}
        self.paged = True

    def run(self, core: Core) -> None:
        """Makes the moves of the step that ``core`` has planned."""
        self.paged = int(core.config["layout"][0]) == PAGED
        if not self.paged:
            self._move_extents(core)
            return
        s = core.scalars[0]
        copies: Pairs = core.copies[: int(s["num_copies"])]
        if int(s["num_swapped_out"]):
            out: Pairs = core.swapped_out[: int(s["num_swapped_out"])].copy()
            if len(copies):
                self._redirect(core, out, copies)
            self._pool.swap_out(out)
        if len(copies):
            self._pool.copy(copies)
        if int(s["num_swapped_in"]):
            self._pool.swap_in(core.swapped_in[: int(s["num_swapped_in"])])

    def committed(self, core: Core) -> None:
        """Notes the blocks of requests that share among their sequences, where a later swap could need them."""
        if len(core.host_next) <= 1 or int(core.config["stride"][0]) == 1:
            return
        self._held.clear()
        for request in core.running[: int(core.scalars["num_running"][0])].tolist():
            r = core.requests[request]
            if r["forked"]:
                rows = core.tables[:, r["row"] : r["row"] + r["sequences"], : r["blocks"]]
                self._held[request] = frozenset(rows.ravel().tolist())

    def _redirect(self, core: Core, out: Pairs, copies: Pairs) -> None:
        """Lets a victim's blocks that were to be copies leave from the copies' sources."""
        source = {destination: origin for origin, destination in copies.tolist()}
        place = 0
        for request in core.preempted[: int(core.scalars["num_preempted"][0])].tolist():
            count = int(core.requests["swapped"][request])
            held = self._held.get(request)
            for pair in out[place : place + count] if held is not None else ():
                block = int(pair[0])
                if block in source and block not in (held or ()):
                    pair[0] = source[block]
            place += count

    def _move_extents(self, core: Core) -> None:
        """Carries sequences over that the plan has moved to larger extents, and gives parted ones their prompt.

        In the order of the plan: an extent that a request leaves may be where the next one goes.
        """
        for e in core.planned[: int(core.scalars["num_planned"][0])]:
            request, computed = int(e["request"]), int(e["computed"])
            row, count = int(e["row"]), int(core.requests["sequences"][e["request"]])
            starts = tuple(core.extents["start"][core.extent_of[row : row + count]].tolist())
            parted = count == 1 or int(e["sequences"]) > 1
            before = self._placed.get(request)
            if before is not None and not e["fresh"]:
                filled = zip(before.starts, starts, strict=True) if before.parted else [(before.starts[0], starts[0])]
                for old, new in filled:
                    if old != new:
                        self._pool.move_slots(old, new, computed)
                if parted and not before.parted:
                    for new in starts[1:]:
                        self._pool.move_slots(starts[0], new, computed)
            self._placed[request] = _Placed(starts, parted)
        finished = np.flatnonzero(core.requests["row"] < 0)
        if len(self._placed) > 2 * len(core.running):
            for request in finished.tolist():
                self._placed.pop(request, None)
