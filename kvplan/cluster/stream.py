"""Traffic too long to hold: a cluster fed window by window, in memory that the window and the replicas bound.

Each window's requests are shared out, every replica runs up to the first arrival of the next window, and the requests
that are done go into sketches and are forgotten. The steps are those of `simulate_cluster` on the whole.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvplan.cluster.router import Router
from kvplan.cluster.sketch import Sketch
from kvplan.cluster.spec import ClusterSpec
from kvplan.cluster.traffic import Traffic
from kvplan.core.intake import Room
from kvplan.core.replica import NO_REQUESTS, Replica
from kvplan.core.state import FINISHED, REFUSED
from kvplan.errors import InputError
from kvplan.metrics.percentiles import Statistics

METRICS = ("queue_s", "ttft_s", "tpot_s", "e2e_s")


@dataclass(frozen=True)
class StreamResult:
    """``gpu_seconds``: all replicas from the first arrival to the last finish."""

    requests: int
    finished: int
    refused: int
    output_tokens: int
    preemptions: int
    steps: int
    span_s: float
    gpu_seconds: float
    latency: dict[str, Statistics]


def stream_cluster(
    spec: ClusterSpec,
    windows: Iterable[Traffic],
    *,
    longest: int,
    sequences: int = 1,
    progress: Callable[[int], None] | None = None,
) -> StreamResult:
    """Sends windows of traffic, one after the other in time, to a cluster.

    Args:
        windows: each begins no earlier than the one before ends.
        longest: tokens of the longest request that will come.
        sequences: most parallel samples or beams of a request that will come.
        progress: called after each window with the requests that are done.

    Raises:
        InputError: the cluster has events (`ClusterSpec.uneventful`), a window steps back in time, or there is none.
    """
    if not spec.uneventful:
        raise InputError(
            "a stream needs a blind router and no faults, limits or scaling", field="router", value=spec.router
        )
    room = Room(longest, sequences)
    replicas = [(Replica(server.settings, NO_REQUESTS, room), server.timing.compiled()) for server in spec.servers]
    router = Router(spec.router, spec.seed)
    tally = _Tally()
    sent, begin, last = 0, None, -np.inf
    for window in windows:
        if not len(window):
            continue
        arrivals = window.workload.arrival_s
        if arrivals[0] < last:
            raise InputError(
                "a window begins before the one before it ends", field="arrival_s", value=float(arrivals[0])
            )
        begin = float(arrivals[0]) if begin is None else begin
        last = float(arrivals[-1])
        for replica, tables in replicas:
            replica.run(tables, until=float(np.nextafter(arrivals[0], -np.inf)))
            tally.take(replica.forget())
        chosen = router.assign(window.keys, len(replicas))
        for index, (replica, _) in enumerate(replicas):
            share = np.flatnonzero(chosen == index)
            if len(share):
                replica.offer(window.workload.take(share), sent + share)
        sent += len(window)
        if progress is not None:
            progress(tally.done)
    if begin is None:
        raise InputError("the trace has no requests", field="workload")
    for replica, tables in replicas:
        replica.run(tables)
        tally.take(replica.forget())
    span = tally.end - begin
    counters = {name: sum(int(r.core.scalars[name][0]) for r, _ in replicas) for name in _COUNTERS}
    return StreamResult(
        requests=sent,
        span_s=span,
        gpu_seconds=span * sum(server.gpus for server in spec.servers),
        latency={name: sketch.statistics() for name, sketch in tally.sketches.items()},
        finished=counters["finished"],
        refused=counters["refused"],
        output_tokens=counters["output_tokens"],
        preemptions=counters["preemptions"],
        steps=counters["step"],
    )


_COUNTERS = ("finished", "refused", "output_tokens", "preemptions", "step")


class _Tally:
    """What is kept of requests that are done."""

    def __init__(self) -> None:
        self.sketches = {name: Sketch() for name in METRICS}
        self.done = 0
        self.end = -np.inf

    def take(self, rows: NDArray[Any]) -> None:
        self.done += int(np.isin(rows["status"], (FINISHED, REFUSED)).sum())
        rows = rows[rows["status"] == FINISHED]
        if not len(rows):
            return
        arrival, first, finish = rows["arrival_s"], rows["first_token_s"], rows["finish_s"]
        self.end = max(self.end, float(finish.max()))
        self.sketches["queue_s"].add(rows["first_scheduled_s"] - arrival)
        self.sketches["ttft_s"].add(first - arrival)
        self.sketches["e2e_s"].add(finish - arrival)
        several = rows["output"] > 1
        self.sketches["tpot_s"].add((finish - first)[several] / (rows["output"][several] - 1))
