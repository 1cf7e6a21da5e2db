"""Preemption by swapping: a victim's blocks move to a host pool and come back, nothing is computed again.

The host pool is a stack of block ids threaded through `host_next`; a swapped request holds its host blocks as a
list, in the order of its rows, groups and columns. Source: PagedAttention, section 4.5.
"""

from __future__ import annotations

import numpy as np

from kvplan.core.jit import inner
from kvplan.core.paged import blocks_at_end, columns, drop_left_behind, left_behind, settle, tables_of
from kvplan.core.pool import release, take
from kvplan.core.state import Core


@inner
def held(core: Core, request: int) -> int:
    """Table entries of a request that are not null: the host blocks it needs, as sharing ends with the move."""
    r = core.requests[request]
    total = np.int64(0)
    for group in range(len(core.groups)):
        for row in range(r.row, r.row + tables_of(core, request)):
            total += columns(core, group, request) - core.dropped[group, row]
    return total


@inner
def swap_out(core: Core, request: int) -> bool:
    """Moves a request's blocks to the host. False, and nothing moved, where the host pool is too small, or where
    the pool could not take its sequences back, as what they share returns once for each.

    `blocks` and `computed` stay as they are, so that `swap_in` can rebuild the table in another row. The moves come
    before the copies of a step: of a block that was to be copied into, the source moves.
    """
    s = core.scalars[0]
    r = core.requests[request]
    drop_left_behind(core, request, np.int64(r.computed))
    settle(core, request)
    need = held(core, request)
    if need > s.host_free or need == 0:
        return False
    if r.forked == 1 and blocks_at_end(core, request, np.int64(0)) > core.config[0].usable_blocks:
        return False
    tail = np.int64(-1)
    for group in range(len(core.groups)):
        for row in range(r.row, r.row + tables_of(core, request)):
            cursor = np.int64(-1)
            for column in range(columns(core, group, request) - 1, core.dropped[group, row] - 1, -1):
                block = np.int64(core.tables[group, row, column])
                host = np.int64(core.host_next[0])
                core.host_next[0] = core.host_next[host]
                core.host_next[host] = -1
                if tail < 0:
                    r.host_head = host
                else:
                    core.host_next[tail] = host
                tail = host
                core.swapped_out[s.num_swapped_out, 0] = block
                for i in range(s.num_copies):
                    if core.copies[i, 1] == block:
                        core.swapped_out[s.num_swapped_out, 0] = core.copies[i, 0]
                core.swapped_out[s.num_swapped_out, 1] = host
                s.num_swapped_out += 1
                cursor = release(core, block, cursor)
            core.dropped[group, row] = 0  # the row's next tenant begins anew
    s.host_free -= need
    r.swapped = need
    r.swaps += 1
    r.hashed = 0
    s.swaps += 1
    return True


@inner
def swap_in(core: Core, request: int) -> None:
    """Brings a swapped request's blocks back into fresh device blocks. The pool must have `swapped` free ones."""
    s = core.scalars[0]
    r = core.requests[request]
    host = np.int64(r.host_head)
    for group in range(len(core.groups)):
        for row in range(r.row, r.row + tables_of(core, request)):
            core.dropped[group, row] = min(left_behind(core, group, np.int64(r.computed)), np.int64(r.blocks))
            for column in range(columns(core, group, request) - 1, core.dropped[group, row] - 1, -1):
                block = take(core, request)
                core.tables[group, row, column] = block
                core.swapped_in[s.num_swapped_in, 0] = host
                core.swapped_in[s.num_swapped_in, 1] = block
                s.num_swapped_in += 1
                following = np.int64(core.host_next[host])
                core.host_next[host] = core.host_next[0]
                core.host_next[0] = host
                host = following
            for column in range(core.dropped[group, row]):
                core.tables[group, row, column] = 0
    s.host_free += r.swapped
    r.swapped = 0
    r.host_head = -1
