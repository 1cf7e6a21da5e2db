"""What the shadow, the state machines and the random runs have found, each as the smallest story that shows it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from kvplan.core.replica import Replica
from kvplan.core.settings import CacheGroup, Settings, admission_cap
from kvplan.timing import constant
from tests.core.random_runs import state
from tests.core.shadow import run_in_the_shadow
from tests.core.test_no_livelock import asked, ended


def test_a_done_member_of_a_static_batch_is_never_preempted() -> None:
    """It holds its blocks until the batch ends; when a member needs them, it leaves. It was preempted and ran anew."""
    chosen = Settings(block_size=4, num_gpu_blocks=11, max_model_len=64, batching="static")
    replica = ended(chosen, asked((13, 19), (13, 3)))
    assert replica.core.scalars["preemptions"][0] == 0


def test_a_static_batch_closes_in_a_skipped_stretch_too() -> None:
    """A batch closes in the first step in which nobody joins, be it walked or skipped."""
    chosen = Settings(block_size=4, num_gpu_blocks=72, batching="static")
    workload = asked((48, 15), (4, 11), arrivals=[1.0, 4.0])
    fast, slow = Replica(chosen, workload), Replica(replace(chosen, skip=False), workload)
    for replica in (fast, slow):
        replica.run(constant(1.0).compiled(), until=4.08)
    assert state(fast) == state(slow)


def test_slots_for_drafts_are_not_shared_when_sequences_part() -> None:
    """The block beyond the prompt, taken for drafts, was shared by the fork and written by every sequence."""
    chosen = Settings(
        block_size=4,
        num_gpu_blocks=60,
        max_num_batched_tokens=5,
        num_speculative_tokens=3,
        acceptance_rate=0.5,
        draft_slots=True,
    )
    several = {"sequences": np.full(1, 3, np.int32), "beams": np.zeros(1, bool)}
    assert run_in_the_shadow(chosen, asked((16, 20), **several)).core.scalars["finished"][0] == 1


def test_beams_that_draft_keep_their_own_slots_ahead() -> None:
    chosen = Settings(block_size=4, num_gpu_blocks=60, num_speculative_tokens=3, draft_slots=True, beam_survival=0.3)
    several = {"sequences": np.full(1, 3, np.int32), "beams": np.ones(1, bool)}
    assert run_in_the_shadow(chosen, asked((16, 20), **several)).core.scalars["finished"][0] == 1


def test_async_scheduling_waits_for_the_fork() -> None:
    """The step after the prompt was planned for one sequence, since the fork came with the commit."""
    chosen = Settings(block_size=4, num_gpu_blocks=60, async_scheduling=True)
    several = {"sequences": np.full(2, 2, np.int32), "beams": np.array([False, True])}
    assert run_in_the_shadow(chosen, asked((6, 10), (9, 12), **several)).core.scalars["finished"][0] == 2


def test_each_sequence_has_a_state_of_its_own() -> None:
    """State-space blocks were not parted: the rows of later sequences named blocks of others."""
    chosen = Settings(block_size=4, num_gpu_blocks=60, groups=(CacheGroup(), CacheGroup("state_space")))
    several = {"sequences": np.full(1, 3, np.int32), "beams": np.ones(1, bool)}
    replica = ended(chosen, asked((6, 12), **several))
    assert replica.core.scalars["free_blocks"][0] == 59


def test_a_row_given_back_by_a_swap_keeps_no_memory_of_its_window() -> None:
    """The next request in that row skipped its first columns when it let go, and lost the blocks for good."""
    chosen = Settings(
        block_size=4,
        num_gpu_blocks=24,
        preemption="swap",
        host_blocks=40,
        max_model_len=100,
        max_num_batched_tokens=40,
        groups=(CacheGroup(), CacheGroup("sliding_window", 8)),
    )
    replica = ended(chosen, asked((20, 25), (20, 25), (20, 25), (3, 2)))
    s = replica.core.scalars[0]
    assert (bool(s["swaps"] > 0), int(s["free_blocks"])) == (True, 23)


def test_a_block_leaves_for_the_host_before_a_copy_is_made_into_it() -> None:
    """X parts its last block just when Y must leave: the copy goes into a block of Y's."""
    chosen = Settings(block_size=4, num_gpu_blocks=6, preemption="swap", host_blocks=20, max_model_len=100)
    several = {"sequences": np.array([2, 1], np.int32), "beams": np.zeros(2, bool)}
    replica = run_in_the_shadow(chosen, asked((6, 5), (12, 5), **several))
    assert (replica.core.scalars["swaps"][0] > 0, int(replica.core.scalars["finished"][0])) == (True, 2)


def test_swapped_sequences_that_shared_are_never_refused_after_they_ran() -> None:
    """Sharing ends with the move, so the way back may need more than the pool: then they are computed again."""
    chosen = Settings(block_size=4, num_gpu_blocks=16, preemption="swap", host_blocks=60, max_model_len=100)
    several = {"sequences": np.array([1, 4], np.int32), "beams": np.zeros(2, bool)}
    replica = ended(chosen, asked((8, 30), (24, 6), **several))
    assert replica.core.scalars["refused"][0] == 0


def test_the_way_back_from_the_host_asks_for_what_it_needs() -> None:
    """A state-space group was counted as growing with every block, and the request refused though it fitted."""
    chosen = Settings(
        block_size=4,
        num_gpu_blocks=11,
        preemption="swap",
        host_blocks=40,
        max_model_len=100,
        groups=(CacheGroup(), CacheGroup("state_space")),
    )
    replica = ended(chosen, asked((16, 20), (16, 20)))
    s = replica.core.scalars[0]
    assert (bool(s["swaps"] > 0), int(s["refused"])) == (True, 0)


@pytest.mark.parametrize("reservation", ["oracle", "pow2"])
def test_a_reservation_has_room_for_the_last_drafts(reservation: str) -> None:
    """Slots for drafts beyond prompt + output were asked for and never there: the request preempted itself for ever."""
    chosen = Settings(
        layout="contiguous", reservation=reservation, pool_slots=256, num_speculative_tokens=3, draft_slots=True
    )
    assert ended(chosen, asked((34, 5), (8, 13))).core.scalars["preemptions"][0] == 0


def test_growth_comes_back_with_room_for_its_next_step() -> None:
    """32 slots, 16 held, and a step with drafts needs 18: old and new do not fit side by side, nor ever would have."""
    chosen = Settings(
        layout="contiguous",
        reservation="grow",
        pool_slots=32,
        max_model_len=40,
        max_num_batched_tokens=3,
        num_speculative_tokens=3,
        acceptance_rate=0.6,
    )
    assert ended(chosen, asked((6, 13))).core.scalars["finished"][0] == 1


def test_what_is_never_filled_is_counted_block_by_block() -> None:
    """With slots for drafts the end of a sequence can lie a block before its last, in a block that beams share."""
    chosen = Settings(
        block_size=4, num_gpu_blocks=28, max_num_seqs=2, num_speculative_tokens=3, draft_slots=True, beam_survival=0.2
    )
    several = {"sequences": np.full(1, 2, np.int32), "beams": np.ones(1, bool)}
    replica = Replica(chosen, asked((46, 25), **several))
    from kvplan.core.check import check

    for second in range(60):
        replica.plan(float(second))
        check(replica.core)
        replica.commit(second + 1.0)
    assert replica.idle


def test_a_block_enters_the_cache_only_if_its_step_runs() -> None:
    """A, the less urgent, is planned first and fills two blocks; then B needs one and A must leave, unwritten.

    vLLM 0.33 leaves them in its cache, and A would read two blocks of nothing when it comes back.
    """
    chosen = Settings(
        block_size=4,
        num_gpu_blocks=8,
        enable_prefix_caching=True,
        scheduling_policy="priority",
        max_num_batched_tokens=12,
        long_prefill_token_threshold=8,
        scheduler_reserve_full_isl=False,
    )
    workload = asked((26, 1), (4, 2), arrivals=[0.0, 1.0], priority=np.array([1, 0], np.int32))
    replica = run_in_the_shadow(chosen, workload)
    assert int(replica.core.scalars["preemptions"][0]) == 1


@pytest.mark.parametrize(("window", "blocks"), [(16, 5), (12, 6)])
def test_a_chunk_that_begins_within_a_block_holds_one_block_more(window: int, blocks: int) -> None:
    chosen = Settings(block_size=8, num_gpu_blocks=9, max_num_batched_tokens=24, max_model_len=4096)
    assert admission_cap(chosen, CacheGroup("chunked_local", window)) == blocks
