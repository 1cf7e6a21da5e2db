"""Queues whose waiting times are known: one sequence at a time, steps of constant length, outputs as service times."""

from __future__ import annotations

import heapq
import math

import numpy as np
import pytest

from kvplan.cluster.run import simulate_cluster
from kvplan.cluster.spec import ClusterSpec
from kvplan.cluster.traffic import Traffic
from kvplan.core.replica import Workload
from tests.cluster.cases import server

STEP_S = 1.0
MEAN = 200
"""Tokens, so steps, of a service: long enough that whole steps are all but a continuum."""


def queue(customers: int, load: float, servers: int, service: str, seed: int) -> Traffic:
    """Poisson arrivals; `load` is that of one server.

    Gaps and services are the quantiles of their distributions at evenly spaced ranks, in random order: a stratified
    sample, whose moments have no sampling error, so that a run of this length can tell one percent.
    """
    draws = np.random.default_rng(seed)
    ranks = (np.arange(customers) + 0.5) / customers
    exponential = -np.log1p(-ranks)
    outputs = {
        "exponential": lambda: np.ceil(draws.permutation(exponential) / -np.log1p(-1 / MEAN)),  # geometric
        "fixed": lambda: np.full(customers, MEAN),
        # Nine short services to a long one: a squared coefficient of variation of 3.
        "two-point": lambda: np.where(draws.random(customers) < 0.1, int(MEAN * 6.2), int(MEAN * (1 - 0.52 / 0.9))),
    }[service]()
    gaps = draws.permutation(exponential) * (outputs.mean() * STEP_S / (load * servers))
    workload = Workload(np.cumsum(gaps), np.ones(customers, np.int64), outputs.astype(np.int64))
    return Traffic(workload, np.arange(customers))


def wait(sent: Traffic, spec: ClusterSpec) -> float:
    return float(simulate_cluster(spec, sent).ledger.seconds(sent)["queue_s"].mean())


def cluster(replicas: int, sequences: int, router: str = "round_robin") -> ClusterSpec:
    one = server(STEP_S, max_num_seqs=sequences, num_gpu_blocks=4000, max_model_len=20_000)
    return ClusterSpec((one,) * replicas, router)


def pollaczek_khinchine(sent: Traffic) -> float:
    """Mean wait of M/G/1 with the services that were drawn."""
    gaps, service = np.diff(sent.workload.arrival_s), sent.workload.output_tokens * STEP_S
    rate = 1 / gaps.mean()
    return rate * float((service**2).mean()) / (2 * (1 - rate * service.mean()))


def erlang_c(load: float, servers: int, mean_s: float) -> float:
    """Mean wait of M/M/k; `load` is that of one server.

    Who comes while a step of others runs and there is room waits for its end, half a step on average: that is added.
    """
    offered = load * servers
    tail = offered**servers / math.factorial(servers) / (1 - load)
    total = sum(offered**n / math.factorial(n) for n in range(servers)) + tail
    some_room = 1 - tail / total - 1 / total
    return tail / total * mean_s / (servers * (1 - load)) + some_room * STEP_S / 2


def kiefer_wolfowitz(sent: Traffic, servers: int) -> float:
    """Mean wait of first come first served before k servers, for these very arrivals and services."""
    free = [0.0] * servers
    total = 0.0
    for arrival, tokens in zip(sent.workload.arrival_s, sent.workload.output_tokens, strict=True):
        begin = max(float(arrival), heapq.heappop(free))
        total += begin - float(arrival)
        heapq.heappush(free, begin + float(tokens) * STEP_S)
    return total / len(sent)


@pytest.mark.slow
@pytest.mark.parametrize("load", [0.3, 0.6])
def test_mm1(load: float) -> None:
    sent = queue(400_000, load, 1, "exponential", seed=1)
    assert wait(sent, cluster(1, 1)) == pytest.approx(load * MEAN * STEP_S / (1 - load), rel=0.01)


@pytest.mark.slow
@pytest.mark.parametrize("load", [0.3, 0.6])
def test_md1(load: float) -> None:
    sent = queue(400_000, load, 1, "fixed", seed=1)
    assert wait(sent, cluster(1, 1)) == pytest.approx(load * MEAN * STEP_S / (2 * (1 - load)), rel=0.01)


@pytest.mark.slow
def test_mg1() -> None:
    sent = queue(400_000, 0.5, 1, "two-point", seed=7)
    assert wait(sent, cluster(1, 1)) == pytest.approx(pollaczek_khinchine(sent), rel=0.01)


@pytest.mark.slow
@pytest.mark.parametrize("servers", [2, 5])
def test_mmk_is_erlang_c(servers: int) -> None:
    sent = queue(1_000_000, 0.5, servers, "exponential", seed=21)
    assert wait(sent, cluster(1, servers)) == pytest.approx(erlang_c(0.5, servers, MEAN * STEP_S), rel=0.01)


@pytest.mark.slow
def test_poisson_split_at_random_is_k_times_mm1() -> None:
    sent = queue(800_000, 0.5, 4, "exponential", seed=23)
    assert wait(sent, cluster(4, 1, "random")) == pytest.approx(MEAN * STEP_S, rel=0.01)


@pytest.mark.parametrize("service", ["exponential", "fixed", "two-point"])
@pytest.mark.parametrize("servers", [1, 3])
def test_every_wait_is_the_recursions(service: str, servers: int) -> None:
    """M/G/k has no closed form: the recursion of Kiefer and Wolfowitz (1955) gives it for the drawn sample."""
    sent = queue(20_000, 0.8, servers, service, seed=5)
    # With several sequences in a step, one that arrives in its midst waits for the next: half a step of 200.
    assert wait(sent, cluster(1, servers)) == pytest.approx(
        kiefer_wolfowitz(sent, servers), rel=1e-9 if servers == 1 else 0.01
    )
