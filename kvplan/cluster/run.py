"""`simulate_cluster`: a trace through a cluster, by the shortest way that gives the exact answer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from kvplan.cluster.cluster import Cluster
from kvplan.cluster.ledger import Ledger
from kvplan.cluster.router import Router
from kvplan.cluster.spec import ClusterSpec
from kvplan.cluster.traffic import Traffic
from kvplan.core.replica import Replica
from kvplan.errors import InputError

if TYPE_CHECKING:
    import pandas as pd

    from kvplan.trace.trace import Trace


@dataclass(frozen=True, eq=False)
class ReplicaRun:
    """What one replica did. ``alive_s``: from its start to its end, idle time included."""

    index: int
    name: str
    gpus: int
    replica: Replica
    requests: int
    alive_s: float

    def summary(self) -> dict[str, Any]:
        s, record = self.replica.core.scalars[0], self.replica.record
        busy = float(record.timeline["busy_s"].sum())
        pool = self.replica.settings.total_slots
        return {
            "replica": self.index,
            "server": self.name,
            "gpus": self.gpus,
            "requests": self.requests,
            "finished": int(s["finished"]),
            "alive_s": self.alive_s,
            "busy_s": busy,
            "steps": int(s["step"]),
            "output_tokens": int(s["output_tokens"]),
            "preemptions": int(s["preemptions"]),
            "running_mean": float(record.timeline["running"].sum()) / busy if busy else 0.0,
            "used_mean": float(record.timeline["used"].sum()) / busy / pool if busy else 0.0,
            "query_tokens": int(s["query_tokens"]),
            "hit_tokens": int(s["hit_tokens"]),
        }


@dataclass(frozen=True, eq=False)
class ClusterResult:
    """Attributes: the ledger (a row a request), the replicas in order, and how often what happened."""

    traffic: Traffic
    ledger: Ledger
    replicas: tuple[ReplicaRun, ...]
    events: dict[str, int]

    def table(self) -> pd.DataFrame:
        return self.ledger.table(self.traffic)

    def summary(self) -> dict[str, Any]:
        """Counts, latencies from the client's first try, throughput, and what each replica did. JSON's types."""
        counts = self.ledger.counts()
        rows = self.ledger.rows
        span = float(rows["finish_s"].max(initial=0.0) - self.traffic.workload.arrival_s[:1].sum())
        tokens = sum(run.summary()["output_tokens"] for run in self.replicas)
        return {
            "requests": counts,
            "events": dict(self.events),
            "latency": self.ledger.latency(self.traffic),
            "throughput": {
                "requests_per_s": counts["finished"] / span if span > 0 else 0.0,
                "output_tokens_per_s": tokens / span if span > 0 else 0.0,
            },
            "gpu_seconds": sum(run.gpus * run.alive_s for run in self.replicas),
            "replicas": [run.summary() for run in self.replicas],
        }


def simulate_cluster(
    spec: ClusterSpec, trace: Trace | Traffic, *, progress: Callable[[int, int], None] | None = None
) -> ClusterResult:
    """Sends a trace to a cluster.

    Where only the trace decides who serves a request (`ClusterSpec.uneventful`) each replica replays its share in one
    go; else arrival by arrival. Both ways give the same integers and the same times.

    Args:
        progress: called with the requests dealt with and their total.

    Raises:
        InputError: no requests.
    """
    traffic = trace if isinstance(trace, Traffic) else Traffic.of(trace)
    if len(traffic) == 0:
        raise InputError("the trace has no requests", field="workload")
    if spec.uneventful:
        return _in_shares(spec, traffic, progress)
    cluster = Cluster(spec, traffic, progress=progress)
    cluster.run()
    return ClusterResult(traffic, cluster.ledger, runs_of(cluster), cluster.events)


def runs_of(cluster: Cluster) -> tuple[ReplicaRun, ...]:
    """What the replicas of a cluster that has run did."""
    return tuple(
        ReplicaRun(m.index, m.server.name, m.server.gpus, m.replica, m.offered, (m.stopped_s or 0.0) - m.started_s)
        for m in cluster.members
    )


def _in_shares(spec: ClusterSpec, traffic: Traffic, progress: Callable[[int, int], None] | None) -> ClusterResult:
    ledger = Ledger(len(traffic))
    ledger.rows["attempts"] = 1
    chosen = Router(spec.router, spec.seed).assign(traffic.keys, len(spec.servers))
    replicas, done = [], 0
    for index, server in enumerate(spec.servers):
        share = np.flatnonzero(chosen == index)
        replica = Replica(server.settings, traffic.workload.take(share))
        replica.core.requests["serial"][: len(share)] = share
        replica.run(server.timing.compiled())
        ledger.take(replica.core.requests[: len(share)], index)
        replicas.append((index, server, replica, len(share)))
        done += len(share)
        if progress is not None:
            progress(done, len(traffic))
    end = float(ledger.rows["finish_s"].max(initial=0.0))
    runs = [ReplicaRun(index, one.name, one.gpus, replica, count, end) for index, one, replica, count in replicas]
    return ClusterResult(traffic, ledger, tuple(runs), {})
