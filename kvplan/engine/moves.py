"""What a plan moves before its rows run: swaps, copies on write, and under the contiguous layout the extents.

Blocks leave for the host first: a plan may free a block by swapping its owner out and hand it out again as the
destination of a copy.
"""

from __future__ import annotations

from dataclasses import dataclass

from kvplan.core.state import PAGED, Core
from kvplan.engine.pool import KvPool


@dataclass(frozen=True)
class _Placed:
    """Contiguous: where the sequences of a request lie, and whether they have parted."""

    starts: tuple[int, ...]
    parted: bool


class Moves:
    """The moves of one replica's plans. Remembers, between steps, where extents were."""

    def __init__(self, pool: KvPool) -> None:
        self._pool = pool
        self._placed: dict[int, _Placed] = {}
        self.paged = True

    def run(self, core: Core) -> None:
        """Makes the moves of the step that ``core`` has planned."""
        self.paged = int(core.config["layout"][0]) == PAGED
        if not self.paged:
            self._move_extents(core)
            return
        s = core.scalars[0]
        for count, pairs, move in (
            ("num_swapped_out", core.swapped_out, self._pool.swap_out),
            ("num_copies", core.copies, self._pool.copy),
            ("num_swapped_in", core.swapped_in, self._pool.swap_in),
        ):
            if int(s[count]):
                move(pairs[: int(s[count])])

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

    def forget(self, request: int) -> None:
        """The request has finished."""
        self._placed.pop(request, None)
