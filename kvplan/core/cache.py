"""One face for the layouts: admit, grow, release, and where the memory is.

The scheduler knows no layout. Each operation either does all that was asked or changes nothing and says False.
"""

from __future__ import annotations

import numpy as np

from kvplan.core import extents, paged, swap
from kvplan.core.jit import inner
from kvplan.core.queue import peek
from kvplan.core.state import (
    ADMIT_GUARANTEED_NO_EVICT,
    CONTIGUOUS,
    FOR_ADMISSION,
    FOR_STEP,
    FULL,
    PAGED,
    STATE_SPACE,
    STATIC,
    Core,
)


@inner
def settle(core: Core, request: int) -> None:
    if core.config[0].layout == CONTIGUOUS:
        extents.settle_extent(core, request)
    else:
        paged.settle(core, request)


@inner
def final_blocks(core: Core, request: int) -> int:
    """Blocks that a request holds at its end when it shares nothing with others."""
    return paged.blocks_at_end(core, request, np.int64(1))


@inner
def fits_alone(core: Core, request: int) -> bool:
    """Whether an empty pool carries the request from its first token to its last."""
    c = core.config[0]
    r = core.requests[request]
    if c.layout == PAGED:
        return final_blocks(core, request) <= c.usable_blocks
    final = min(paged.final_tokens(core, request) + c.lookahead_tokens, c.max_model_len)
    wanted = extents.reservation(core, request, final)
    return r.sequences * extents.extent_size(core, wanted) <= c.total_slots


@inner
def can_admit(core: Core, request: int, known: int, hits: int, anything_scheduled: bool) -> bool:
    """The gates before allocation: the whole known sequence, the watermark, TensorRT-LLM's guarantee."""
    c = core.config[0]
    s = core.scalars[0]
    if c.layout == CONTIGUOUS:
        return True
    if c.admission == ADMIT_GUARANTEED_NO_EVICT:
        return s.committed_blocks + final_blocks(core, request) <= c.usable_blocks
    if c.reserve_full_isl == 0 or c.admission != 0:
        return True
    if core.requests[request].swapped > 0:
        known = min(known, c.max_model_len)
        return (
            swapped_blocks(core, request, known, np.int64(1)) + (c.watermark_blocks if anything_scheduled else 0)
            <= s.free_blocks
        )
    watermark = c.watermark_blocks if anything_scheduled else np.int64(0)
    need = paged.new_blocks(core, request, min(known, c.max_model_len), hits, FOR_ADMISSION)
    return need + watermark <= s.free_blocks


@inner
def swapped_blocks(core: Core, request: int, tokens: int, whole: int) -> int:
    """Blocks that bring a swapped request back with slots for `tokens` tokens. `whole`: for all that it knows, which
    windowed groups never hold at once."""
    r = core.requests[request]
    more = max(np.int64(0), paged.cdiv(tokens, core.config[0].block_size) - np.int64(r.blocks))
    growing = np.int64(0)
    for group in range(len(core.groups)):
        g = core.groups[group]
        growing += 1 if g.kind == FULL or (g.kind != STATE_SPACE and whole == 0) else 0
    return np.int64(r.swapped) + more * growing * paged.tables_of(core, request)


@inner
def admit(core: Core, request: int, tokens: int, known: int, hits: int, anything_scheduled: bool) -> bool:
    """Memory for the first `tokens` of `known` tokens of a request that has been given a row.

    `hits` of its blocks are in the prefix cache. A swapped request gets its blocks back first.
    """
    c = core.config[0]
    s = core.scalars[0]
    r = core.requests[request]
    if c.layout == CONTIGUOUS:
        return extents.place_request(core, request)
    watermark = c.watermark_blocks if anything_scheduled else np.int64(0)
    if r.swapped > 0:
        if swapped_blocks(core, request, tokens, np.int64(0)) + watermark > s.free_blocks:
            return False
        swap.swap_in(core, request)
    else:
        if paged.new_blocks(core, request, tokens, hits, FOR_STEP) + watermark > s.free_blocks:
            return False
        if hits > 0:
            paged.attach_hits(core, request, hits)
    paged.grow_tables(core, request, tokens)
    if c.prefix_caching == 1:
        paged.cache_full_blocks(core, request, tokens - c.lookahead_tokens)
    return True


@inner
def grow(core: Core, request: int, tokens: int, processed: int) -> bool:
    """Memory for `tokens` tokens of a running request, of which `processed` are behind it for good."""
    c = core.config[0]
    s = core.scalars[0]
    r = core.requests[request]
    if c.layout == CONTIGUOUS:
        return tokens <= r.blocks or extents.outgrow(core, request, tokens)
    size = c.block_size
    if len(core.groups) == 1 and r.forked == 0 and core.groups[0].kind == 0:
        # The common case, short: full attention, one sequence.
        need = paged.cdiv(tokens, size) - np.int64(r.blocks)
        if need > s.free_blocks:
            return False
        if need > 0:
            paged.grow_tables(core, request, tokens)
    else:
        paged.drop_left_behind(core, request, processed)
        if paged.new_blocks(core, request, tokens, np.int64(0), FOR_STEP) > s.free_blocks:
            paged.settle(core, request)  # what lay left of the window is gone either way
            return False
        paged.copy_shared(core, request)
        paged.grow_tables(core, request, tokens)
    if c.prefix_caching == 1:
        paged.cache_full_blocks(core, request, tokens - c.lookahead_tokens)
    return True


@inner
def release(core: Core, request: int) -> None:
    """A request gives its memory and its row back."""
    s = core.scalars[0]
    r = core.requests[request]
    if core.config[0].layout == CONTIGUOUS:
        extents.unplace_request(core, request)
    else:
        paged.release_request(core, request)
    core.rows_free[s.num_rows_free] = r.row
    s.num_rows_free += 1
    r.row = -1
    settle(core, request)


@inner
def measure_external(core: Core) -> None:
    """What the request at the head of the queue cannot use for want of one piece (contiguous only)."""
    c = core.config[0]
    s = core.scalars[0]
    if c.layout == PAGED or s.layout_dirty == 0:
        return
    s.layout_dirty = 0
    s.largest_free_slots = extents.largest_free(core)
    s.external_slots = 0
    head = peek(core)
    if head < 0 or s.head_blocked == 0 or c.batching == STATIC:
        return
    free = c.total_slots - s.held_slots - s.rounded_slots
    wanted = extents.reservation(core, head, extents.tokens_at_admission(core, head))
    size = extents.extent_size(core, wanted)
    if s.largest_free_slots < size and free >= wanted:
        s.external_slots = free
