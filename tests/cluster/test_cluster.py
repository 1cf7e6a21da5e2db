"""Routers, faults, autoscaling, admission, clients: who serves a request, and that none is lost unseen."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kvplan.cluster import cluster as event_by_event
from kvplan.cluster.ledger import OUTCOMES
from kvplan.cluster.router import Router
from kvplan.cluster.run import ClusterResult, simulate_cluster
from kvplan.cluster.spec import BLIND_ROUTERS, ROUTERS, Admission, Autoscale, Client, ClusterSpec, Fault, Server
from kvplan.core.check import check
from kvplan.errors import InputError
from tests.cluster.cases import cluster, of, server, traffic

TIMES = ["first_scheduled_s", "first_token_s", "finish_s"]


def events_of(spec: ClusterSpec, sent: object) -> event_by_event.Cluster:
    """The same cluster, arrival by arrival whatever the router."""
    ran = event_by_event.Cluster(spec, sent)
    ran.run()
    return ran


@pytest.mark.parametrize("router", ROUTERS)
def test_one_replica_equals_simulate_exactly(router: str) -> None:
    import kvplan

    scenario = {
        "model": "llama-3.1-8b",
        "gpu": "h100-sxm",
        "cache": {"num_gpu_blocks_override": 900},
        "scheduler": {"max_model_len": 2048, "max_num_seqs": 32, "async_scheduling": router == "random"},
        "workload": {
            "synthetic": {
                "requests": 500,
                "arrivals": {"rate": 40.0},
                "prompt": {"lognormal": {"median": 300, "sigma": 0.8, "max": 1500}},
                "output": {"lognormal": {"median": 60, "sigma": 0.8, "max": 400}},
            }
        },
    }
    from kvplan.cluster.traffic import Traffic
    from kvplan.resolve import resolve
    from kvplan.scenario import Scenario

    read = Scenario.build(scenario)
    expected = kvplan.simulate(read).requests
    spec = ClusterSpec((Server.of(resolve(read)),), router)
    table = events_of(spec, Traffic.of(read.trace())).ledger.table(Traffic.of(read.trace()))
    columns = [*TIMES, "queue_s", "ttft_s", "tpot_s", "e2e_s", "preemptions", "cached_tokens"]
    assert expected["preemptions"].sum() > 0
    assert table[columns].to_numpy().tolist() == pytest.approx(expected[columns].to_numpy(), abs=0, rel=0, nan_ok=True)


@pytest.mark.parametrize("router", BLIND_ROUTERS)
def test_in_shares_equals_event_by_event(router: str) -> None:
    sent, spec = traffic(rate=25.0), cluster(3, router, seed=5)
    fast, slow = simulate_cluster(spec, sent), events_of(spec, sent)
    assert len(np.unique(fast.ledger.rows["replica"])) == 3
    assert fast.ledger.rows.tolist() == slow.ledger.rows.tolist()


@pytest.mark.parametrize(
    ("router", "expected"),
    [
        ("round_robin", [0, 1, 2, 0, 1, 2]),
        # The replicas end after 0.1 s: at 0.11 s the first two are empty again.
        ("least_outstanding", [0, 1, 2, 0, 0, 1]),
    ],
)
def test_routes(router: str, expected: list[int]) -> None:
    sent = of([0.0, 0.01, 0.05, 0.111, 0.3, 0.3])
    assert simulate_cluster(cluster(3, router), sent).ledger.rows["replica"].tolist() == expected


def test_least_kv_sends_to_the_emptier_pool() -> None:
    sent = of([0.0, 0.01, 0.02, 0.03])
    sent.workload.prompt_tokens[0] = 500  # 32 blocks on replica 0; two requests of 2 blocks fit into less
    assert simulate_cluster(cluster(2, "least_kv"), sent).ledger.rows["replica"].tolist() == [0, 1, 1, 1]


def test_power_of_two_takes_the_shorter_queue_of_two() -> None:
    sent = traffic(rate=60.0)
    waits = {
        router: simulate_cluster(cluster(8, router), sent).ledger.seconds(sent)["queue_s"].mean()
        for router in ("random", "power_of_two", "least_outstanding")
    }
    assert waits["least_outstanding"] < waits["power_of_two"] < waits["random"]


def test_equal_keys_meet_on_one_replica_and_a_failure_moves_only_its_own() -> None:
    class Up:
        def __init__(self, index: int) -> None:
            self.index = index

    router = Router("prefix_aware")
    all_up, one_down = [Up(i) for i in range(5)], [Up(i) for i in (0, 1, 3, 4)]
    before = [all_up[router.choose(key, all_up, 0.0)].index for key in range(400)]
    after = [one_down[router.choose(key, one_down, 0.0)].index for key in range(400)]
    assert [b for b, a in zip(before, after, strict=True) if b != a] == [2] * before.count(2)
    assert min(before.count(i) for i in range(5)) > 50


def test_mixed_gpus_serve_at_their_own_speed() -> None:
    spec = ClusterSpec((server(0.01), server(0.02)))
    rows = simulate_cluster(spec, of([0.0, 0.0])).ledger.rows
    assert rows["finish_s"].tolist() == pytest.approx([0.1, 0.2])


def test_a_failure_retries_on_another_replica_and_the_client_waits_from_its_first_try() -> None:
    spec = cluster(2, faults=(Fault(0, 0.055, repair_s=1.0),), warm_up_s=0.5)
    sent = of([0.0, 0.0, 0.2, 2.0, 2.0])
    result = simulate_cluster(spec, sent)
    assert result.ledger.rows["replica"].tolist() == [1, 1, 1, 0, 1]
    assert result.ledger.rows["attempts"].tolist() == [2, 1, 1, 1, 1]
    # The step at 0.05 ends at 0.06; the request starts there afresh, beside the one that runs.
    assert result.table()["ttft_s"].tolist()[0] == pytest.approx(0.07)
    assert (result.events["failures"], result.events["retried"]) == (1, 1)


def test_with_no_replica_up_requests_wait_at_the_door() -> None:
    spec = cluster(1, faults=(Fault(0, 0.055, repair_s=1.0),), warm_up_s=0.5)
    rows = simulate_cluster(spec, of([0.0, 0.2])).ledger.rows
    assert rows["first_scheduled_s"].tolist() == pytest.approx([1.56, 1.56])
    lost = simulate_cluster(cluster(1, faults=(Fault(0, 0.055),)), of([0.0, 0.2]))
    assert lost.ledger.counts()["lost"] == 2


def test_admission_turns_away_and_clients_come_back() -> None:
    spec = cluster(1, "least_outstanding", admission=Admission(2))
    assert simulate_cluster(spec, of([0.0, 0.0, 0.0, 0.5])).ledger.counts()["rejected"] == 1
    patient = dataclasses.replace(spec, client=Client(retries=1, backoff_s=0.2))
    result = simulate_cluster(patient, of([0.0, 0.0, 0.0, 0.5]))
    assert result.ledger.counts()["finished"] == 4
    assert result.table()["ttft_s"].tolist() == pytest.approx([0.01, 0.01, 0.21, 0.01])


def test_a_client_leaves_before_its_first_token() -> None:
    one_at_a_time = ClusterSpec((server(max_num_seqs=1),), client=Client(first_token_timeout_s=0.15))
    result = simulate_cluster(one_at_a_time, of([0.0, 0.0, 0.0]))
    assert [OUTCOMES[o] for o in result.ledger.rows["outcome"]] == ["finished", "finished", "timed_out"]
    again = dataclasses.replace(one_at_a_time, client=Client(0.15, retries=1, backoff_s=0.01))
    assert simulate_cluster(again, of([0.0, 0.0, 0.0])).ledger.counts()["finished"] == 3


def test_the_autoscaler_follows_the_load_and_gpu_seconds_are_what_was_started() -> None:
    sent = traffic(rate=40.0)
    rule = Autoscale(target_outstanding=8, maximum=6, interval_s=1.0, cool_down_s=3.0)
    spec = cluster(1, "least_outstanding", autoscale=rule, warm_up_s=0.5)
    result = simulate_cluster(spec, sent)
    alone = simulate_cluster(cluster(1, "least_outstanding"), sent)
    assert min(result.events["scale_ups"], result.events["scale_downs"]) > 0
    assert min(run.alive_s for run in result.replicas) < max(run.alive_s for run in result.replicas)
    assert result.ledger.counts()["finished"] == len(sent)
    assert result.ledger.seconds(sent)["queue_s"].mean() < alone.ledger.seconds(sent)["queue_s"].mean() / 2


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.sampled_from(ROUTERS),
    st.lists(st.tuples(st.integers(0, 2), st.floats(0, 30), st.sampled_from([None, 0.0, 4.0])), max_size=5),
    st.sampled_from(["retry", "lose"]),
    st.sampled_from([None, Admission(6)]),
    st.sampled_from([Client(), Client(0.3), Client(0.3, retries=2, backoff_s=0.2)]),
    st.sampled_from([None, Autoscale(5.0, maximum=4, interval_s=2.0, cool_down_s=4.0)]),
)
def test_no_request_is_lost_unseen(router, faults, on_fault, admission, client, autoscale) -> None:
    spec = cluster(
        3,
        router,
        faults=tuple(Fault(*fault) for fault in faults),
        on_fault=on_fault,
        admission=admission,
        client=client,
        autoscale=autoscale,
        warm_up_s=1.0,
    )
    sent = traffic(requests=250, rate=25.0)
    result = simulate_cluster(spec, sent)
    counts = result.ledger.counts()
    for run in result.replicas:
        check(run.replica.core)
        assert run.replica.idle
    assert counts["unfinished"] == 0
    assert sum(counts[outcome] for outcome in OUTCOMES) == len(sent)
    finished = sum(int(run.replica.core.scalars["finished"][0]) for run in result.replicas)
    assert finished == counts["finished"]
    _little(result)


def _little(result: ClusterResult) -> None:
    """Little's law at the replicas: sequence-seconds by the recorder are those by the requests' own times."""
    rows = result.ledger.rows
    once = (rows["attempts"] <= 1) & (rows["outcome"] == OUTCOMES.index("finished"))
    if once.all() and not rows["preemptions"].any():
        running = sum(float(run.replica.record.timeline["running"].sum()) for run in result.replicas)
        assert running == pytest.approx(float((rows["finish_s"] - rows["first_scheduled_s"]).sum()), rel=1e-9)


@pytest.mark.parametrize("router", ROUTERS)
def test_littles_law(router: str) -> None:
    roomy = ClusterSpec((server(num_gpu_blocks=4000),) * 4, router)
    result = simulate_cluster(roomy, traffic(rate=20.0))
    assert not result.ledger.rows["preemptions"].any()
    _little(result)


@pytest.mark.parametrize(
    ("wrong", "field"),
    [
        ({"router": "fastest"}, "router"),
        ({"faults": (Fault(3, 0.0),)}, "fault.replica"),
        ({"on_fault": "ignore"}, "on_fault"),
        ({"admission": Admission(0)}, "max_outstanding"),
        ({"autoscale": Autoscale(1.0, minimum=0)}, "autoscale.minimum"),
        ({"client": Client(0.0)}, "client.first_token_timeout_s"),
    ],
)
def test_what_makes_no_cluster_is_named(wrong: dict, field: str) -> None:
    with pytest.raises(InputError) as error:
        ClusterSpec((server(),), **wrong)
    assert error.value.field == field
