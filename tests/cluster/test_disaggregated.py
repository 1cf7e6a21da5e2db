"""Prefill and decode apart: the hand-over in time, and that the decode pool computes no prompt."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from kvplan.cluster.disaggregated import Link, simulate_disaggregated
from kvplan.cluster.spec import ClusterSpec, Fault
from kvplan.errors import InputError
from tests.cluster.cases import cluster, of, server, traffic

LINK = Link(bytes_per_s=1000.0, kv_bytes_per_token=1.0, latency_s=0.001)


def test_a_request_is_prefilled_carried_over_and_decoded() -> None:
    result, transfer_s = simulate_disaggregated(cluster(1), cluster(1), LINK, of([0.0], prompt=100, output=10))
    row = result.ledger.rows[0]
    # One step of 10 ms for the first token, 101 ms on the link, nine steps for the other nine tokens.
    assert transfer_s[0] == pytest.approx(0.101)
    assert (row["first_token_s"], row["finish_s"]) == pytest.approx((0.01, 0.01 + 0.101 + 0.09))
    assert int(result.replicas[1].replica.core.scalars["scheduled_tokens"][0]) == 9


def test_a_link_carries_one_request_at_a_time() -> None:
    sent = of([0.0, 0.0, 0.0], prompt=100, output=2)
    _, of_one = simulate_disaggregated(cluster(1), cluster(1), LINK, sent)
    _, of_three = simulate_disaggregated(cluster(3), cluster(1), LINK, sent)
    assert of_one.tolist() == pytest.approx([0.101, 0.202, 0.303])
    assert of_three.tolist() == pytest.approx([0.101] * 3)


def test_one_token_needs_no_decode_replica() -> None:
    result, transfer_s = simulate_disaggregated(cluster(1), cluster(1), LINK, of([0.0, 1.0], output=1))
    assert np.isnan(transfer_s).all()
    assert result.ledger.counts()["finished"] == 2
    assert result.replicas[1].requests == 0


def test_no_request_is_lost_and_prompts_are_computed_once() -> None:
    sent = traffic(rate=15.0)
    fast = Link(1e9, 1.0)
    roomy = ClusterSpec((server(num_gpu_blocks=2000),) * 2, "least_outstanding")
    result, _ = simulate_disaggregated(roomy, roomy, fast, sent)
    assert result.ledger.counts()["finished"] == len(sent)
    decoded = sum(int(run.replica.core.scalars["scheduled_tokens"][0]) for run in result.replicas[2:])
    assert decoded == int((sent.workload.output_tokens - 1).sum())


def test_a_failed_decode_replica_makes_the_others_compute_the_prompt() -> None:
    sent = of([0.0, 0.0], prompt=100, output=40)
    failing = dataclasses.replace(cluster(2), faults=(Fault(0, 0.3),))
    result, _ = simulate_disaggregated(cluster(1), failing, LINK, sent)
    assert result.ledger.counts()["finished"] == 2
    assert result.events["retried"] == 1
    assert int(result.replicas[2].replica.core.scalars["scheduled_tokens"][0]) == 39 + 100 + 39


def test_what_is_not_handed_over_is_refused() -> None:
    with pytest.raises(InputError, match="above 0"):
        Link(0.0, 1.0)
