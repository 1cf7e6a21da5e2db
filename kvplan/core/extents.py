"""The contiguous KV-cache manager: one extent of token slots a sequence, as systems before PagedAttention had it.

How much is reserved: `max` (max_model_len), `pow2` (prompt + the next power of two of the output), `oracle`
(prompt + output) or `grow` (doubling, with a copy). Where it is placed: `buddy` (sizes rounded up to powers of two,
buddies merged: what the paper assumes of Orca), `first-fit` or `best-fit`.

The extents, free and held, form one list in order of address. It is at most twice as long as there are sequences,
so placement walks it. Node 0 is the head of the list and holds no memory.

Source of the reservations and of buddy: PagedAttention, section 6.1 and figure 2.
"""

from __future__ import annotations

import numpy as np

from kvplan.core.jit import inner
from kvplan.core.state import (
    BUDDY,
    FIRST_FIT,
    RESERVE_MAX,
    RESERVE_ORACLE,
    RESERVE_POW2,
    Core,
)

FREE = np.int32(-1)


@inner
def next_power_of_two(x: int) -> int:
    power = np.int64(1)
    while power < x:
        power *= 2
    return power


@inner
def reservation(core: Core, request: int, tokens: int) -> int:
    """Slots that one sequence of `request` reserves when it must hold at least `tokens` tokens."""
    c = core.config[0]
    r = core.requests[request]
    if c.reservation == RESERVE_MAX:
        return c.max_model_len
    if c.reservation == RESERVE_POW2:
        wanted = np.int64(r.prompt) + next_power_of_two(np.int64(r.output)) + c.lookahead_tokens
        return min(wanted, c.max_model_len)
    if c.reservation == RESERVE_ORACLE:
        return min(np.int64(r.prompt) + np.int64(r.output) + c.lookahead_tokens, c.max_model_len)
    return min(next_power_of_two(tokens), c.max_model_len)


@inner
def tokens_at_admission(core: Core, request: int) -> int:
    """Tokens that a request must have slots for when it joins: all it knows and its next step's drafts. Under `grow`
    that step might else find no room to move in, and the request would come back with too little for ever."""
    c = core.config[0]
    r = core.requests[request]
    final = np.int64(r.prompt) + np.int64(r.output) - 1
    tokens = np.int64(r.prompt) + np.int64(r.generated) + c.speculative_tokens
    return min(min(tokens, final) + c.lookahead_tokens, c.max_model_len)


@inner
def extent_size(core: Core, wanted: int) -> int:
    """What placement makes of a reservation: buddy rounds up to a power of two."""
    return next_power_of_two(wanted) if core.config[0].placement == BUDDY else wanted


@inner
def new_node(core: Core, start: int, size: int, owner: int, after: int) -> int:
    """A node behind `after` in the list."""
    core.extent_free[0] -= 1
    node = np.int64(core.extent_free[core.extent_free[0] + 1])
    e = core.extents
    follower = e[after].next
    e[node].start, e[node].size, e[node].owner = start, size, owner
    e[node].prev, e[node].next = after, follower
    e[after].next = node
    if follower >= 0:
        e[follower].prev = node
    return node


@inner
def drop_node(core: Core, node: int) -> None:
    e = core.extents
    e[e[node].prev].next = e[node].next
    if e[node].next >= 0:
        e[e[node].next].prev = e[node].prev
    core.extent_free[core.extent_free[0] + 1] = node
    core.extent_free[0] += 1


@inner
def choose(core: Core, size: int) -> int:
    """The free extent in which `size` slots are to be placed, or -1. Ties go to the lowest address."""
    e = core.extents
    placement = core.config[0].placement
    best = np.int64(-1)
    node = np.int64(e[0].next)
    while node >= 0:
        if e[node].owner == FREE and e[node].size >= size:
            if placement == FIRST_FIT:
                return node
            if best < 0 or e[node].size < e[best].size:
                best = node
        node = np.int64(e[node].next)
    return best


@inner
def largest_free(core: Core) -> int:
    e = core.extents
    largest = np.int64(0)
    node = np.int64(e[0].next)
    while node >= 0:
        if e[node].owner == FREE:
            largest = max(largest, e[node].size)
        node = np.int64(e[node].next)
    return largest


@inner
def place(core: Core, row: int, wanted: int) -> bool:
    """Gives `row` an extent for `wanted` slots. False, and nothing changed, where none fits."""
    s = core.scalars[0]
    e = core.extents
    size = extent_size(core, wanted)
    node = choose(core, size)
    if node < 0:
        return False
    if core.config[0].placement == BUDDY:
        while e[node].size // 2 >= size:  # split: the lower half is taken, the upper stays free
            half = e[node].size // 2
            new_node(core, e[node].start + half, half, FREE, node)
            e[node].size = half
    elif e[node].size > size:
        new_node(core, e[node].start + size, e[node].size - size, FREE, node)
        e[node].size = size
    e[node].owner = row
    core.extent_of[row] = node
    s.held_slots += wanted
    s.rounded_slots += size - wanted
    s.layout_dirty = 1
    return True


@inner
def unplace(core: Core, row: int, wanted: int) -> None:
    """Takes the extent of `row` back, merging it with its free neighbours (buddies only, under buddy)."""
    s = core.scalars[0]
    e = core.extents
    node = np.int64(core.extent_of[row])
    core.extent_of[row] = -1
    s.held_slots -= wanted
    s.rounded_slots -= e[node].size - wanted
    s.layout_dirty = 1
    e[node].owner = FREE
    buddy = core.config[0].placement == BUDDY
    merged = True
    while merged:
        merged = False
        for side in range(2):
            other = np.int64(e[node].next) if side == 0 else np.int64(e[node].prev)
            if other <= 0 or e[other].owner != FREE:
                continue
            if buddy and (e[other].size != e[node].size or (e[other].start ^ e[node].start) != e[node].size):
                continue
            low, high = (node, other) if side == 0 else (other, node)
            e[low].size += e[high].size
            drop_node(core, high)
            node = low
            merged = True


@inner
def place_request(core: Core, request: int) -> bool:
    """An extent for every sequence of `request` (the prompt is copied, not shared), or none at all."""
    r = core.requests[request]
    wanted = reservation(core, request, tokens_at_admission(core, request))
    for i in range(r.sequences):
        if not place(core, r.row + i, wanted):
            for j in range(i):
                unplace(core, r.row + j, wanted)
            return False
        core.slot_request[r.row + i] = request
    r.blocks = wanted  # the reservation of each sequence, in slots
    return True


@inner
def unplace_request(core: Core, request: int) -> None:
    r = core.requests[request]
    for i in range(r.sequences):
        unplace(core, r.row + i, np.int64(r.blocks))
    r.blocks = 0
    r.forked = 0


@inner
def outgrow(core: Core, request: int, tokens: int) -> bool:
    """Moves the sequences of `request` into extents for `tokens` tokens (`grow`).

    The old extents live until the copy is made, so both must fit. False, and nothing changed, where they do not.
    """
    s = core.scalars[0]
    r = core.requests[request]
    wanted = reservation(core, request, tokens)
    former = np.int64(r.blocks)
    for i in range(r.sequences):
        core.buckets[i] = core.extent_of[r.row + i]
        if not place(core, r.row + i, wanted):
            for j in range(i):
                unplace(core, r.row + j, wanted)
                core.extent_of[r.row + j] = core.buckets[j]
            return False
    for i in range(r.sequences):
        moved = core.extent_of[r.row + i]
        core.extent_of[r.row + i] = core.buckets[i]
        unplace(core, r.row + i, former)
        core.extent_of[r.row + i] = moved
    s.grow_copies += r.sequences
    r.blocks = wanted
    return True


@inner
def settle_extent(core: Core, request: int) -> None:
    """Brings the slot counts up to date with one request's length."""
    s = core.scalars[0]
    r = core.requests[request]
    used = np.int64(0)
    never = np.int64(0)
    if r.row >= 0:
        final = np.int64(r.prompt) + np.int64(r.output) - 1
        filled = min(np.int64(r.computed), final)
        used = filled * r.sequences
        never = max(np.int64(0), np.int64(r.blocks) - final) * r.sequences
    s.used_slots += used - r.used_slots
    s.never_slots += never - r.never_slots
    r.used_slots = used
    r.never_slots = never
