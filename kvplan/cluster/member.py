"""One replica of a cluster: its compiled core, and whether it may be sent requests."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvplan.cluster.spec import Server
from kvplan.core.intake import Room
from kvplan.core.replica import NO_REQUESTS, Replica, Workload

WARMING, UP, DRAINING, DOWN, STOPPED = "warming", "up", "draining", "down", "stopped"
"""It starts; it takes requests; it ends those that it has; it failed; it was taken out by the autoscaler."""

_FORGET_BEYOND = 2048


class Member:
    """A replica between outside events.

    It is advanced lazily: `advance(t)` runs every step that begins before t, which is all that anybody can know of
    it at t. A step begins at t only after the requests that arrive at t are in.
    """

    def __init__(self, index: int, server: Server, room: Room, state: str, now: float) -> None:
        self.index = index
        self.server = server
        self.state = state
        self.replica = Replica(server.settings, NO_REQUESTS, room)
        self.started_s = now
        self.stopped_s: float | None = None
        self.offered = 0
        self._tables = server.timing.compiled()
        self._seen = -np.inf

    def offer(self, rows: NDArray[Any], content: Workload, now: float) -> None:
        """Hands it one request (REQUEST[1]) at `now`."""
        rows["arrival_s"] = now
        self.replica.offer_rows(rows, content)
        self.offered += 1
        self._seen = -np.inf

    @property
    def crowded(self) -> bool:
        """Enough rows for a harvest (`Replica.forget`) to be worth its while."""
        return int(self.replica.core.scalars["num_requests"][0]) > _FORGET_BEYOND

    def advance(self, now: float) -> None:
        """Runs the steps that begin before `now`."""
        if now <= self._seen:
            return
        self._seen = now
        s = self.replica.core.scalars[0]
        if s["now"] >= now or (self.replica.idle and s["next_arrival"] >= s["num_requests"]):
            return
        self.replica.run(self._tables, until=float(np.nextafter(now, -np.inf)))

    def finish(self) -> None:
        """Runs until nothing is left."""
        self.replica.run(self._tables)

    def step_end(self, now: float) -> float:
        """When the step that runs at `now` ends; `now` where none does."""
        self.advance(now)
        s = self.replica.core.scalars[0]
        under_way = not self.replica.idle or int(s["num_finished"]) > 0
        return max(now, float(s["now"])) if under_way else now

    def outstanding(self, now: float) -> int:
        """Requests that it has and that have not left at `now`: those that the running step ends included."""
        self.advance(now)
        s = self.replica.core.scalars[0]
        pending = int(s["num_requests"]) - int(s["next_arrival"])
        ending = int(s["num_finished"]) if s["now"] > now else 0
        return pending + int(s["unfinished"]) + ending

    def kv_used(self, now: float) -> float:
        """Fraction of the pool that live sequences hold."""
        self.advance(now)
        settings = self.server.settings
        s = self.replica.core.scalars[0]
        if not settings.paged:
            return int(s["held_slots"]) / settings.total_slots
        usable = settings.num_gpu_blocks - 1
        return (usable - int(s["free_blocks"])) / usable

    def row_of(self, serial: int) -> NDArray[Any] | None:
        """The request with that serial, the last where it came twice; None where it is not here."""
        core = self.replica.core
        known = core.requests[: int(core.scalars["num_requests"][0])]
        places = np.flatnonzero(known["serial"] == serial)
        return known[places[-1]] if len(places) else None
