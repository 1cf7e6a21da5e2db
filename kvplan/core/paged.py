"""The paged KV-cache manager: block tables over one pool, a table a cache group.

Layers that cache alike form a group: full attention keeps every block; a sliding window or a chunk gives up the
blocks it has left behind, which become null in its table; a state-space layer holds one block for as long as the
request lives. All groups take from the same pool, and their blocks are of the same bytes.

Rules: vLLM V1's `KVCacheManager.allocate_slots` and `single_type_kv_cache_manager`; sharing among the sequences of
one request (parallel samples, beams) and copy-on-write: PagedAttention, section 4.4.
"""

from __future__ import annotations

import numpy as np

from kvplan.core.content import extend_chain, group_key
from kvplan.core.jit import inner
from kvplan.core.pool import evict, lookup, register, release, take, touch
from kvplan.core.state import CHUNKED_LOCAL, FOR_ADMISSION, FULL, SLIDING_WINDOW, STATE_SPACE, Core


@inner
def cdiv(a: int, b: int) -> int:
    return -(-a // b)


@inner
def final_tokens(core: Core, request: int) -> int:
    """Tokens a sequence holds at its end: the last output token is never written."""
    r = core.requests[request]
    return np.int64(r.prompt) + np.int64(r.output) - 1


@inner
def blocks_at_end(core: Core, request: int, shared: int) -> int:
    """Most blocks that a request ever holds, with no block of another's. `shared`: its sequences share their prompt.

    A windowed group holds no more than its cap of a sequence's own blocks, and of the common ones.
    """
    c = core.config[0]
    r = core.requests[request]
    common = np.int64(r.prompt) // c.block_size if shared == 1 and r.sequences > 1 else np.int64(0)
    own = cdiv(min(final_tokens(core, request) + c.speculative_tokens, c.max_model_len), c.block_size) - common
    total = np.int64(0)
    for group in range(len(core.groups)):
        g = core.groups[group]
        if g.kind == STATE_SPACE:
            total += np.int64(r.sequences)
        elif g.admission_cap > 0:
            total += min(own, g.admission_cap) * r.sequences + min(common, g.admission_cap)
        else:
            total += own * r.sequences + common
    return total


@inner
def left_behind(core: Core, group: int, computed: int) -> int:
    """How many leading blocks of a row nobody will read again once `computed` tokens stand."""
    g = core.groups[group]
    if g.kind == SLIDING_WINDOW:
        return max(np.int64(0), computed - g.window + 1) // core.config[0].block_size
    if g.kind == CHUNKED_LOCAL:
        return (computed // g.window) * g.window // core.config[0].block_size
    return np.int64(0)


@inner
def tables_of(core: Core, request: int) -> int:
    """How many rows of its slot a request uses: one until its sequences part."""
    r = core.requests[request]
    return np.int64(r.sequences) if r.forked == 1 else np.int64(1)


@inner
def columns(core: Core, group: int, request: int) -> int:
    """How many columns of a request's rows are set: a state-space layer has one for all tokens."""
    blocks = np.int64(core.requests[request].blocks)
    return min(blocks, np.int64(1)) if core.groups[group].kind == STATE_SPACE else blocks


@inner
def settle(core: Core, request: int) -> None:
    """Brings the slot counts up to date with one request's table and length."""
    s = core.scalars[0]
    r = core.requests[request]
    used = np.int64(0)
    never = np.int64(0)
    if r.row >= 0:
        size = core.config[0].block_size
        final = final_tokens(core, request)
        filled = min(np.int64(r.computed), final)
        rows = tables_of(core, request)
        for group in range(len(core.groups)):
            if core.groups[group].kind == STATE_SPACE:
                used += rows * size
                continue
            used += rows * (filled - np.int64(core.dropped[group, r.row]) * size)
            for column in range(final // size, np.int64(r.blocks)):
                never += min(size, (column + 1) * size - final) * distinct(core, group, request, column)
    s.used_slots += used - r.used_slots
    s.never_slots += never - r.never_slots
    r.used_slots = used
    r.never_slots = never


@inner
def distinct(core: Core, group: int, request: int, column: int) -> int:
    """Physical blocks in one column of a request's rows."""
    r = core.requests[request]
    count = np.int64(0)
    for i in range(tables_of(core, request)):
        block = core.tables[group, r.row + i, column]
        seen = False
        for j in range(i):
            seen = seen or core.tables[group, r.row + j, column] == block
        count += 0 if seen else 1
    return count


@inner
def written_column(core: Core, group: int, request: int) -> int:
    """The column that the next token goes to, where sequences may share it; -1 where it begins a block of its own.

    A state-space layer writes its one block in every step.
    """
    r = core.requests[request]
    size = core.config[0].block_size
    if core.groups[group].kind == STATE_SPACE:
        return np.int64(0)
    return np.int64(r.computed) // size if r.computed % size > 0 else np.int64(-1)


@inner
def shared_writes(core: Core, request: int) -> int:
    """Blocks that must be copied before the next token is written: owners of the last block, less one each."""
    r = core.requests[request]
    if r.forked == 0 or r.row < 0:
        return np.int64(0)
    copies = np.int64(0)
    for group in range(len(core.groups)):
        column = written_column(core, group, request)
        if column < 0:
            continue
        copies += np.int64(r.sequences) - distinct(core, group, request, column)
    return copies


@inner
def new_blocks(core: Core, request: int, tokens: int, hits: int, purpose: int) -> int:
    """Blocks that must be free so that each sequence has slots for `tokens` tokens.

    `hits` columns of the scratch row are prefix hits; those without an owner leave the free queue and count.
    For admission a windowed group asks for no more than it will ever hold.
    """
    size = core.config[0].block_size
    r = core.requests[request]
    rows = tables_of(core, request)
    need = shared_writes(core, request)
    scratch = core.tables.shape[1] - 1
    for group in range(len(core.groups)):
        g = core.groups[group]
        if g.kind == STATE_SPACE:
            need += rows if r.blocks == 0 else 0
            continue
        required = cdiv(tokens, size)
        if purpose == FOR_ADMISSION and g.admission_cap > 0:
            required = min(required, g.admission_cap)
        need += rows * max(np.int64(0), required - np.int64(r.blocks) - hits)
        for column in range(hits):
            block = core.tables[group, scratch, column]
            if block > 0 and core.blocks[block].ref == 0:
                need += 1
    return need


@inner
def drop_left_behind(core: Core, request: int, computed: int) -> None:
    """Gives back the blocks that lie wholly left of the window; their columns become null."""
    r = core.requests[request]
    for group in range(len(core.groups)):
        keep = min(left_behind(core, group, computed), np.int64(r.blocks))
        if keep <= core.dropped[group, r.row]:
            continue
        for row in range(r.row, r.row + tables_of(core, request)):
            cursor = np.int64(-1)
            for column in range(keep - 1, core.dropped[group, row] - 1, -1):
                cursor = release(core, np.int64(core.tables[group, row, column]), cursor)
                core.tables[group, row, column] = 0
            core.dropped[group, row] = keep


@inner
def attach_hits(core: Core, request: int, hits: int) -> None:
    """Makes the hits of the scratch row the beginning of a new row."""
    r = core.requests[request]
    scratch = core.tables.shape[1] - 1
    for group in range(len(core.groups)):
        nulls = np.int64(0)
        for column in range(hits):
            block = core.tables[group, scratch, column]
            core.tables[group, r.row, column] = block
            if block > 0:
                touch(core, block)
            else:
                nulls = column + 1
        core.dropped[group, r.row] = nulls
    have = core.scalars[0].scratch_hashes
    for column in range(have):
        core.hashes[r.row, column] = core.hashes[len(core.hashes) - 1, column]
    r.blocks = hits
    r.hashed = hits


@inner
def copy_shared(core: Core, request: int) -> None:
    """Copy-on-write: each sequence that will write into a block with another owner gets a block of its own."""
    s = core.scalars[0]
    r = core.requests[request]
    if r.forked == 0:
        return
    for group in range(len(core.groups)):
        column = written_column(core, group, request)
        if column < 0:
            continue
        for row in range(r.row, r.row + r.sequences):
            block = core.tables[group, row, column]
            if core.blocks[block].ref > 1:
                fresh = take(core, request)
                release(core, np.int64(block), np.int64(-1))
                core.tables[group, row, column] = fresh
                core.copies[s.num_copies, 0] = block
                core.copies[s.num_copies, 1] = fresh
                s.num_copies += 1
                s.cow_copies += 1
            else:
                core.blocks[block].fill = core.config[0].block_size


@inner
def cancel_copies(core: Core, request: int) -> None:
    """Takes the copies of a request that will not run after all out of the step."""
    s = core.scalars[0]
    kept = np.int64(0)
    for i in range(s.num_copies):
        if core.blocks[core.copies[i, 1]].owner == core.requests[request].serial:
            s.cow_copies -= 1
            continue
        core.copies[kept, 0] = core.copies[i, 0]
        core.copies[kept, 1] = core.copies[i, 1]
        kept += 1
    s.num_copies = kept


@inner
def grow_tables(core: Core, request: int, tokens: int) -> None:
    """Appends blocks until each sequence has slots for `tokens` tokens."""
    r = core.requests[request]
    end = max(cdiv(tokens, core.config[0].block_size), np.int64(r.blocks))
    rows = tables_of(core, request)
    for group in range(len(core.groups)):
        first, last = np.int64(r.blocks), end
        if core.groups[group].kind == STATE_SPACE:
            last = first if r.blocks > 0 else np.int64(1)
        for row in range(r.row, r.row + rows):
            for column in range(first, last):
                core.tables[group, row, column] = take(core, request)
    r.blocks = end


@inner
def cache_full_blocks(core: Core, request: int, tokens: int) -> None:
    """Registers the full blocks among the first `tokens` tokens: known tokens only, never unverified drafts.

    A block enters the cache when it is allocated for the step that fills it, so that two equal prompts admitted in
    one step share. Sequences that have parted register only their common prompt.
    """
    r = core.requests[request]
    size = core.config[0].block_size
    known = np.int64(r.prompt) + (np.int64(r.generated) if r.sequences == 1 else np.int64(0))
    register_blocks(core, request, min(tokens, known) // size)


@inner
def register_blocks(core: Core, request: int, full: int) -> None:
    """Registers the blocks of a request's first row up to column `full`."""
    r = core.requests[request]
    if full <= r.hashed:
        return
    extend_chain(core, request, np.int64(r.row), np.int64(r.hashed), full)
    for group in range(len(core.groups)):
        if core.groups[group].kind == STATE_SPACE:
            continue
        for column in range(r.hashed, full):
            block = core.tables[group, r.row, column]
            if block > 0 and core.blocks[block].hash == np.uint64(0):
                register(core, block, group_key(core.hashes[r.row, column], group))
    r.hashed = full


@inner
def forget_uncomputed(core: Core, request: int) -> None:
    """Takes back what `cache_full_blocks` entered for a step that the request will not run after all.

    vLLM does not: a request preempted by priority after it was planned leaves blocks in its cache that nobody wrote.
    """
    r = core.requests[request]
    full = np.int64(r.computed) // core.config[0].block_size
    for group in range(len(core.groups)):
        for column in range(full, np.int64(r.hashed)):
            if core.groups[group].kind == STATE_SPACE:
                continue
            block = np.int64(core.tables[group, r.row, column])
            if block > 0 and core.blocks[block].hash != np.uint64(0):
                evict(core, block)
    r.hashed = min(np.int64(r.hashed), full)


@inner
def spec_hit(core: Core, spec: int, chain: np.uint64) -> bool:
    """Whether every group of one kind holds the block; their ids go to the scratch cells of the map."""
    for group in range(spec, len(core.groups)):
        if core.groups[group].spec == spec and lookup(core, group_key(chain, group)) < 0:
            return False
    return True


@inner
def spec_length(core: Core, spec: int, limit: int) -> int:
    """Blocks, at most `limit`, that the groups of one kind can take from the cache."""
    g = core.groups[spec]
    size = core.config[0].block_size
    chain = core.hashes[len(core.hashes) - 1]
    if g.kind == SLIDING_WINDOW:
        # Only the blocks that the window reaches must be there: the rightmost run long enough wins.
        wanted = cdiv(g.window - 1, size)
        run = np.int64(0)
        for column in range(limit - 1, -1, -1):
            if spec_hit(core, spec, chain[column]):
                run += 1
                if run >= wanted:
                    return column + run
            else:
                run = np.int64(0)
        return run
    first = np.int64(0)
    if g.kind == CHUNKED_LOCAL:
        first = (limit * size // g.window) * g.window // size
    if g.kind == FULL and len(core.groups) == 1:
        # The common case: what is found goes to the scratch row at once.
        scratch = core.tables.shape[1] - 1
        for column in range(limit):
            block = lookup(core, group_key(chain[column], spec))
            if block < 0:
                return column
            core.tables[spec, scratch, column] = block
        return limit
    column = first
    while column < limit and spec_hit(core, spec, chain[column]):
        column += 1
    return column


@inner
def find_hits(core: Core, request: int) -> int:
    """Looks a request up in the prefix cache; the hits go to the scratch row. Returns their number in blocks.

    At most (known tokens - 1): the last token must be computed for its logits. With several kinds of groups the hit
    is the longest on which all agree.
    """
    s = core.scalars[0]
    r = core.requests[request]
    size = core.config[0].block_size
    known = np.int64(r.prompt) + np.int64(r.generated)
    if r.sequences > 1:
        known = np.int64(r.prompt)
    limit = (known - 1) // size
    scratch = len(core.hashes) - 1
    if s.scratch_request != request or s.scratch_hashes < limit:
        extend_chain(core, request, scratch, np.int64(0), limit)
        s.scratch_request = request
        s.scratch_hashes = limit
    hits = limit
    while True:
        before = hits
        for group in range(len(core.groups)):
            if core.groups[group].spec == group:
                hits = spec_length(core, group, hits)
        if hits == before:
            break
    if len(core.groups) == 1 and core.groups[0].kind == FULL:
        return hits
    for group in range(len(core.groups)):
        g = core.groups[group]
        skip = left_behind(core, group, hits * size) if g.kind != FULL else np.int64(0)
        for column in range(hits):
            block = np.int64(0)
            if column >= skip:
                block = lookup(core, group_key(core.hashes[scratch, column], group))
            core.tables[group, core.tables.shape[1] - 1, column] = block
    return hits


@inner
def fork(core: Core, request: int) -> None:
    """The sequences of a request part: each row begins with the blocks of the first, what lies ahead excepted."""
    r = core.requests[request]
    size = core.config[0].block_size
    rest = r.computed % size
    filled = cdiv(np.int64(r.computed), size)
    for group in range(len(core.groups)):
        end = min(columns(core, group, request), filled)
        cursor = np.int64(-1)
        for column in range(columns(core, group, request) - 1, end - 1, -1):  # slots for drafts
            cursor = release(core, np.int64(core.tables[group, r.row, column]), cursor)
        if rest > 0 and core.groups[group].kind != STATE_SPACE:
            core.blocks[core.tables[group, r.row, end - 1]].fill = rest
        for row in range(r.row + 1, r.row + r.sequences):
            core.dropped[group, row] = core.dropped[group, r.row]
            for column in range(end):
                block = core.tables[group, r.row, column]
                core.tables[group, row, column] = block
                if block > 0:
                    touch(core, block)
    r.blocks = filled
    r.forked = 1


@inner
def release_request(core: Core, request: int) -> None:
    """Every sequence of a request lets go of its blocks, tail first."""
    r = core.requests[request]
    rows = tables_of(core, request)
    for row in range(r.row, r.row + rows):
        for group in range(len(core.groups)):
            cursor = np.int64(-1)
            for column in range(columns(core, group, request) - 1, core.dropped[group, row] - 1, -1):
                cursor = release(core, np.int64(core.tables[group, row, column]), cursor)
            core.dropped[group, row] = 0
    r.blocks = 0
    r.hashed = 0
    r.forked = 0


@inner
def adopt(core: Core, request: int, child: int, parent: int) -> None:
    """Sequence `child` of a request forgets its own history and shares `parent`'s, block for block (beam search)."""
    r = core.requests[request]
    size = core.config[0].block_size
    rest = r.computed % size
    filled = cdiv(np.int64(r.computed), size)
    for group in range(len(core.groups)):
        state = core.groups[group].kind == STATE_SPACE
        for column in range(core.dropped[group, r.row], min(columns(core, group, request), filled)):
            old = core.tables[group, r.row + child, column]
            new = core.tables[group, r.row + parent, column]
            if old == new:
                continue
            if rest > 0 and not state and column == filled - 1:
                core.blocks[new].fill = rest
            touch(core, new)
            release(core, np.int64(old), np.int64(-1))
            core.tables[group, r.row + child, column] = new
