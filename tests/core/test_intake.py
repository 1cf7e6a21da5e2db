"""A replica that is fed piece by piece, and forgets, does what one that knew everything from the start does."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kvplan.core.check import check
from kvplan.core.intake import Room
from kvplan.core.replica import NO_REQUESTS, Replica, Workload
from kvplan.core.settings import Settings
from kvplan.timing import constant
from tests.core.random_runs import deployments

STEP = constant(1.0).compiled()
BEFORE = -np.inf
TIMES = ("first_scheduled_s", "first_token_s", "last_token_s", "finish_s")
OUTCOME = ("serial", "status", "reason", "generated", "preemptions", "cached", *TIMES)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(deployments(), st.lists(st.integers(1, 4), min_size=1, max_size=14))
def test_fed_in_pieces_equals_fed_at_once(deployment, sizes) -> None:
    chosen, workload = deployment
    whole = Replica(chosen, workload)
    whole.run(STEP)
    fed = Replica(chosen, NO_REQUESTS, Room(longest=80, sequences=4, requests=2))
    done, begin = [], 0
    while begin < len(workload):
        end = min(len(workload), begin + sizes[begin % len(sizes)])
        fed.run(STEP, until=np.nextafter(workload.arrival_s[begin], BEFORE))
        done.append(fed.forget())
        fed.offer(workload.take(np.arange(begin, end)))
        check(fed.core)
        begin = end
    fed.run(STEP)
    rows = np.concatenate([*done, fed.forget()])
    rows = rows[np.argsort(rows["serial"], kind="stable")]
    expected = whole.core.requests[: len(workload)]
    assert rows[list(OUTCOME)].tolist() == expected[list(OUTCOME)].tolist()
    assert len(fed.forget()) == 0
    assert fed.record.timeline["busy_s"].sum() == pytest.approx(whole.record.timeline["busy_s"].sum())


def of(arrivals: list[float], prompt: int, output: int) -> Workload:
    count = len(arrivals)
    return Workload(np.array(arrivals, float), np.full(count, prompt), np.full(count, output))


def replica(**changed: object) -> Replica:
    small = Settings(block_size=4, num_gpu_blocks=9, max_model_len=40, max_num_seqs=2)
    return Replica(dataclasses.replace(small, **changed), NO_REQUESTS, Room(longest=40, requests=1))


def test_an_aborted_request_gives_its_memory_back() -> None:
    served = replica()
    served.offer(of([0.0, 0.0, 0.0], 4, 8))
    served.run(STEP, until=1.0)
    assert [served.abort(serial) for serial in (0, 2, 0, 7)] == [True, True, False, False]
    check(served.core)
    served.run(STEP)
    rows = served.forget()
    assert rows["serial"].tolist() == [0, 1, 2]
    assert rows["generated"].tolist() == [2, 8, 0]
    assert int(served.core.scalars["free_blocks"][0]) == 8


def test_a_request_that_has_not_arrived_can_be_aborted() -> None:
    served = replica()
    served.offer(of([0.0, 5.0], 4, 2))
    assert served.abort(1)
    served.run(STEP)
    assert served.forget()["finish_s"].tolist() == [2.0, -1.0]
    assert served.idle


def test_a_crash_loses_what_is_under_way_and_keeps_the_counters() -> None:
    served = replica()
    served.offer(of([0.0, 0.0, 0.0], 4, 3))
    served.run(STEP, until=3.0)
    done, lost = served.forget(), served.crash()
    assert (done["serial"].tolist(), lost["serial"].tolist()) == ([0, 1], [2])
    served.offer(of([10.0], 4, 3), np.array([2]))
    served.run(STEP)
    assert served.forget()["finish_s"].tolist() == [13.0]
    assert int(served.core.scalars["finished"][0]) == 3


def test_what_another_replica_computed_is_not_computed_again() -> None:
    served = replica()
    served.offer(of([0.0], 9, 3))
    row = served.core.requests[0:1]
    row["generated"], row["external"], row["first_token_s"], row["last_token_s"] = 1, 9, 0.0, 0.0
    served.run(STEP)
    assert served.forget()["finish_s"].tolist() == [2.0]
    assert int(served.core.scalars["scheduled_tokens"][0]) == 2


def test_a_request_longer_than_its_room_is_no_offer() -> None:
    served = Replica(Settings(num_gpu_blocks=9), NO_REQUESTS, Room(longest=40))
    with pytest.raises(ValueError, match="no room"):
        served.offer(of([0.0], 40, 1))
