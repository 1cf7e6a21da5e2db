"""Random deployments and traces, small enough that every rule is met within a few hundred steps."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import strategies as st

from kvplan.core.replica import Replica, Workload
from kvplan.core.settings import CacheGroup, Settings

WINDOWED = (CacheGroup("sliding_window", 12), CacheGroup("chunked_local", 16), CacheGroup("chunked_local", 12))
STEPS_BOUND = 20_000


@st.composite
def settings(draw: st.DrawFn) -> Settings:
    paged = draw(st.booleans()) or draw(st.booleans())
    static = draw(st.sampled_from([False, False, False, True]))
    asynchronous = not static and draw(st.booleans())
    max_model_len = draw(st.sampled_from([40, 100, 257]))
    chunked = draw(st.sampled_from([True, True, True, False]))
    budget = draw(st.integers(3, 80)) if chunked else max_model_len + draw(st.integers(0, 40))
    groups: tuple[CacheGroup, ...] = (CacheGroup(),)
    swap = paged and not asynchronous and draw(st.booleans())
    caching = paged and not static and draw(st.booleans())
    if paged:
        groups += tuple(draw(st.lists(st.sampled_from(WINDOWED), max_size=2)))
        if not caching and draw(st.sampled_from([False, False, True])):
            groups += (CacheGroup("state_space"),)
    return Settings(
        block_size=draw(st.sampled_from([1, 2, 4, 8, 16])),
        num_gpu_blocks=draw(st.integers(2, 90)),
        pool_slots=draw(st.integers(1, 600)),
        layout="paged" if paged else "contiguous",
        reservation=draw(st.sampled_from(["max", "pow2", "oracle", "grow"])),
        placement=draw(st.sampled_from(["buddy", "first-fit", "best-fit"])),
        enable_prefix_caching=caching,
        max_model_len=max_model_len,
        max_num_seqs=draw(st.integers(1, 9)),
        max_num_batched_tokens=budget,
        enable_chunked_prefill=chunked,
        scheduling_policy=draw(st.sampled_from(["fcfs", "priority"])),
        long_prefill_token_threshold=draw(st.sampled_from([0, 0, 7])),
        watermark=draw(st.sampled_from([0.0, 0.0, 0.1])),
        scheduler_reserve_full_isl=draw(st.booleans()),
        async_scheduling=asynchronous,
        batching="static" if static else "continuous",
        preemption="swap" if swap else "recompute",
        host_blocks=draw(st.integers(0, 60)) if swap else 0,
        admission=draw(st.sampled_from(["vllm", "vllm", "guaranteed_no_evict", "max_utilization"])),
        num_speculative_tokens=0 if asynchronous else draw(st.sampled_from([0, 0, 3])),
        acceptance_rate=0.6,
        draft_slots=draw(st.booleans()),
        groups=groups,
    )


@st.composite
def workloads(draw: st.DrawFn, several: bool) -> Workload:
    """Up to 14 requests in bursts; prompts share prefixes, later ones continue former ones' outputs."""
    count = draw(st.integers(1, 14))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    gaps = rng.choice([0.0, 0.0, 1.0, 3.0, 40.0], count)
    prompt = rng.integers(1, 50, count)
    output = rng.integers(1, 30, count)
    pieces, pointer = [], [0]
    source = np.where(rng.random(count) < 0.5, 100 + np.arange(count), -1)
    start = np.zeros(count, np.int64)
    for r in range(count):
        if rng.random() < 0.3:  # a turn of a session that is one source: prompt and output are the beginning of it
            pieces.append((300 + int(rng.integers(0, 2)), 0, int(prompt[r])))
            source[r], start[r] = pieces[-1][0], prompt[r]
        elif rng.random() < 0.6:
            length = int(rng.integers(1, prompt[r] + 1))
            pieces.append((int(rng.integers(0, 3)), 0, length))
            if r and length < prompt[r] and rng.random() < 0.4:
                pieces.append((100 + int(rng.integers(0, r)), 0, int(prompt[r]) - length))
        pointer.append(len(pieces))
    flat = np.array(pieces, np.int64).reshape(-1, 3)
    return Workload(
        arrival_s=np.cumsum(gaps),
        prompt_tokens=prompt,
        output_tokens=output,
        priority=rng.integers(0, 3, count).astype(np.int32),
        sequences=rng.choice([1, 1, 2, 4], count).astype(np.int32) if several else None,
        beams=rng.random(count) < 0.5 if several else None,
        segment_ptr=np.array(pointer, np.int64),
        segment_source=np.ascontiguousarray(flat[:, 0]),
        segment_start=np.ascontiguousarray(flat[:, 1]),
        segment_tokens=np.ascontiguousarray(flat[:, 2]),
        output_source=source,
        output_start=start,
    )


@st.composite
def deployments(draw: st.DrawFn) -> tuple[Settings, Workload]:
    chosen = draw(settings())
    return chosen, draw(workloads(several=draw(st.booleans())))


def state(replica: Replica) -> dict[str, Any]:
    """Every integer that the scheduler decides by, and the clock apart."""
    core = replica.core
    running = core.running[: int(core.scalars["num_running"][0])].tolist()
    scalars = {name: core.scalars[name][0] for name in core.scalars.dtype.names}
    ignored = ("now", "num_planned", "planned_tokens", "num_copies", "steps_skipped", "scratch_request")
    ignored += ("scratch_hashes", "layout_dirty", "device_free_s", "num_preempted")
    times = ("first_scheduled_s", "first_token_s", "last_token_s", "finish_s", "arrival_s")
    tables = {
        r: [
            core.tables[g, int(core.requests["row"][r]), : int(core.requests["blocks"][r])].tolist()
            for g in range(len(core.groups))
        ]
        for r in running
        if replica.settings.paged
    }
    return {
        "running": running,
        "scalars": {name: int(value) for name, value in scalars.items() if name not in ignored},
        "requests": {
            name: core.requests[name].tolist() for name in core.requests.dtype.names if name not in (*times, "row")
        },
        "tables": tables,
        "blocks": core.blocks.tolist(),
        "heads": core.heads.tolist(),
    }
