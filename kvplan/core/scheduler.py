"""The scheduler: which sequences run in a step, and with how many tokens. vLLM V1's, rule for rule.

`plan` decides a step and gives out its memory; an executor runs it; `commit` takes the tokens in and lets the
finished go. There is no prefill phase and no decode phase: a request has so many known tokens and so many computed
ones, and each step lets the second catch up with the first.

Source: `vllm/v1/core/sched/scheduler.py` and the step logs of vLLM 0.33.0 that the tests replay. Beyond it stand
swapping, several sequences a request with copy-on-write (both PagedAttention's), static batching
(FasterTransformer's) and TensorRT-LLM's two admission rules.

With async scheduling the order of a step is plan(i), commit(i - 1): a plan is made while the step before still
runs, so the tokens it will bring are *promised*, not known.
"""

from __future__ import annotations

import numpy as np

from kvplan.core import cache, paged, queue, swap
from kvplan.core.content import uniform
from kvplan.core.jit import compiled, inner
from kvplan.core.state import (
    ABORTED,
    CONTIGUOUS,
    FINISHED,
    HEAD,
    PAGED,
    PENDING,
    PRIORITY,
    REFUSED,
    RUNNING,
    STATIC,
    SWAP,
    TAIL,
    TOO_BIG,
    TOO_LONG,
    TOO_MANY_SEQUENCES,
    TOO_MANY_TOKENS,
    WAITING,
    Core,
)


@inner
def arrive(core: Core, now: float) -> None:
    """Every request that has arrived by `now` joins the queue, or is refused for good where it can never run."""
    c = core.config[0]
    s = core.scalars[0]
    while s.next_arrival < s.num_requests and core.requests[s.next_arrival].arrival_s <= now:
        request = s.next_arrival
        r = core.requests[request]
        s.next_arrival += 1
        if r.status == ABORTED:
            continue
        if np.int64(r.prompt) + np.int64(r.output) > c.max_model_len:
            r.reason = TOO_LONG
        elif r.sequences > c.max_num_seqs:
            r.reason = TOO_MANY_SEQUENCES
        elif c.chunked_prefill == 0 and paged.final_tokens(core, request) > c.max_num_batched_tokens:
            r.reason = TOO_MANY_TOKENS
        elif r.sequences > c.max_num_batched_tokens:
            r.reason = TOO_MANY_SEQUENCES
        elif not cache.fits_alone(core, request):
            r.reason = TOO_BIG
        if r.reason != 0:
            r.status = REFUSED
            s.refused += 1
        else:
            s.unfinished += 1
            queue.push(core, request, TAIL)
            s.layout_dirty = 1


@inner
def drafts_of(core: Core, request: int) -> int:
    """Draft tokens that a request brings to its next step: none before its first token, none past its last."""
    c = core.config[0]
    r = core.requests[request]
    if c.speculative_tokens == 0 or r.generated == 0 or r.computed < r.prompt + r.generated - 1:
        return np.int64(0)
    return min(c.speculative_tokens, np.int64(r.output) - np.int64(r.generated) - 1)


@inner
def wanted_tokens(core: Core, request: int, computed: int) -> int:
    """Tokens that each sequence of a request has yet to compute. One step never crosses the fork."""
    r = core.requests[request]
    known = np.int64(r.prompt) + np.int64(r.generated) + np.int64(r.promised)
    if r.sequences > 1 and computed < r.prompt:
        known = np.int64(r.prompt)
    return known - computed


@inner
def capped(core: Core, tokens: int) -> int:
    """`long_prefill_token_threshold` holds back a long prompt where there is another request to serve."""
    c = core.config[0]
    threshold = c.long_prefill_token_threshold
    if 0 < threshold < tokens and core.scalars[0].unfinished > 1:
        return threshold
    return tokens


@inner
def enter(core: Core, request: int, tokens: int, drafts: int, fresh: int) -> None:
    """Adds a request to the plan."""
    s = core.scalars[0]
    r = core.requests[request]
    entry = core.planned[s.num_planned]
    entry.request = request
    entry.row = r.row
    entry.sequences = paged.tables_of(core, request)
    entry.computed = r.computed
    entry.tokens = tokens
    entry.drafts = drafts
    entry.fresh = fresh
    s.num_planned += 1


@inner
def preempt(core: Core, request: int) -> None:
    """Takes the memory of a running request, which the caller has taken off the list, and sends it back."""
    c = core.config[0]
    s = core.scalars[0]
    r = core.requests[request]
    s.running_sequences -= r.sequences
    s.committed_blocks -= cache.final_blocks(core, request)
    core.preempted[s.num_preempted] = request
    s.num_preempted += 1
    s.preemptions += 1
    r.preemptions += 1
    if c.preemption == SWAP and c.layout == PAGED and swap.swap_out(core, request):
        core.rows_free[s.num_rows_free] = r.row
        s.num_rows_free += 1
        r.row = -1
        paged.settle(core, request)
    else:
        r.computed = 0
        r.external = 0
        cache.release(core, request)
    paged.cancel_copies(core, request)
    queue.push(core, request, HEAD)


@inner
def unplan(core: Core, request: int) -> int:
    """Takes a preempted request out of the plan. Returns the tokens it had, 0 when it was not planned."""
    s = core.scalars[0]
    for i in range(s.num_planned):
        if core.planned[i].request == request:
            tokens = np.int64(core.planned[i].tokens) * core.planned[i].sequences
            for j in range(i, s.num_planned - 1):
                core.planned[j] = core.planned[j + 1]
            s.num_planned -= 1
            return tokens
    return np.int64(0)


@inner
def victim(core: Core) -> int:
    """Place in the running list of the request to preempt: the last admitted, or the least urgent.

    Members of a static batch that are done keep their memory until the batch ends; they are no victims.
    """
    s = core.scalars[0]
    worst = s.num_running - 1
    while core.requests[core.running[worst]].status != RUNNING:
        worst -= 1
    if core.config[0].policy != PRIORITY:
        return worst
    for i in range(worst - 1, -1, -1):
        a, b = core.requests[core.running[i]], core.requests[core.running[worst]]
        if a.status != RUNNING:
            continue
        # Of equals the first in the list goes, as Python's max() has it.
        if a.priority > b.priority or (a.priority == b.priority and a.arrival_s >= b.arrival_s):
            worst = i
    return worst


@inner
def done_member(core: Core) -> int:
    """Place in the running list of the last member of a static batch that is done, or -1.

    It waits for the others with its memory; where one of those needs it, it leaves, before anybody is preempted.
    """
    s = core.scalars[0]
    if core.config[0].batching != STATIC:
        return np.int64(-1)
    for i in range(s.num_running - 1, -1, -1):
        if core.requests[core.running[i]].status == FINISHED:
            return np.int64(i)
    return np.int64(-1)


@inner
def take_off(core: Core, place: int) -> None:
    """Closes the gap at `place` of the running list."""
    s = core.scalars[0]
    for i in range(place, s.num_running - 1):
        core.running[i] = core.running[i + 1]
    s.num_running -= 1


@inner
def plan_running(core: Core, budget: int) -> int:
    """Plans the requests that run already, in order. Returns what is left of the token budget."""
    c = core.config[0]
    s = core.scalars[0]
    place = np.int64(0)
    while place < s.num_running and budget > 0:
        request = np.int64(core.running[place])
        r = core.requests[request]
        if r.status == FINISHED or (
            r.promised > 0 and r.computed + 2 - r.promised >= np.int64(r.prompt) + np.int64(r.output)
        ):
            place += 1  # a member of a static batch that is done, or (async) its last token is under way
            continue
        if r.sequences > 1 and r.flying > 0:
            place += 1  # async: which tables its sequences will have is known once the step in flight is in
            continue
        drafts = drafts_of(core, request)
        sequences = paged.tables_of(core, request)
        tokens = capped(core, wanted_tokens(core, request, np.int64(r.computed)) + drafts)
        tokens = min(tokens, budget // sequences, c.max_model_len - 1 - r.computed)
        if tokens <= 0:
            place += 1
            continue
        target = min(r.computed + tokens + c.lookahead_tokens, c.max_model_len)
        survived = True
        while not cache.grow(core, request, target, np.int64(r.computed) - r.flying):
            done = done_member(core)
            if done >= 0:
                leave(core, np.int64(core.running[done]))
                take_off(core, done)
                if done < place:
                    place -= 1
                continue
            where = victim(core)
            other = np.int64(core.running[where])
            take_off(core, where)
            given_back = unplan(core, other)
            budget += given_back
            if given_back > 0:
                place -= 1
                if c.prefix_caching == 1:
                    paged.forget_uncomputed(core, other)
            preempt(core, other)
            if other == request:
                survived = False
                break
        if not survived:
            break
        enter(core, request, tokens, min(drafts, tokens - 1), np.int64(0))
        budget -= tokens * sequences
        place += 1
    return budget


@inner
def plan_waiting(core: Core, budget: int) -> None:
    """Admits from the head of the queue until one cannot be placed."""
    c = core.config[0]
    s = core.scalars[0]
    while budget > 0:
        request = queue.peek(core)
        if request < 0:
            break
        r = core.requests[request]
        if s.running_sequences + r.sequences > c.max_num_seqs:
            break
        known = np.int64(r.prompt) + np.int64(r.generated)
        hits = np.int64(0)
        if c.prefix_caching == 1 and r.swapped == 0:
            hits = paged.find_hits(core, request)
        hit_tokens = hits * c.block_size
        computed = max(hit_tokens, np.int64(r.external)) if r.swapped == 0 else np.int64(r.computed)
        sequences = paged.tables_of(core, request) if r.swapped > 0 else np.int64(1)
        tokens = capped(core, wanted_tokens(core, request, computed))
        if c.chunked_prefill == 0 and tokens * sequences > budget:
            break
        tokens = min(tokens, budget // sequences)
        if tokens <= 0:
            break
        scheduled = s.num_planned > 0
        lookahead = c.lookahead_tokens if r.swapped > 0 else np.int64(0)
        target = min(computed + tokens + lookahead, c.max_model_len)
        r.row = core.rows_free[s.num_rows_free - 1]
        if not cache.can_admit(core, request, known, hits, scheduled) or not cache.admit(
            core, request, target, known, hits, scheduled
        ):
            r.row = -1
            s.head_blocked = 1
            s.layout_dirty = 1
            break
        s.num_rows_free -= 1
        queue.pop(core)
        if c.prefix_caching == 1 and r.preemptions == 0:
            s.query_tokens += known
            s.hit_tokens += hit_tokens
        if r.cached < 0:
            r.cached = hit_tokens
            r.first_scheduled_s = s.now
        r.status = RUNNING
        r.computed = computed
        s.scratch_request = -1
        s.running_sequences += r.sequences
        s.committed_blocks += cache.final_blocks(core, request)
        core.running[s.num_running] = request
        s.num_running += 1
        enter(core, request, tokens, np.int64(0), np.int64(1) if r.preemptions == 0 else np.int64(2))
        budget -= tokens * sequences


@compiled
def plan(core: Core, now: float) -> int:
    """Decides one step at time `now`. Returns how many requests run in it; 0 leaves nothing to execute.

    Afterwards `planned`, `copies`, `swapped_out`, `swapped_in` and `preempted` describe the step until the next
    plan. Swaps out come first, then copies, swaps in, and the rows. Within each the order does not matter: no block
    is the source of one copy and the target of another.
    """
    c = core.config[0]
    s = core.scalars[0]
    s.now = now
    s.num_planned = 0
    s.num_copies = 0
    s.num_swapped_out = 0
    s.num_swapped_in = 0
    s.num_preempted = 0
    s.head_blocked = 0
    s.planned_tokens = 0
    arrive(core, now)
    if c.batching == STATIC:
        compact(core)  # the last live member may have been preempted
        if s.num_running == 0:
            s.batch_open = 1
    budget = plan_running(core, c.max_num_batched_tokens)
    if s.num_preempted == 0 and (c.batching != STATIC or s.batch_open == 1):
        members = s.num_running
        plan_waiting(core, budget)
        if s.num_running == members:
            s.batch_open = 0
    for i in range(s.num_planned):
        entry = core.planned[i]
        r = core.requests[entry.request]
        r.computed += entry.tokens
        r.flying += entry.tokens
        known = r.prompt + r.generated + r.promised
        entry.samples = 1 if r.computed - entry.drafts >= known else 0
        r.promised += entry.samples
        s.planned_tokens += np.int64(entry.tokens) * entry.sequences
        cache.settle(core, np.int64(entry.request))
    s.scheduled_tokens += s.planned_tokens
    s.step += 1
    cache.measure_external(core)
    return s.num_planned


@inner
def accepted_drafts(core: Core, request: int, drafts: int) -> int:
    """How many draft tokens the target model takes: each with `acceptance_rate`, up to the first it rejects."""
    c = core.config[0]
    r = core.requests[request]
    taken = np.int64(0)
    while taken < drafts and uniform(c.seed, r.serial, np.int64(r.generated) + taken) < c.acceptance_rate:
        taken += 1
    return taken


@inner
def choose_beams(core: Core, request: int) -> None:
    """After a step of beam search each beam either goes on or is replaced by a copy of another.

    The rule: beam i survives with probability `beam_survival`; one that does not continues from a survivor drawn
    uniformly (beam 0 always survives, as the best candidate does). Replacing is a change of block tables: the
    dying beam lets go of its blocks and takes hold of the survivor's.
    """
    c = core.config[0]
    r = core.requests[request]
    base = np.int64(r.generated) * 2 * r.sequences
    survivors = np.int64(0)
    for i in range(r.sequences):
        if i == 0 or uniform(c.seed, r.serial, base + i) < c.beam_survival:
            core.buckets[survivors] = i
            survivors += 1
    place = np.int64(0)
    for i in range(r.sequences):
        if place < survivors and core.buckets[place] == i:
            place += 1
            continue
        parent = core.buckets[np.int64(uniform(c.seed, r.serial, base + r.sequences + i) * survivors)]
        paged.adopt(core, request, i, parent)


@inner
def finish(core: Core, request: int, now: float) -> None:
    """The last token is out: the request leaves, and with it its memory (static batching: once all are done)."""
    c = core.config[0]
    s = core.scalars[0]
    r = core.requests[request]
    running = r.status == RUNNING
    r.status = FINISHED
    r.finish_s = now
    s.finished += 1
    s.unfinished -= 1
    core.finished[s.num_finished] = request
    s.num_finished += 1
    if not running:
        s.num_waiting -= 1  # preempted with its last token under way: a dead entry of the queue
    elif c.batching != STATIC:
        leave(core, request)


@compiled
def abort(core: Core, request: int) -> bool:
    """Takes out a request whose client has gone, between two steps, and gives its memory back.

    Returns False and changes nothing where that is not possible now: it has left already, a step of it is in flight
    (async scheduling), its blocks are on the host, or it is a member of a static batch.
    """
    s = core.scalars[0]
    r = core.requests[request]
    if r.status == RUNNING:
        if r.flying > 0 or core.config[0].batching == STATIC:
            return False
        for place in range(s.num_running):
            if core.running[place] == request:
                take_off(core, np.int64(place))
                break
        leave(core, request)
    elif r.status == WAITING and r.swapped == 0:
        s.num_waiting -= 1  # its entry of the queue is dead
    elif r.status != PENDING:
        return False
    if r.status != PENDING:
        s.unfinished -= 1
    r.status = ABORTED
    s.head_blocked = 0
    s.layout_dirty = 1
    return True


@inner
def leave(core: Core, request: int) -> None:
    s = core.scalars[0]
    s.running_sequences -= core.requests[request].sequences
    s.committed_blocks -= cache.final_blocks(core, request)
    cache.release(core, request)
    s.layout_dirty = 1


@compiled
def commit(core: Core, entries: np.ndarray, count: int, now: float) -> None:
    """Takes in what a step brought at time `now`: sampled tokens, first tokens, ends.

    `entries[:count]` is the plan of that step: `planned`, or with async scheduling `flying`.
    """
    c = core.config[0]
    s = core.scalars[0]
    s.num_finished = 0
    for i in range(count):
        entry = entries[i]
        request = np.int64(entry.request)
        r = core.requests[request]
        r.flying -= entry.tokens
        if entry.samples == 0:
            if r.sequences > 1 and r.forked == 0 and r.status == RUNNING and r.computed >= r.prompt:
                part(core, request)  # recomputed after a preemption: the outputs are known, the tables part again
            continue
        r.promised -= 1
        taken = np.int64(0)
        if entry.drafts > 0:
            taken = accepted_drafts(core, request, np.int64(entry.drafts))
            r.computed -= np.int32(entry.drafts - taken)
        r.generated += np.int32(1 + taken)
        s.output_tokens += (1 + taken) * r.sequences
        if r.first_token_s < 0:
            r.first_token_s = now
        r.last_token_s = now
        if c.async_scheduling == 1 and c.prefix_caching == 1 and r.status == RUNNING:
            paged.cache_full_blocks(core, request, np.int64(r.computed) - r.promised)
        if r.generated >= r.output:
            finish(core, request, now)
            continue
        if r.status != RUNNING:
            continue
        if r.sequences > 1:
            if r.forked == 0:
                part(core, request)
            elif r.beams == 1 and c.layout == PAGED:
                choose_beams(core, request)
        if taken < entry.drafts or r.sequences > 1:
            cache.settle(core, request)
    if s.num_finished > 0:
        compact(core)


@inner
def part(core: Core, request: int) -> None:
    """The sequences of a request go their own ways from here."""
    if core.config[0].layout == CONTIGUOUS:
        core.requests[request].forked = 1
    else:
        paged.fork(core, request)
    cache.settle(core, request)


@inner
def compact(core: Core) -> None:
    """Takes the finished off the running list; a static batch leaves as one, when its last member is done."""
    c = core.config[0]
    s = core.scalars[0]
    if c.batching == STATIC:
        for i in range(s.num_running):
            if core.requests[core.running[i]].status == RUNNING:
                return
        for i in range(s.num_running):
            leave(core, np.int64(core.running[i]))
        s.num_running = 0
        return
    kept = np.int64(0)
    for i in range(s.num_running):
        if core.requests[core.running[i]].status == RUNNING:
            core.running[kept] = core.running[i]
            kept += 1
    s.num_running = kept
