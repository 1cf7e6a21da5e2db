"""Any deployment, any trace: the state is sound after every step, the run ends, nobody is lost."""

from __future__ import annotations

import os
from dataclasses import replace

import numpy as np
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from kvplan.core.check import check
from kvplan.core.replica import Replica, Workload
from kvplan.core.settings import Settings
from kvplan.timing import constant
from tests.core.random_runs import STEPS_BOUND, deployments, state

RUNS = settings(
    max_examples=int(os.environ.get("KVPLAN_TEST_EXAMPLES", "1000")),
    deadline=None,
    derandomize=True,
    phases=[Phase.explicit, Phase.generate],  # shrinking takes minutes: everything depends on everything
    report_multiple_bugs=False,
    suppress_health_check=[HealthCheck.too_slow],
)


def finish(replica: Replica, until: float = np.inf) -> None:
    assert replica.run(constant(1.0).compiled(), until=until, work=1_000_000) or until < np.inf


@RUNS
@given(deployments(), st.sampled_from([1, 5, 11, 23]))
def test_the_state_is_sound_after_every_step(deployment: tuple[Settings, Workload], every: int) -> None:
    """Checked after every step, or only now and then, so that more examples fit the time."""
    chosen, workload = deployment
    replica = Replica(chosen, workload)
    now, steps = 0.0, 0
    while True:
        s = replica.core.scalars[0]
        if replica.idle and s["next_arrival"] >= len(workload):
            break
        if replica.idle:
            now = max(now, float(workload.arrival_s[s["next_arrival"]]))
        planned = replica.plan(now)
        if steps % every == 0:
            check(replica.core)
        s = replica.core.scalars[0]
        if not planned and not s["num_running"] and s["num_waiting"] and not s["num_preempted"]:
            replica.refuse_head()
        now += 1.0
        replica.commit(now)
        if steps % every == 0:
            check(replica.core)
        steps += 1
        assert steps < STEPS_BOUND, "the run does not end"
    s = replica.core.scalars[0]
    assert s["finished"] + s["refused"] == len(workload)
    assert s["used_slots"] == s["shared_slots"] == s["never_slots"] == s["held_slots"] == s["committed_blocks"] == 0
    done = replica.core.requests["status"] == 3
    assert (replica.core.requests["generated"] == replica.core.requests["output"])[done].all()


@RUNS
@given(deployments(), st.floats(0.0, 120.0))
def test_skipping_a_stretch_leaves_what_single_steps_leave(deployment: tuple[Settings, Workload], pause: float) -> None:
    """The same integers (lengths, tables, queues, physical ids, prefix map) and the clock to 1e-9, in the middle of
    a run and at its end."""
    chosen, workload = deployment
    fast, slow = Replica(chosen, workload), Replica(replace(chosen, skip=False), workload)
    for until in (pause, np.inf):
        finish(fast, until)
        finish(slow, until)
        assert state(fast) == state(slow)
        _same_times(fast, slow)


def _same_times(fast: Replica, slow: Replica) -> None:
    for name in ("first_scheduled_s", "first_token_s", "last_token_s", "finish_s"):
        np.testing.assert_allclose(fast.core.requests[name], slow.core.requests[name], rtol=0, atol=1e-9)
    assert abs(fast.core.scalars["now"][0] - slow.core.scalars["now"][0]) <= 1e-9
    a, b = fast.record, slow.record
    for name in a.timeline.dtype.names:
        np.testing.assert_allclose(a.timeline[name], b.timeline[name], rtol=1e-12, atol=1e-9, err_msg=name)
    np.testing.assert_array_equal(a.gap_counts, b.gap_counts)
    np.testing.assert_array_equal(a.map_owner, b.map_owner)


def test_both_ways_skip_something() -> None:
    """The property above is not empty: a plain run skips most of its steps."""
    workload = Workload(np.zeros(4), np.array([5, 6, 7, 8]), np.array([100, 90, 80, 70]))
    replica = Replica(Settings(num_gpu_blocks=100), workload)
    finish(replica)
    s = replica.core.scalars[0]
    assert (int(s["step"]), int(s["steps_skipped"])) == (100, 95)
