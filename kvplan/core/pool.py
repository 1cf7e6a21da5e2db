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
def bucket_of(core: Core, key: np.uint64) -> int:
    return np.int64(key & np.uint64(len(core.heads) - 1))


@inner
def lookup(core: Core, key: np.uint64) -> int:
    """The block registered first under `key`, or -1."""
    block = np.int64(core.heads[bucket_of(core, key)])
    while block >= 0:
        if core.blocks[block].hash == key:
            return block
        block = np.int64(core.blocks[block].chain_next)
    return block


@inner
def register(core: Core, block: int, key: np.uint64) -> None:
    """Enters a full block into the prefix cache. Equal blocks are not merged: they stand in order of entry."""
    entry = core.blocks[block]
    entry.hash = key
    entry.chain_next = NO_BLOCK
    bucket = bucket_of(core, key)
    first = core.heads[bucket]
    if first < 0:
        core.heads[bucket] = block
        entry.chain_prev = block
        return
    last = core.blocks[first].chain_prev  # the first block of a chain points back at its last
    core.blocks[last].chain_next = block
    core.blocks[first].chain_prev = block
    entry.chain_prev = last


@inner
def evict(core: Core, block: int) -> None:
    """Forgets the prefix that `block` holds."""
    entry = core.blocks[block]
    bucket = bucket_of(core, entry.hash)
    entry.hash = np.uint64(0)
    first = core.heads[bucket]
    after = entry.chain_next
    if first == block:
        core.heads[bucket] = after
        if after >= 0:
            core.blocks[after].chain_prev = entry.chain_prev
        return
    core.blocks[entry.chain_prev].chain_next = after
    if after >= 0:
        core.blocks[after].chain_prev = entry.chain_prev
    else:
        core.blocks[first].chain_prev = entry.chain_prev


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
