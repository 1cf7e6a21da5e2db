"""Whatever is asked of a pool, the run ends, in steps that can be counted, and says what happened to whom."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from kvplan.core.check import check
from kvplan.core.replica import Replica, Workload
from kvplan.core.settings import CacheGroup, Settings
from kvplan.core.state import FINISHED, REFUSALS, REFUSED
from kvplan.timing import constant

FITS_NOT = "needs more KV cache than the whole pool"
TOO_LONG = "prompt + output exceeds max_model_len"


def asked(*requests: tuple[int, int], arrivals: Any = None, **columns: Any) -> Workload:
    prompt, output = np.array(requests, np.int64).T
    arrival = np.zeros(len(prompt)) if arrivals is None else np.asarray(arrivals, np.float64)
    return Workload(arrival, np.ascontiguousarray(prompt), np.ascontiguousarray(output), **columns)


def ended(chosen: Settings, workload: Workload, *, seconds: float = 1.0) -> Replica:
    """Runs to the end and checks that every request is finished or was refused before it ever ran."""
    replica = Replica(chosen, workload)
    most = 4 * int((workload.prompt_tokens + workload.output_tokens).sum()) * len(workload) + 1000
    replica.run(constant(seconds).compiled(), work=max(most, 20_000_000))
    s, requests = replica.core.scalars[0], replica.core.requests[: len(workload)]
    assert s["finished"] + s["refused"] == len(workload)
    assert set(requests["status"].tolist()) <= {int(FINISHED), int(REFUSED)}
    assert (requests["first_scheduled_s"][requests["status"] == REFUSED] < 0).all(), "refused after it ran"
    assert (requests["generated"] == requests["output"])[requests["status"] == FINISHED].all()
    check(replica.core)
    return replica


def reasons(replica: Replica) -> list[str]:
    return [REFUSALS[r] for r in replica.core.requests["reason"]]


LAYOUTS = [
    {"layout": "paged"},
    {"layout": "paged", "enable_prefix_caching": True},
    {"layout": "paged", "preemption": "swap", "host_blocks": 4},
    {"layout": "paged", "async_scheduling": True},
    {"layout": "paged", "batching": "static"},
    {"layout": "paged", "scheduling_policy": "priority"},
    {"layout": "paged", "admission": "guaranteed_no_evict"},
    {"layout": "paged", "admission": "max_utilization"},
    {"layout": "paged", "num_speculative_tokens": 3, "acceptance_rate": 0.5, "draft_slots": True},
    {"layout": "contiguous", "reservation": "grow", "placement": "first-fit"},
    {"layout": "contiguous", "reservation": "grow", "placement": "buddy", "batching": "static"},
    {"layout": "contiguous", "reservation": "oracle", "num_speculative_tokens": 3, "draft_slots": True},
]
every_layout = pytest.mark.parametrize("rules", LAYOUTS, ids=lambda rules: "-".join(map(str, rules.values())))


@every_layout
def test_a_request_that_outgrows_the_pool_alone_is_refused_at_arrival(rules: dict[str, Any]) -> None:
    """128 slots; 120 + 20 tokens begin to fit and would never end. The others are served as if it had not come."""
    chosen = Settings(block_size=16, num_gpu_blocks=9, pool_slots=128, max_model_len=256, **rules)
    replica = ended(chosen, asked((40, 20), (120, 20), (40, 20)))
    assert reasons(replica) == ["", FITS_NOT, ""]


@every_layout
def test_a_pool_of_one_block(rules: dict[str, Any]) -> None:
    """16 slots: what needs 16 tokens or fewer is served, one at a time; 17 never."""
    chosen = Settings(block_size=16, num_gpu_blocks=2, pool_slots=16, max_model_len=64, **rules)
    drafts = chosen.num_speculative_tokens
    replica = ended(chosen, asked((1, 1), (10, 7 - drafts - (not chosen.paged)), (10, 8), (17, 1), (5, 5)))
    assert [bool(reason) for reason in reasons(replica)] == [False, False, True, True, False]


def test_turns_of_a_session_beyond_max_model_len_are_refused_each_with_its_reason() -> None:
    """Each turn's prompt is all of the former turn and 20 tokens more."""
    turns = [(20 + 40 * turn, 20) for turn in range(10)]
    sources = np.arange(10)
    pieces = [[(100 + t, s, n) for t in range(turn) for s, n in ((0, 40),)] for turn in range(10)]
    flat = np.array([piece for turn in pieces for piece in turn], np.int64).reshape(-1, 3)
    workload = asked(
        *turns,
        arrivals=np.arange(10) * 100.0,
        segment_ptr=np.cumsum([0, *map(len, pieces)]),
        segment_source=np.ascontiguousarray(flat[:, 0]),
        segment_start=np.ascontiguousarray(flat[:, 1]),
        segment_tokens=np.ascontiguousarray(flat[:, 2]),
        output_source=200 + sources,
    )
    chosen = Settings(num_gpu_blocks=40, max_model_len=256, enable_prefix_caching=True)
    replica = ended(chosen, workload)
    assert reasons(replica) == [""] * 6 + [TOO_LONG] * 4


@every_layout
def test_ten_thousand_arrivals_at_once(rules: dict[str, Any]) -> None:
    rng = np.random.default_rng(0)
    sizes = zip(rng.integers(1, 100, 10_000), rng.integers(1, 50, 10_000), strict=True)
    chosen = Settings(num_gpu_blocks=200, pool_slots=3200, max_model_len=256, **rules)
    replica = ended(chosen, asked(*sizes))
    s = replica.core.scalars[0]
    assert (int(s["refused"]), bool(s["step"] < 4 * 10_000 * 50)) == (0, True)


@every_layout
def test_ten_times_too_much_for_an_hour(rules: dict[str, Any]) -> None:
    """An hour of arrivals, ten times what the pool serves: the queue grows, the run ends hours later."""
    rng = np.random.default_rng(0)
    chosen = Settings(num_gpu_blocks=200, pool_slots=3200, max_model_len=512, **rules)
    prompt, output = rng.integers(50, 200, 20_000), rng.integers(20, 100, 20_000)
    arrivals = np.sort(rng.uniform(0, 3600, 20_000))
    workload = Workload(arrivals, prompt, output, priority=rng.integers(0, 5, 20_000).astype(np.int32))
    replica = ended(chosen, workload, seconds=0.5)
    s = replica.core.scalars[0]
    assert (int(s["refused"]), bool(s["now"] > 3 * 3600)) == (0, True)


@pytest.mark.parametrize("kind", ["full", "sliding_window", "chunked_local", "state_space"])
@pytest.mark.parametrize("beams", [False, True])
def test_sequences_that_share_a_prompt_fit_or_are_refused(kind: str, beams: bool) -> None:
    """Every pool from 2 blocks to 60: three sequences of 30 + 20 tokens are refused at once or served to the end."""
    groups = (CacheGroup(), CacheGroup(kind, 12 if kind in ("sliding_window", "chunked_local") else 0))
    base = Settings(block_size=4, num_gpu_blocks=2, max_model_len=100, max_num_batched_tokens=8, groups=groups)
    several = {"sequences": np.full(2, 3, np.int32), "beams": np.full(2, beams)}
    refused = []
    for blocks in range(2, 61):
        for preemption in ("recompute", "swap"):
            chosen = replace(base, num_gpu_blocks=blocks, preemption=preemption, host_blocks=30)
            replica = ended(chosen, asked((30, 20), (25, 10), **several))
            refused.append(int(replica.core.scalars["refused"][0]))
    assert (refused[0], refused[-1], refused == sorted(refused, reverse=True)) == (2, 0, True)
