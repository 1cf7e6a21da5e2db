"""What must hold between any two operations. For tests and for doubt: it walks everything, in Python."""

from __future__ import annotations

import numpy as np

from kvplan.core.recorder import MOMENT, split
from kvplan.core.state import CONTIGUOUS, RUNNING, STATE_SPACE, WAITING, Core


def check(core: Core) -> None:
    """Raises AssertionError with a sentence when the state contradicts itself.

    Conservation (free + owned = all), no block owned twice without a count, counts equal to the tables, the null
    block never handed out, the free queue whole, the prefix map exact, extents that tile the pool, and a split of
    the memory that adds up with no negative part.
    """
    _check_queues(core)
    if int(core.config["layout"][0]) == CONTIGUOUS:
        _check_extents(core)
    else:
        _check_blocks(core)
        _check_prefix_map(core)
        _check_host_pool(core)
    moment = np.zeros(1, MOMENT)
    split(core, moment)
    parts = {name: int(moment[name][0]) for name in ("used", "reserved", "internal", "external", "cached", "free")}
    assert min(parts.values()) >= 0, f"a part of the pool is negative: {parts}"
    assert sum(parts.values()) == int(moment["total"][0]), f"the parts do not add up to the pool: {parts}"


def _running(core: Core) -> list[int]:
    return [int(r) for r in core.running[: int(core.scalars["num_running"][0])]]


def _check_queues(core: Core) -> None:
    requests = core.requests
    running = _running(core)
    assert len(set(running)) == len(running), f"a request runs twice: {running}"
    waiting = int((requests["status"] == WAITING).sum())
    assert waiting == int(core.scalars["num_waiting"][0]), "num_waiting does not count the waiting"
    sequences = sum(int(requests["sequences"][r]) for r in running)
    assert sequences == int(core.scalars["running_sequences"][0]), "running_sequences is wrong"
    rows = [int(requests["row"][r]) for r in running]
    free = core.rows_free[: int(core.scalars["num_rows_free"][0])].tolist()
    assert sorted(rows + free) == sorted(set(rows + free)), "a row is held twice"
    holders = {int(r) for r in np.flatnonzero(requests["row"] >= 0)}
    assert holders == set(running), f"rows are held by {holders}, running are {running}"


def _check_blocks(core: Core) -> None:
    blocks, requests = core.blocks, core.requests
    sentinel = len(blocks) - 1
    owners = np.zeros(len(blocks), np.int64)
    for request in _running(core):
        r = requests[request]
        rows = int(r["sequences"]) if r["forked"] else 1
        for group in range(len(core.groups)):
            columns = min(int(r["blocks"]), 1) if core.groups["kind"][group] == STATE_SPACE else int(r["blocks"])
            for row in range(int(r["row"]), int(r["row"]) + rows):
                dropped = int(core.dropped[group, row])
                table = core.tables[group, row, :columns]
                assert not table[:dropped].any(), f"request {request} keeps a block left of its window"
                assert table[dropped:].all(), f"request {request} has a null block where it needs one"
                np.add.at(owners, table[dropped:], 1)
    assert (owners[1:sentinel] == blocks["ref"][1:sentinel]).all(), "reference counts differ from the tables"
    assert blocks["ref"][0] == 0, "the null block has an owner"
    queue: list[int] = []
    following, before = blocks["next"].tolist(), blocks["prev"].tolist()
    block = following[sentinel]
    while block != sentinel:
        assert len(queue) <= sentinel, "the free queue runs in a circle"
        assert before[following[block]] == block, "the free queue is torn"
        queue.append(block)
        block = following[block]
    assert 0 not in queue, "the null block is in the free queue"
    assert sorted(queue) == np.flatnonzero(blocks["ref"][:sentinel] == 0)[1:].tolist(), "free is not unowned"
    assert len(queue) == int(core.scalars["free_blocks"][0]), "free_blocks does not count the free queue"
    cached = int(np.count_nonzero(blocks["hash"][queue]))
    assert cached == int(core.scalars["cached_free"][0]), "cached_free does not count the cached blocks"
    extra = (blocks["ref"].astype(np.int64) - 1).clip(0) * blocks["fill"]
    assert int(extra.sum()) == int(core.scalars["shared_slots"][0]), "shared_slots differs from the counts"


def _check_prefix_map(core: Core) -> None:
    reached: set[int] = set()
    hashes = core.blocks["hash"].tolist()
    following, before = core.blocks["chain_next"].tolist(), core.blocks["chain_prev"].tolist()
    for bucket in np.flatnonzero(core.heads >= 0).tolist():
        first = block = int(core.heads[bucket])
        last = -1
        while block >= 0:
            assert hashes[block], f"block {block} is filed without a hash"
            assert hashes[block] % len(core.heads) == bucket, f"block {block} is in a foreign bucket"
            assert block not in reached, f"block {block} is filed twice"
            assert last < 0 or before[block] == last, f"the chain before block {block} is torn"
            reached.add(block)
            last, block = block, following[block]
        assert before[first] == last, f"bucket {bucket} does not know its last block"
    assert reached == set(np.flatnonzero(core.blocks["hash"]).tolist()), "the map does not hold the hashed blocks"


def _check_host_pool(core: Core) -> None:
    def chain(head: int) -> list[int]:
        found: list[int] = []
        while head > 0:
            assert len(found) < len(core.host_next), "a list of host blocks runs in a circle"
            found.append(head)
            head = int(core.host_next[head])
        return found

    free = chain(int(core.host_next[0]))
    held = [b for r in core.requests if r["swapped"] for b in chain(int(r["host_head"]))]
    assert len(free) == int(core.scalars["host_free"][0]), "host_free does not count the free host blocks"
    assert sorted(free + held) == list(range(1, len(core.host_next))), "host blocks are lost or owned twice"


def _check_extents(core: Core) -> None:
    extents = core.extents
    expected, node, rows = 0, int(extents["next"][0]), []
    while node >= 0:
        e = extents[node]
        assert int(e["start"]) == expected, f"a hole or an overlap at slot {expected}"
        expected += int(e["size"])
        if e["owner"] >= 0:
            rows.append(int(e["owner"]))
            assert core.extent_of[e["owner"]] == node, "an extent and its row disagree"
        node = int(e["next"])
    assert expected == int(core.config["total_slots"][0]), "the extents do not tile the pool"
    held = [
        row
        for request in _running(core)
        for row in range(
            int(core.requests["row"][request]),
            int(core.requests["row"][request]) + int(core.requests["sequences"][request]),
        )
    ]
    assert sorted(rows) == sorted(held), f"extents are held by rows {sorted(rows)}, running are {sorted(held)}"
    assert all(core.requests["status"][r] != RUNNING or core.requests["blocks"][r] > 0 for r in _running(core))
