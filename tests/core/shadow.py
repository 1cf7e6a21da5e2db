"""A device without arithmetic: it carries out plans on what tokens *are*, not on their keys and values.

A slot of the shadow pool holds a *node*: a token together with all tokens before it, which is all that its K and V
depend on. Two slots may stand for each other exactly when their nodes are equal. Before every read each position
that the attention of a planned row reaches must hold that row's node, whatever was copied, shared, swapped, evicted
or rolled back meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvplan.core import state
from kvplan.core.replica import Replica, Workload
from kvplan.core.settings import Settings

UNKNOWN, REJECTED = -1, -2
"""What a slot holds that nobody has written, and one whose draft token was not accepted."""
OWN_PROMPT, OWN_OUTPUT, SAMPLED = "prompt", "output", "sampled"

Nodes = NDArray[np.int64]


class Tokens:
    """Gives every (history, token) its node."""

    def __init__(self) -> None:
        self._nodes: dict[tuple[int, Any], int] = {}

    def child(self, parent: int, token: Any) -> int:
        return self._nodes.setdefault((parent, token), len(self._nodes) + 1)

    def path(self, tokens: Iterator[Any]) -> list[int]:
        nodes, node = [], 0
        for token in tokens:
            node = self.child(node, token)
            nodes.append(node)
        return nodes


def known_tokens(workload: Workload, request: int) -> Iterator[Any]:
    """What the prompt and the output of a request are, by the segments of the trace."""
    prompt, place = int(workload.prompt_tokens[request]), 0
    if len(workload.segment_ptr) > 1:
        for segment in range(workload.segment_ptr[request], workload.segment_ptr[request + 1]):
            source, start = workload.segment_source[segment], workload.segment_start[segment]
            for i in range(min(int(workload.segment_tokens[segment]), prompt - place)):
                yield int(source), int(start) + i
            place += int(workload.segment_tokens[segment])
    for i in range(place, prompt):
        yield OWN_PROMPT, request, i
    source = int(workload.output_source[request]) if len(workload.output_source) else -1
    begin = int(workload.output_start[request]) if len(workload.output_start) else 0
    for i in range(int(workload.output_tokens[request])):
        yield (source, begin + i) if source >= 0 else (OWN_OUTPUT, request, i)


class Shadow:
    """Executes the plans of one replica. Every method raises AssertionError at the first slot that is wrong."""

    def __init__(self, replica: Replica, workload: Workload) -> None:
        self.core, self.chosen = replica.core, replica.settings
        tokens = Tokens()
        self.tokens = tokens
        self.path = [np.array(tokens.path(known_tokens(workload, r))) for r in range(len(workload))]
        self.several = self.core.requests["sequences"] > 1
        # Of a request with several sequences: the nodes of each, as far as they are known.
        self.rows = {
            int(r): [
                list(self.path[r][: int(workload.prompt_tokens[r])]) for _ in range(self.core.requests["sequences"][r])
            ]
            for r in np.flatnonzero(self.several)
        }
        self.paged = self.chosen.paged
        size = self.chosen.block_size if self.paged else 1
        places = self.chosen.num_gpu_blocks if self.paged else self.chosen.pool_slots
        self.slots = np.full(places * size, UNKNOWN, np.int64)
        self.host = np.full((self.chosen.host_blocks + 1) * size, UNKNOWN, np.int64)
        self.written: list[tuple[int, Nodes, Nodes]] = []  # of the last step: request, positions, slots
        self.extents: dict[tuple[int, int], tuple[int, int]] = {}
        self.forked: set[int] = set()
        self.groups = [g for g in range(len(self.core.groups)) if self.core.groups["kind"][g] != state.STATE_SPACE]

    # What a row holds and where.

    def nodes(self, request: int, sequence: int, end: int) -> Nodes:
        """What a sequence's first `end` tokens are; where several sequences draft, each guesses what it will sample."""
        if not self.several[request]:
            return self.path[request][:end]
        known = self.rows[request][sequence]
        return np.array([*known, *self._sampled(request, sequence, end - len(known))][:end])

    def _sampled(self, request: int, sequence: int, count: int) -> list[int]:
        nodes = self.rows[request][sequence]
        place, node, found = len(nodes), nodes[-1], []
        for i in range(count):
            node = self.tokens.child(node, (SAMPLED, request, sequence, place + i))
            found.append(node)
        return found

    def places(self, group: int, row: int, positions: Nodes) -> Nodes:
        """The slot of each position of a row."""
        if not self.paged:
            extent = self.core.extents[self.core.extent_of[row]]
            assert positions[-1] < extent["size"], f"row {row} writes beyond its extent"
            return extent["start"] + positions
        size = self.chosen.block_size
        blocks = self.core.tables[group, row, positions // size]
        assert blocks.all(), f"row {row} reads or writes the null block in group {group}: {blocks}"
        return blocks * size + positions % size

    def first_read(self, group: int, computed: int) -> int:
        kind, window = int(self.core.groups["kind"][group]), int(self.core.groups["window"][group])
        if kind == state.SLIDING_WINDOW:
            return max(0, computed - window + 1)
        return computed // window * window if kind == state.CHUNKED_LOCAL else 0

    # A step.

    def execute(self) -> None:
        """Swaps out, copies, swaps in, then every row: all of them write, then all read, as in one layer."""
        core, s = self.core, self.core.scalars[0]
        if self.paged:
            self._move()
        else:
            self._move_extents()
        for request in core.preempted[: s["num_preempted"]]:
            if core.requests["forked"][request] == 0:  # swapped tables stay apart
                self.forked.discard(int(request))
        entries = core.planned[: s["num_planned"]]
        self.written = []
        for entry in entries:
            request = int(entry["request"])
            positions = np.arange(entry["computed"], entry["computed"] + entry["tokens"])
            for sequence in range(entry["sequences"]):
                nodes = self.nodes(request, sequence, int(positions[-1]) + 1)
                drafts = int(entry["drafts"]) if self.several[request] else 0
                known = len(self.rows[request][sequence]) if self.several[request] else len(nodes)
                assert positions[-1] < known + drafts, f"request {request} computes a token that nobody knows"
                for group in self.groups:
                    places = self.places(group, entry["row"] + sequence, positions)
                    self.slots[places] = nodes[positions]
                    self.written.append((request, positions, places))
        for entry in entries:
            for sequence in range(entry["sequences"]):
                for group in self.groups:
                    self._read(entry, group, sequence)

    def _read(self, entry: Any, group: int, sequence: int) -> None:
        request, end = int(entry["request"]), int(entry["computed"] + entry["tokens"])
        positions = np.arange(self.first_read(group, int(entry["computed"])), end)
        found = self.slots[self.places(group, entry["row"] + sequence, positions)]
        expected = self.nodes(request, sequence, end)[positions]
        wrong = np.flatnonzero(found != expected)
        assert not len(wrong), (
            f"request {request}, sequence {sequence}, group {group}: position {positions[wrong[0]]} of {end} reads "
            f"{found[wrong[0]]} for {expected[wrong[0]]}"
        )

    def _move(self) -> None:
        core, s, size = self.core, self.core.scalars[0], self.chosen.block_size
        pool, host = self.slots.reshape(-1, size), self.host.reshape(-1, size)
        for block, place in core.swapped_out[: s["num_swapped_out"]]:
            host[place] = pool[block]
        copies = core.copies[: s["num_copies"]]
        assert not set(copies[:, 0]) & set(copies[:, 1]), f"the order of the copies matters: {copies}"
        assert len(set(copies[:, 1])) == len(copies), f"two copies into one block: {copies}"
        pool[copies[:, 1]] = pool[copies[:, 0]]
        for place, block in core.swapped_in[: s["num_swapped_in"]]:
            pool[block] = host[place]

    def _move_extents(self) -> None:
        """A row that grew into another extent is copied there, in the order of the plan; extents never overlap."""
        core, s = self.core, self.core.scalars[0]
        now: dict[tuple[int, int], tuple[int, int]] = {}
        for request in core.running[: s["num_running"]]:
            for sequence in range(core.requests["sequences"][request]):
                extent = core.extents[core.extent_of[core.requests["row"][request] + sequence]]
                now[int(request), sequence] = (int(extent["start"]), int(extent["size"]))
        spans = sorted(now.values())
        assert all(a + n <= b for (a, n), (b, _) in pairwise(spans)), f"extents overlap: {spans}"
        for key, (start, size) in now.items():
            former = self.extents.get(key)
            if former is not None and former[0] != start and core.requests["computed"][key[0]] > 0:
                length = min(size, former[1])
                self.slots[start : start + length] = self.slots[former[0] : former[0] + length].copy()
        self.extents = now

    def take_in(self, entries: NDArray[Any]) -> None:
        """After the commit of `entries`: rejected drafts are poisoned, histories grow, sequences part."""
        core = self.core
        for request, positions, places in self.written if self.chosen.num_speculative_tokens else []:
            beyond = positions >= core.requests["prompt"][request] + core.requests["generated"][request]
            self.slots[places[beyond]] = REJECTED
        for entry in entries:
            request = int(entry["request"])
            if self.several[request]:
                self._take_in_several(request, bool(entry["samples"]))

    def _take_in_several(self, request: int, samples: bool) -> None:
        core = self.core
        r = core.requests[request]
        live = r["status"] == state.RUNNING
        if live and r["forked"] and request not in self.forked and not self.paged:
            start, length = self.extents[request, 0][0], int(r["prompt"])
            for sequence in range(1, r["sequences"]):
                target = self.extents[request, sequence][0]
                self.slots[target : target + length] = self.slots[start : start + length].copy()
        sampled = int(r["prompt"] + r["generated"]) - len(self.rows[request][0])  # accepted drafts and one more
        self._extend(request, sampled - 1)
        if live and samples and r["beams"] and request in self.forked and self.paged:
            self._choose(request)
        self._extend(request, min(sampled, 1))
        (self.forked.add if live and r["forked"] else self.forked.discard)(request)

    def _extend(self, request: int, count: int) -> None:
        for sequence, nodes in enumerate(self.rows[request]):
            nodes.extend(self._sampled(request, sequence, count))

    def _choose(self, request: int) -> None:
        """Which beam each row goes on from is read off its blocks, all of which must tell the same one."""
        r = self.core.requests[request]
        former = [list(nodes) for nodes in self.rows[request]]
        for sequence in range(r["sequences"]):
            found = []
            for group in self.groups:
                positions = np.arange(self.first_read(group, int(r["computed"])), int(r["computed"]))
                found.append((positions, self.slots[self.places(group, r["row"] + sequence, positions)]))
            parents = [
                beam for beam, nodes in enumerate(former) if all((np.array(nodes)[p] == f).all() for p, f in found)
            ]
            assert parents, f"beam {sequence} of request {request} holds nobody's history"
            parent = sequence if sequence in parents else parents[0]
            self.rows[request][sequence] = list(former[parent])


def run_in_the_shadow(chosen: Settings, workload: Workload, bound: int = 20_000) -> Replica:
    """Runs to the end on a clock of one second a step, executing every plan."""
    replica = Replica(chosen, workload)
    shadow = Shadow(replica, workload)
    now = 0.0
    for _ in range(bound):
        s = replica.core.scalars[0]
        if replica.idle and s["next_arrival"] >= len(workload):
            return replica
        if replica.idle:
            now = max(now, float(workload.arrival_s[s["next_arrival"]]))
        planned = replica.plan(now)
        shadow.execute()
        s = replica.core.scalars[0]
        if not planned and not s["num_running"] and s["num_waiting"] and not s["num_preempted"]:
            replica.refuse_head()
        now += 1.0
        entries = replica.core.planned[:planned].copy()
        if chosen.async_scheduling:
            entries = replica.core.flying[: s["flying_planned"]].copy()
        replica.commit(now)
        shadow.take_in(entries)
    raise AssertionError("the run does not end")
