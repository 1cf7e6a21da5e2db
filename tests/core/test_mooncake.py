"""Prefix caching on the Mooncake traces: what an endless pool gives, and what the rules leave of it.

A trace names its prompts by chained ids of 512 tokens, the last of them often partial. How many ids were seen before
is an upper bound; an engine keeps full blocks only and computes at least the last token of a prompt. Smaller blocks
lose less of a prompt's end, so at an endless pool the hit rate falls from block size 16 to 512.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from kvplan.core.replica import Replica
from kvplan.core.settings import Settings
from kvplan.simulation import workload_of
from kvplan.timing import constant
from kvplan.trace import Trace, read_trace

BLOCK = 512
"""Tokens of an id."""
SEEN = {"conversation": 0.366, "synthetic": 0.640}
SIZES = (16, 32, 64, 128, 256, 512)


@pytest.fixture(scope="module", params=SEEN)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def rows(shared_data: Path, name: str) -> list[dict[str, object]]:
    path = shared_data / f"traces/mooncake/{name}_trace.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.fixture(scope="module")
def trace(shared_data: Path, name: str) -> Trace:
    return read_trace(shared_data / f"traces/mooncake/{name}_trace.jsonl")


def hits(trace: Trace, block_size: int, pool_tokens: int) -> tuple[int, int, int]:
    """(hit tokens, query tokens, preemptions) with a long step, so that the queue never empties before its time."""
    chosen = Settings(
        block_size=block_size,
        num_gpu_blocks=pool_tokens // block_size + 1,
        enable_prefix_caching=True,
        max_model_len=1 << 18,
        max_num_batched_tokens=8192,
    )
    replica = Replica(chosen, workload_of(trace))
    replica.run(constant(0.05).compiled())
    s = replica.core.scalars[0]
    assert s["finished"] == len(trace)
    return int(s["hit_tokens"]), int(s["query_tokens"]), int(s["preemptions"])


def endless(trace: Trace) -> int:
    """Tokens of a pool that never evicts: every block of every request at once."""
    return int((trace.prompt_tokens + trace.output_tokens + BLOCK).sum())


def test_the_share_of_ids_seen_before(rows: list[dict[str, object]], name: str) -> None:
    """0.366 and 0.640, ids of a partial last block counted."""
    ids = [i for row in rows for i in row["hash_ids"]]  # type: ignore[attr-defined]
    assert 1 - len(set(ids)) / len(ids) == pytest.approx(SEEN[name], abs=5e-4)


def test_what_the_rules_leave_is_what_the_ids_say(rows: list[dict[str, object]], trace: Trace) -> None:
    """At blocks of 512: the leading ids seen before, full blocks alone, the last token always computed.

    Requests are admitted in order of arrival, and a block counts from the step that allocates it, so the ids alone
    tell every hit.
    """
    seen: set[int] = set()
    expected = 0
    for row in rows:
        ids, prompt = list(row["hash_ids"]), int(row["input_length"])  # type: ignore[arg-type, call-overload]
        full = ids[: prompt // BLOCK]
        run = 0
        while run < min(len(full), (prompt - 1) // BLOCK) and full[run] in seen:
            run += 1
        expected += run * BLOCK
        seen.update(full)
    found, queries, preempted = hits(trace, BLOCK, endless(trace))
    assert (found, queries, preempted) == (expected, int(trace.prompt_tokens.sum()), 0)


def test_smaller_blocks_hit_more_at_an_endless_pool(trace: Trace) -> None:
    """The first 500 requests: 16-token blocks lose less of a shared prefix's end than those of 512."""
    first = trace.take(np.arange(500))
    rates = [found / queries for found, queries, _ in (hits(first, size, endless(first)) for size in SIZES)]
    assert (np.diff(rates) <= 0).all(), rates
    assert rates[0] > rates[-1]


@pytest.mark.slow
def test_the_curve_over_block_sizes_at_a_real_pool(trace: Trace) -> None:
    """1,000,000 tokens of KV cache, overloaded: the curve from 16 to 512 is flat within a hundredth.

    What these traces share comes in whole ids of 512 tokens, which blocks of every size up to 512 serve alike. What
    is left is the order of eviction, and that may favour either end, so the curve need not fall here.
    """
    rates = np.array([found / queries for found, queries, _ in (hits(trace, size, 1_000_000) for size in SIZES)])
    assert rates.max() < 1.01 * rates.min(), rates
