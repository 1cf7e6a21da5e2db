"""The block pool: who owns a block, which are free, and in what order they are taken.

The rules are vLLM V1's (`vllm/v1/core/block_pool.py`): the free queue starts in id order; a block is taken at its
head; a block whose last owner leaves goes to the tail when it carries a reusable prefix (so the queue is an LRU of
the prefix cache), else to the head. A prefix is forgotten only when its block is taken again.

A block's life::

    free, no hash --take--> owned --register--> owned, hashed --release--> free, hashed (cached)
         ^                    |                      ^                          |      |
         +------release-------+                      +----------touch-----------+      +--take--> owned (evicted)
"""

from __future__ import annotations

import numpy as np

from kvplan.core.jit import inner
from kvplan.core.state import Core

NO_BLOCK = np.int32(-1)


@inner
def unlink(core: Core, block: int) -> None:
    """Takes `block` out of the free queue."""
    blocks = core.blocks
    before, after = blocks[block].prev, blocks[block].next
    blocks[before].next = after
    blocks[after].prev = before


@inner
def link_before(core: Core, block: int, place: int) -> None:
    """Puts `block` into the free queue in front of `place`; the sentinel N as `place` means the tail."""
    blocks = core.blocks
    before = blocks[place].prev
    blocks[block].prev = before
    blocks[block].next = place
    blocks[before].next = block
    blocks[place].prev = block


@inner
def map_slot(core: Core, key: np.uint64) -> int:
    """The place of `key` in the hash map, or the empty place where it would go."""
    mask = np.uint64(len(core.map_key) - 1)
    place = key & mask
    while core.map_key[place] != np.uint64(0) and core.map_key[place] != key:
        place = (place + np.uint64(1)) & mask
    return np.int64(place)


@inner
def lookup(core: Core, key: np.uint64) -> int:
    """The block registered first under `key`, or -1."""
    place = map_slot(core, key)
    return np.int64(core.map_block[place]) if core.map_key[place] == key else np.int64(-1)


@inner
def register(core: Core, block: int, key: np.uint64) -> None:
    """Enters a full block into the prefix cache. Equal blocks are not merged: they queue up behind the first."""
    entry = core.blocks[block]
    entry.hash = key
    entry.twin_next = NO_BLOCK
    entry.twin_prev = NO_BLOCK
    place = map_slot(core, key)
    if core.map_key[place] == np.uint64(0):
        core.map_key[place] = key
        core.map_block[place] = block
        return
    twin = core.map_block[place]
    while core.blocks[twin].twin_next != NO_BLOCK:
        twin = core.blocks[twin].twin_next
    core.blocks[twin].twin_next = block
    entry.twin_prev = twin


@inner
def evict(core: Core, block: int) -> None:
    """Forgets the prefix that `block` holds."""
    entry = core.blocks[block]
    key = entry.hash
    entry.hash = np.uint64(0)
    before, after = entry.twin_prev, entry.twin_next
    if after != NO_BLOCK:
        core.blocks[after].twin_prev = before
    if before != NO_BLOCK:
        core.blocks[before].twin_next = after
        return
    place = map_slot(core, key)
    if after != NO_BLOCK:
        core.map_block[place] = after
        return
    # The key goes: close the gap so that no probe sequence breaks (Knuth's algorithm R).
    mask = np.uint64(len(core.map_key) - 1)
    gap = np.uint64(place)
    probe = gap
    while True:
        probe = (probe + np.uint64(1)) & mask
        other = core.map_key[probe]
        if other == np.uint64(0):
            break
        home = other & mask
        if ((probe - home) & mask) >= ((probe - gap) & mask):
            core.map_key[gap] = other
            core.map_block[gap] = core.map_block[probe]
            gap = probe
    core.map_key[gap] = np.uint64(0)


@inner
def take(core: Core, request: int) -> int:
    """Takes the block at the head of the free queue, forgetting the prefix it held. The pool must not be empty."""
    s = core.scalars[0]
    block = core.blocks[len(core.blocks) - 1].next
    unlink(core, block)
    entry = core.blocks[block]
    s.free_blocks -= 1
    s.allocated_blocks += 1
    if entry.hash != np.uint64(0):
        s.cached_free -= 1
        evict(core, block)
    entry.ref = 1
    entry.owner = core.requests[request].serial
    entry.fill = core.config[0].block_size
    return np.int64(block)


@inner
def touch(core: Core, block: int) -> None:
    """One more owner for a block, be it free and cached or owned already."""
    s = core.scalars[0]
    entry = core.blocks[block]
    if entry.ref == 0:
        unlink(core, block)
        s.free_blocks -= 1
        s.cached_free -= 1
    else:
        s.shared_slots += entry.fill
    entry.ref += 1


@inner
def release(core: Core, block: int, cursor: int) -> int:
    """One owner fewer. Returns the cursor for the next release of the same batch.

    vLLM frees a list at once: the blocks without a hash go to the head of the queue *in the list's order*, so each
    goes behind the one before it. `cursor` is the place in front of which the next such block belongs; -1 at first.
    """
    s = core.scalars[0]
    entry = core.blocks[block]
    entry.ref -= 1
    if entry.ref > 0:
        s.shared_slots -= entry.fill
        return cursor
    s.free_blocks += 1
    sentinel = len(core.blocks) - 1
    if entry.hash != np.uint64(0):
        s.cached_free += 1
        link_before(core, block, sentinel)
        return cursor
    place = np.int64(core.blocks[sentinel].next) if cursor < 0 else np.int64(cursor)
    link_before(core, block, place)
    return place
