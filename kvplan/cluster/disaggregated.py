"""Prefill and decode on replicas of their own, with the KV cache handed over a link.

A prefill replica computes the prompt and the first token; the prompt's K and V then cross the link of that replica,
one request after the other, and the request joins a decode replica, which computes the rest. Nothing flows back, so
the two pools are simulated one after the other, exactly. The prefill replica's blocks are free when its part is done
(not when the transfer is), and a decode replica that preempts or fails computes the prompt itself.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import simpy
from numpy.typing import NDArray

from kvplan.cluster.clock import until
from kvplan.cluster.cluster import Cluster, Process
from kvplan.cluster.ledger import DONE, Ledger
from kvplan.cluster.run import ClusterResult, runs_of
from kvplan.cluster.spec import ClusterSpec
from kvplan.cluster.traffic import Traffic
from kvplan.errors import InputError

if TYPE_CHECKING:
    from kvplan.trace.trace import Trace


@dataclass(frozen=True)
class Link:
    """From each prefill replica to the decode pool.

    Args:
        bytes_per_s: of one replica.
        kv_bytes_per_token: what crosses it, all layers and all GPUs of the replica together.
        latency_s: of each transfer, beside its bytes.
    """

    bytes_per_s: float
    kv_bytes_per_token: float
    latency_s: float = 0.0

    def __post_init__(self) -> None:
        for name in ("bytes_per_s", "kv_bytes_per_token"):
            if not getattr(self, name) > 0:
                raise InputError("must be above 0", field=f"link.{name}", value=getattr(self, name))
        if self.latency_s < 0:
            raise InputError("must not be negative", field="link.latency_s", value=self.latency_s)


def simulate_disaggregated(
    prefill: ClusterSpec, decode: ClusterSpec, link: Link, trace: Trace | Traffic
) -> tuple[ClusterResult, NDArray[np.float64]]:
    """Sends a trace through both pools. The replicas of the result are those of prefill, then those of decode.

    Returns the result, whose first_scheduled_s and first_token_s are those of the prefill pool and whose replica is
    the last one that served the request (decode replicas are counted on from the prefill replicas), and the seconds
    that each request's KV cache was under way, NaN where none was.

    Raises:
        InputError: no requests; several sequences a request; clients that leave the decode pool.
    """
    traffic = trace if isinstance(trace, Traffic) else Traffic.of(trace)
    workload = traffic.workload
    if len(traffic) == 0:
        raise InputError("the trace has no requests", field="workload")
    if traffic.sequences > 1:
        raise InputError("parallel samples and beams are not handed over", field="n", value=traffic.sequences)
    if decode.client.first_token_timeout_s is not None or decode.admission is not None:
        raise InputError("clients and admission belong to the prefill pool", field="decode")
    ones = np.ones_like(workload.output_tokens)
    first = Cluster(prefill, dataclasses.replace(traffic, workload=dataclasses.replace(workload, output_tokens=ones)))
    first.run()
    passed = first.ledger.rows["outcome"] == DONE
    going = np.flatnonzero(passed & (workload.output_tokens > 1))
    arrived = transfers(first.ledger, workload.prompt_tokens, going, link)
    order = going[np.lexsort((going, arrived[going]))]
    ledger = first.ledger
    transfer_s = arrived - np.where(np.isnan(arrived), 0.0, ledger.rows["finish_s"])
    replicas = runs_of(first)
    part = dataclasses.replace(workload.take(order), arrival_s=arrived[order])
    second = Cluster(decode, Traffic(part, traffic.keys[order]), external=ledger.rows["first_token_s"][order])
    second.run()
    _join(ledger, second.ledger, order, len(replicas))
    replicas += tuple(dataclasses.replace(run, index=run.index + len(replicas)) for run in runs_of(second))
    events = {name: count + second.events[name] for name, count in first.events.items()}
    return ClusterResult(traffic, ledger, replicas, events), transfer_s


def transfers(ledger: Ledger, prompts: NDArray[np.int64], going: NDArray[np.int64], link: Link) -> NDArray[np.float64]:
    """When each request's KV cache has crossed, in SimPy: a replica's link carries one request at a time."""
    env = simpy.Environment()
    links: dict[int, simpy.Resource] = {}
    arrived = np.full(len(prompts), np.nan)
    rows = ledger.rows

    def cross(request: int) -> Process:
        yield until(env, float(rows["finish_s"][request]))
        carrier = links.setdefault(int(rows["replica"][request]), simpy.Resource(env))
        with carrier.request() as turn:
            yield turn
            yield env.timeout(link.latency_s + float(prompts[request]) * link.kv_bytes_per_token / link.bytes_per_s)
        arrived[request] = env.now

    for request in going[np.argsort(rows["finish_s"][going], kind="stable")]:
        env.process(cross(int(request)))
    env.run()
    return arrived


def _join(ledger: Ledger, decoded: Ledger, order: NDArray[np.int64], prefills: int) -> None:
    """Enters what the decode pool did into the rows of the prefill pool."""
    rows, later = ledger.rows, decoded.rows
    done = later["outcome"] == DONE
    rows["outcome"][order] = later["outcome"]
    rows["reason"][order] = later["reason"]
    rows["replica"][order] = np.where(later["replica"] >= 0, later["replica"] + prefills, -1)
    rows["preemptions"][order] += later["preemptions"]
    rows["attempts"][order] = np.maximum(rows["attempts"][order], later["attempts"])
    rows["finish_s"][order] = np.where(done, later["finish_s"], -1.0)
