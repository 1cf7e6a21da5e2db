"""The simulated clock: plan, time, record, commit, until something outside happens.

A stretch in which nothing can change but lengths (pure decode, nobody can be admitted, nobody ends, the pool
suffices) is walked by `skip`: it allocates the same blocks in the same order and adds the same step times, but
touches a sequence only when it takes a block. The state afterwards is that of single steps, integer for integer.
"""

from __future__ import annotations

import numpy as np

from kvplan.core import cache, paged, queue
from kvplan.core.jit import compiled, inner
from kvplan.core.pool import take
from kvplan.core.recorder import Record, record_gap, record_step, record_tokens
from kvplan.core.scheduler import arrive, commit, plan
from kvplan.core.state import (
    CONTIGUOUS,
    FCFS,
    FULL,
    PAGED,
    REFUSED,
    RUNNING,
    STATIC,
    TOO_BIG,
    Core,
)
from kvplan.core.step_time import (
    TimingTables,
    advance_decode,
    step_seconds,
    token_seconds,
    whole_seconds,
)

DONE, AGAIN, OUTSIDE = range(3)
"""Why `replay` returned: nothing is left to do; it has done the work it was given; its time limit came."""


@compiled
def measure_load(core: Core, load) -> None:
    """What the planned step computes, for the step-time model."""
    c = core.config[0]
    s = core.scalars[0]
    step = load[0]
    step.rows = 0
    step.tokens = s.planned_tokens
    step.samples = 0
    step.decode_rows = 0
    step.decode_context = 0
    step.decode_context_squares = 0
    step.decode_context_max = 0
    step.prefill_rows = 0
    step.prefill_tokens = 0
    step.prefill_prior = 0
    step.prefill_context = 0
    step.prefill_pairs = 0
    for i in range(s.num_planned):
        entry = core.planned[i]
        rows = np.int64(entry.sequences)
        computed, tokens = np.int64(entry.computed), np.int64(entry.tokens)
        step.rows += rows
        if entry.samples == 1:
            # The first token of several samples comes from one row of logits.
            step.samples += rows * (1 + np.int64(entry.drafts))
        if tokens == 1 and computed > 0:
            context = computed + 1
            step.decode_rows += rows
            step.decode_context += rows * context
            step.decode_context_squares += rows * context * context
            step.decode_context_max = max(step.decode_context_max, context)
        else:
            step.prefill_rows += rows
            step.prefill_tokens += rows * tokens
            step.prefill_prior += rows * computed
            step.prefill_context += rows * (computed + tokens)
            step.prefill_pairs += rows * (tokens * computed + tokens * (tokens + 1) // 2)
    step.copied_blocks = s.num_copies
    step.swapped_out_blocks = s.num_swapped_out
    step.swapped_in_blocks = s.num_swapped_in
    step.block_bytes = np.int64(c.block_bytes)


@inner
def skippable(core: Core) -> int:
    """How many steps may be walked as one stretch from here; 0 for none."""
    c = core.config[0]
    s = core.scalars[0]
    if c.skip == 0 or c.async_scheduling == 1 or c.speculative_tokens > 0 or s.num_running == 0:
        return np.int64(0)
    if c.layout == PAGED and (len(core.groups) > 1 or core.groups[0].kind != FULL):
        return np.int64(0)
    steps = np.int64(1) << np.int64(40)
    rows = np.int64(0)
    for i in range(s.num_running):
        r = core.requests[core.running[i]]
        if r.status != RUNNING:
            continue  # a member of a static batch that is done
        if r.sequences > 1 or r.generated == 0 or r.computed != r.prompt + r.generated - 1:
            return np.int64(0)
        steps = min(steps, np.int64(r.output) - np.int64(r.generated) - 1)
        if c.layout == CONTIGUOUS:
            steps = min(steps, np.int64(r.blocks) - np.int64(r.computed))
        rows += 1
    if rows == 0 or rows > c.max_num_batched_tokens:
        return np.int64(0)
    if s.num_waiting > 0 and not closed(core, rows) and not blocked(core):
        return np.int64(0)
    return steps


@inner
def closed(core: Core, rows: int) -> bool:
    """Whether nobody could join, whoever came."""
    c = core.config[0]
    s = core.scalars[0]
    static = c.batching == STATIC and s.batch_open == 0
    return static or s.running_sequences == c.max_num_seqs or rows == c.max_num_batched_tokens


@inner
def blocked(core: Core) -> bool:
    """Whether the head of the queue waits for memory that no decode step can give back."""
    c = core.config[0]
    s = core.scalars[0]
    if s.head_blocked == 0 or s.num_finished > 0 or s.num_preempted > 0:
        return False
    return c.prefix_caching == 0 or c.outputs_shared == 0


@inner
def append_block(core: Core, request: int) -> None:
    """The next block of a sequence that has filled all of its own."""
    s = core.scalars[0]
    r = core.requests[request]
    core.tables[0, r.row, r.blocks] = take(core, request)
    r.blocks += 1
    beyond = np.int64(r.blocks) * core.config[0].block_size - paged.final_tokens(core, request)
    if beyond > 0:
        s.never_slots += beyond - r.never_slots
        r.never_slots = beyond


@inner
def sort_by_place(core: Core) -> None:
    """Sorts the running list by place in the block, stably: `buckets[p]..buckets[p + 1]` are the ends of place p's
    part of the list that begins at `buckets[block_size + 1]`."""
    s = core.scalars[0]
    size = core.config[0].block_size
    for place in range(size + 1):
        core.buckets[place] = 0
    for i in range(s.num_running):
        r = core.requests[core.running[i]]
        if r.status == RUNNING:
            core.buckets[np.int64(r.computed) % size + 1] += 1
    for place in range(size):
        core.buckets[place + 1] += core.buckets[place]
    for i in range(s.num_running):
        r = core.requests[core.running[i]]
        if r.status == RUNNING:
            place = np.int64(r.computed) % size
            core.buckets[size + 1 + core.buckets[place]] = i
            core.buckets[place] += 1
    for place in range(size, 0, -1):
        core.buckets[place] = core.buckets[place - 1]
    core.buckets[0] = 0


@inner
def allocate_step(core: Core, t: int) -> bool:
    """The blocks of step `t` of a stretch, in the order of the running list. False where the pool is too small."""
    c = core.config[0]
    s = core.scalars[0]
    size = c.block_size
    first = size + 1
    taking = (size - t % size) % size  # rows that stand here at the start begin a block now
    a, a_end = np.int64(core.buckets[taking]), np.int64(core.buckets[taking + 1])
    if a_end - a > s.free_blocks:
        return False
    filling = (size - 1 - t % size) % size  # rows that stand here fill a block now
    b, b_end = np.int64(core.buckets[filling]), np.int64(core.buckets[filling + 1])
    if c.prefix_caching == 0:
        b = b_end
    while a < a_end or b < b_end:
        take_one = a < a_end and (b >= b_end or core.buckets[first + a] <= core.buckets[first + b])
        if take_one:
            request = np.int64(core.running[core.buckets[first + a]])
            append_block(core, request)
            a += 1
        else:
            request = np.int64(core.running[core.buckets[first + b]])
            paged.register_blocks(core, request, (np.int64(core.requests[request].computed) + t + 1) // size)
            b += 1
    return True


@inner
def skip(core: Core, timing: TimingTables, load, record: Record, until: float) -> int:
    """Walks a stretch of pure decode. Returns the number of steps done."""
    c = core.config[0]
    s = core.scalars[0]
    limit = skippable(core)
    if limit < 2:
        return np.int64(0)
    step = load[0]
    step.rows = 0
    step.decode_context = 0
    step.decode_context_squares = 0
    step.decode_context_max = 0
    for i in range(s.num_running):
        r = core.requests[core.running[i]]
        if r.status == RUNNING:
            context = np.int64(r.computed) + 1
            step.rows += 1
            step.decode_context += context
            step.decode_context_squares += context * context
            step.decode_context_max = max(step.decode_context_max, context)
    rows = np.int64(step.rows)
    step.tokens = rows
    step.samples = rows
    step.decode_rows = rows
    step.prefill_rows = 0
    step.prefill_tokens = 0
    step.prefill_prior = 0
    step.prefill_context = 0
    step.prefill_pairs = 0
    step.copied_blocks = 0
    step.swapped_out_blocks = 0
    step.swapped_in_blocks = 0
    full = closed(core, rows)
    queueing = full or (c.policy == FCFS and s.num_waiting > 0)
    if c.layout == PAGED:
        sort_by_place(core)
    s.num_preempted = 0
    s.planned_tokens = rows
    same_part = token_seconds(timing, load)
    done = np.int64(0)
    now = s.now
    while done < limit and now <= until:
        if s.next_arrival < s.num_requests and core.requests[s.next_arrival].arrival_s <= now:
            if not queueing:
                break
            arrive(core, now)
        if c.layout == PAGED and not allocate_step(core, done):
            break
        if full:
            s.head_blocked = 0  # nobody asks for memory
        if c.layout == CONTIGUOUS:
            cache.measure_external(core)
        s.used_slots += rows
        seconds = whole_seconds(timing, load, same_part)
        record_step(core, record, now, seconds, rows)
        end = now + seconds
        if done == 0:
            for i in range(s.num_running):
                r = core.requests[core.running[i]]
                if r.status == RUNNING:
                    record_gap(record, end - r.last_token_s, np.int64(1))
        else:
            record_gap(record, end - now, rows)
        record.timeline[record.totals[0].snapshot].output_tokens += rows
        now = end
        advance_decode(load)
        done += 1
        if c.batching == STATIC:
            s.batch_open, full, queueing = 0, True, True  # a step in which nobody joined closes the batch
    if done > 0:
        for i in range(s.num_running):
            r = core.requests[core.running[i]]
            if r.status == RUNNING:
                r.computed += np.int32(done)
                r.generated += np.int32(done)
                r.used_slots += done
                r.last_token_s = now
        s.now = now
        s.step += done
        s.steps_skipped += done
        s.scheduled_tokens += rows * done
        s.output_tokens += rows * done
        s.num_finished = 0
    return done


@compiled
def refuse_head(core: Core) -> None:
    """Refuses a request that an idle replica cannot admit, so that no queue waits for what cannot happen."""
    s = core.scalars[0]
    request = queue.peek(core)
    queue.pop(core)
    r = core.requests[request]
    r.status = REFUSED
    r.reason = TOO_BIG
    s.refused += 1
    s.unfinished -= 1


@compiled
def replay(core: Core, timing: TimingTables, load, record: Record, until: float, work: int) -> int:
    """Runs from `scalars.now` until nothing is left, no step begins after `until`, or `work` units are done.

    Returns DONE, OUTSIDE or AGAIN. More requests may be appended (`num_requests`) between two calls.
    """
    c = core.config[0]
    s = core.scalars[0]
    load[0].block_bytes = np.int64(c.block_bytes)
    spent = np.int64(0)
    while spent < work:
        if s.num_running == 0 and s.num_waiting == 0 and s.flying_planned == 0:
            if s.next_arrival >= s.num_requests:
                return DONE
            s.now = max(s.now, core.requests[s.next_arrival].arrival_s)
        if s.now > until:
            return OUTSIDE
        skipped = skip(core, timing, load, record, until)
        if skipped > 0:
            spent += s.num_running + skipped
            continue
        start = s.now
        planned = plan(core, start)
        spent += planned + 1
        seconds = 0.0
        if planned > 0 or s.num_swapped_out > 0:
            measure_load(core, load)
            seconds = step_seconds(timing, load)
        if c.async_scheduling == 1:
            pipeline(core, record, start, seconds, np.int64(load[0].decode_rows))
            continue
        if planned > 0 or s.num_swapped_out > 0:
            record_step(core, record, start, seconds, np.int64(load[0].decode_rows) if planned > 0 else np.int64(0))
        elif s.num_running == 0 and s.num_preempted == 0 and s.num_waiting > 0:
            refuse_head(core)
        s.now = start + seconds
        record_tokens(core, record, core.planned, planned, s.now)
        commit(core, core.planned, planned, s.now)
    return AGAIN


@inner
def pipeline(core: Core, record: Record, start: float, seconds: float, decode_rows: int) -> None:
    """Async scheduling: hand the planned step to the device, then wait for the step before it.

    The device runs steps one after another; the plan for the next is made while one runs. `device_free_s` is when
    the step in flight ends, and so when its tokens are known.
    """
    s = core.scalars[0]
    planned = s.num_planned
    begins = max(start, s.device_free_s)
    if planned > 0:
        record_step(core, record, begins, seconds, decode_rows)
    if s.flying_planned > 0:
        s.now = s.device_free_s
        record_tokens(core, record, core.flying, s.flying_planned, s.now)
        commit(core, core.flying, s.flying_planned, s.now)
    elif planned == 0 and s.num_running == 0 and s.num_preempted == 0 and s.num_waiting > 0:
        refuse_head(core)
    for i in range(planned):
        core.flying[i] = core.planned[i]
    s.flying_planned = planned
    if planned > 0:
        s.device_free_s = begins + seconds
