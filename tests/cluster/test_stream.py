"""A stream of windows gives what the whole trace gives, in the memory of a window."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator

import numpy as np
import pytest

from kvplan.cluster.run import simulate_cluster
from kvplan.cluster.spec import BLIND_ROUTERS
from kvplan.cluster.stream import stream_cluster
from kvplan.cluster.traffic import Traffic
from kvplan.errors import InputError
from tests.cluster.cases import cluster, of, traffic


def cut(sent: Traffic, size: int) -> Iterator[Traffic]:
    for begin in range(0, len(sent), size):
        rows = np.arange(begin, min(len(sent), begin + size))
        yield Traffic(sent.workload.take(rows), sent.keys[rows])


@pytest.mark.parametrize("router", BLIND_ROUTERS)
@pytest.mark.parametrize("size", [1, 37, 1000])
def test_windows_give_what_the_whole_gives(router: str, size: int) -> None:
    sent, spec = traffic(rate=25.0), cluster(3, router)
    whole = simulate_cluster(spec, sent)
    streamed = stream_cluster(spec, cut(sent, size), longest=sent.longest)
    expected = whole.ledger.latency(sent)
    assert (streamed.requests, streamed.finished) == (len(sent), whole.ledger.counts()["finished"])
    assert streamed.steps == sum(run.summary()["steps"] for run in whole.replicas)
    assert streamed.span_s == float(whole.ledger.rows["finish_s"].max())
    for name, found in streamed.latency.items():
        assert found["mean"] == pytest.approx(expected[name]["mean"], rel=1e-9)
        assert found["max"] == expected[name]["max"]
        # The sketch names an order statistic, numpy interpolates between two.
        ordered = np.sort(whole.ledger.seconds(sent)[name])
        ordered = ordered[np.isfinite(ordered)]
        assert found["p50"] == pytest.approx(ordered[-(-len(ordered) // 2) - 1], rel=1e-3, abs=1e-6)


def test_memory_does_not_grow_with_the_traffic() -> None:
    def peak(windows: int) -> int:
        def endless() -> Iterator[Traffic]:
            for window in range(windows):
                yield of((window * 50.0 + np.arange(500) * 0.1).tolist())

        tracemalloc.start()
        stream_cluster(cluster(2), endless(), longest=26)
        try:
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    peak(2)
    assert peak(40) < 1.1 * peak(4)


def test_windows_in_the_wrong_order_and_eventful_clusters_are_refused() -> None:
    with pytest.raises(InputError, match="begins before"):
        stream_cluster(cluster(1), [of([5.0]), of([4.0])], longest=30)
    with pytest.raises(InputError, match="blind router"):
        stream_cluster(cluster(2, "least_kv"), [of([5.0])], longest=30)
    with pytest.raises(InputError, match="no requests"):
        stream_cluster(cluster(1), [], longest=30)
