"""The capacity search against the whole grid, and what must be monotone."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from kvplan.cluster.traffic import Traffic
from kvplan.errors import InfeasibleError
from kvplan.planning.search import Ask, Search, no_answer
from kvplan.planning.search_rate import at_speed, estimate, largest, rate_of
from kvplan.planning.search_space import Axes, candidates
from kvplan.scenario import Scenario

BASE: dict[str, Any] = {
    "model": "llama-3.1-8b",
    "gpu": "h100-sxm",
    "scheduler": {"max_model_len": 4096},
    "workload": {
        "synthetic": {
            "requests": 400,
            "arrivals": {"rate": 10.0, "cv": 1.5},
            "prompt": {"lognormal": {"median": 600, "sigma": 0.9, "max": 3000}},
            "output": {"lognormal": {"median": 80, "sigma": 0.8, "max": 500}},
        }
    },
}
MOST = 12


def search_of(axes: Axes, gpus: list[str], slo: Any, rate: float, **ask: Any) -> tuple[Search, list[Any]]:
    base = Scenario.build(BASE)
    traffic = Traffic.of(base.trace())
    found, _ = candidates(base, gpus, axes, longest=traffic.longest)
    asked = Ask(rate, rate_of(traffic), slo, max_gpus=ask.pop("max_gpus", MOST), **ask)
    return Search([traffic], asked), found


def grid(search: Search, found: list[Any]) -> tuple[float, int, int]:
    """Every candidate with every number of replicas: the cheapest, of equals the first."""
    passes = [
        (search.cost(one, replicas), one.order, replicas)
        for one, replicas in itertools.product(found, range(1, MOST + 1))
        if one.gpus * replicas <= MOST and search.carries(one, replicas, search.ask.rate)
    ]
    return min(passes)


CASES = {
    "step limits under a tight time per token": (
        {"scheduler.max_num_batched_tokens": (None, 2048, 512), "scheduler.max_num_seqs": (None, 128, 32)},
        ["h100-sxm"],
        {"ttft_s": {"p99": 1.0}, "tpot_s": {"p95": 0.02}},
        150.0,
        {},
    ),
    "a small pool on a small GPU": (
        {
            "cache.gpu_memory_utilization": (None, 0.95, 0.85),
            "cache.kv_cache_dtype": (None, "fp8"),
            "cache.block_size": (None, 32),
        },
        ["a10"],
        {"ttft_s": {"p99": 2.0}},
        20.0,
        {},
    ),
    "two GPUs of two prices, split or not": (
        {"parallel.tensor_parallel_size": (1, 2), "scheduler.max_num_seqs": (None, 64)},
        ["a100-80gb-sxm", "l40s", "h100-sxm"],
        {"tpot_s": {"p99": 0.03}},
        40.0,
        {"prices": {"a100-80gb-sxm": 1.8, "l40s": 0.9, "h100-sxm": 3.0}},
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_the_answer_is_the_grids_for_a_fifth_of_its_simulations(name: str) -> None:
    axes, gpus, slo, rate, more = CASES[name]
    search, found = search_of(axes, gpus, slo, rate, **more)
    answer = search.cheapest(found)
    assert answer is not None
    spent = search.simulations
    whole, _ = search_of(axes, gpus, slo, rate, **more)
    assert (answer.cost, answer.candidate.order, answer.replicas) == grid(whole, found)
    assert answer.replicas > 1
    assert spent <= whole.simulations / 5


def test_more_traffic_never_needs_fewer_gpus() -> None:
    needed = []
    for rate in (5.0, 20.0, 40.0, 55.0, 70.0, 90.0, 140.0, 200.0):
        search, found = search_of(
            {}, ["h100-sxm"], {"ttft_s": {"p99": 0.5}, "tpot_s": {"p95": 0.015}}, rate, max_gpus=40
        )
        answer = search.cheapest(found)
        assert answer is not None
        needed.append(answer.gpus)
    assert needed == sorted(needed)
    assert needed[-1] > needed[0]


def test_a_replica_to_lose_is_a_replica_more() -> None:
    slo = {"tpot_s": {"p95": 0.015}}
    search, found = search_of({}, ["h100-sxm"], slo, 100.0)
    spare, _ = search_of({}, ["h100-sxm"], slo, 100.0, survive=1)
    least, with_spare = search.cheapest(found), spare.cheapest(found)
    assert least is not None
    assert with_spare is not None
    assert with_spare.replicas == least.replicas + 1


def test_capacity_is_the_edge() -> None:
    search, found = search_of({}, ["h100-sxm"], {"ttft_s": {"p99": 0.5}}, 30.0)
    edge = search.capacity(found[0], 1)
    assert search.carries(found[0], 1, edge)
    assert not search.carries(found[0], 1, edge * 2 ** (1 / 32))


def test_without_an_slo_the_queue_decides() -> None:
    search, found = search_of({"scheduler.max_num_seqs": (4,)}, ["h100-sxm"], {}, 10.0)
    edge = search.capacity(found[0], 1)
    assert 0.5 < edge / estimate(found[0].server, search.windows[0]) < 1.5
    assert "the queue grows" in search.judged(found[0], 1, 1.3 * edge)[-1].reason


@pytest.mark.parametrize("edge", [1e-3, 0.7, 1.0, 3.3, 5e3])
def test_largest(edge: float) -> None:
    found = largest(lambda rate: rate <= edge, 1.0)
    assert found <= edge < found * 2 ** (1 / 32)


def test_a_faster_trace_keeps_its_shape() -> None:
    traffic = Traffic.of(Scenario.build(BASE).trace())
    fast = at_speed(traffic, 4.0)
    assert rate_of(fast) == pytest.approx(4 * rate_of(traffic))
    gaps, faster = (np.diff(one.workload.arrival_s) for one in (traffic, fast))
    assert faster == pytest.approx(gaps / 4)


@pytest.mark.parametrize(
    ("slo", "rate", "gpus", "says", "nearest"),
    [
        ({"tpot_s": {"p99": 1e-4}}, 1.0, 4, "a request by itself breaks the SLO", "tpot_s.p99"),
        ({"ttft_s": {"p99": 0.5}}, 5000.0, 2, "2 GPUs do not carry 5000 requests/s", "2 replicas (h100-sxm) carry"),
    ],
)
def test_what_cannot_be_carried_is_explained(slo: Any, rate: float, gpus: int, says: str, nearest: str) -> None:
    search, found = search_of({}, ["h100-sxm"], slo, rate, max_gpus=gpus)
    assert search.cheapest(found) is None
    error = no_answer(search, found, [])
    assert isinstance(error, InfeasibleError)
    assert says in error.message
    assert nearest in str(error.hint)
