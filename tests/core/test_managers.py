"""The cache managers without the scheduler: any order of admissions, growth, forks, beams, swaps and ends.

The scheduler asks for operations in few orders. Here Hypothesis asks in any, and after each one the bytes add up, no
block has two owners without a count, and every sequence still reads its own tokens.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from kvplan.core import cache, paged, scheduler, swap
from kvplan.core.check import check
from kvplan.core.jit import compiled
from kvplan.core.replica import Workload, new_core
from kvplan.core.settings import CacheGroup, Settings
from kvplan.core.state import FULL, RUNNING, WAITING, Core
from tests.core.shadow import Tokens, known_tokens

EXAMPLES = settings(
    max_examples=int(os.environ.get("KVPLAN_TEST_EXAMPLES", "150")),
    stateful_step_count=40,
    deadline=None,
    derandomize=True,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)


@compiled
def admit(core: Core, request: int, tokens: int) -> int:
    """Gives a waiting request a row and slots for `tokens` more tokens than it has. The tokens it finds, or -1."""
    c, s, r = core.config[0], core.scalars[0], core.requests[request]
    hits = np.int64(0)
    if c.prefix_caching == 1 and r.swapped == 0:
        hits = paged.find_hits(core, request)
    computed = hits * c.block_size if r.swapped == 0 else np.int64(r.computed)
    known = np.int64(r.prompt) + np.int64(r.generated)
    target = min(computed + tokens, np.int64(r.prompt)) if computed < r.prompt else computed
    s.num_swapped_in = 0
    r.row = core.rows_free[s.num_rows_free - 1]
    if not cache.admit(core, request, target, known, hits, False):
        r.row = -1
        return np.int64(-1)
    s.num_rows_free -= 1
    s.scratch_request = -1
    s.num_waiting -= 1
    r.status = RUNNING
    r.computed = target
    core.running[s.num_running] = request
    s.num_running += 1
    s.running_sequences += r.sequences
    s.committed_blocks += cache.final_blocks(core, request)
    cache.settle(core, request)
    return computed


@compiled
def grow(core: Core, request: int, tokens: int) -> bool:
    core.scalars[0].num_copies = 0
    r = core.requests[request]
    if not cache.grow(core, request, np.int64(r.computed) + tokens, np.int64(r.computed)):
        return False
    r.computed += np.int32(tokens)
    r.generated = max(np.int64(0), np.int64(r.computed) - np.int64(r.prompt))
    cache.settle(core, request)
    return True


@compiled
def part(core: Core, request: int) -> None:
    scheduler.part(core, request)


@compiled
def adopt(core: Core, request: int, child: int, parent: int) -> None:
    paged.adopt(core, request, child, parent)
    cache.settle(core, request)


@compiled
def stop(core: Core, request: int, waits: int) -> None:
    s, r = core.scalars[0], core.requests[request]
    for place in range(s.num_running):
        if core.running[place] == request:
            scheduler.take_off(core, np.int64(place))
            break
    scheduler.leave(core, request)
    r.status = WAITING
    r.computed = 0
    r.generated = 0
    s.num_waiting += 1


@compiled
def move_out(core: Core, request: int) -> bool:
    """To the host, as `scheduler.preempt` does."""
    s, r = core.scalars[0], core.requests[request]
    s.num_swapped_out = 0
    s.num_copies = 0
    if not swap.swap_out(core, request):
        return False
    for place in range(s.num_running):
        if core.running[place] == request:
            scheduler.take_off(core, np.int64(place))
            break
    s.running_sequences -= r.sequences
    s.committed_blocks -= cache.final_blocks(core, request)
    core.rows_free[s.num_rows_free] = r.row
    s.num_rows_free += 1
    r.row = -1
    paged.settle(core, request)
    r.status = WAITING
    s.num_waiting += 1
    return True


REQUESTS = 6


class Managers(RuleBasedStateMachine):
    """Six requests that come and go for ever in a small pool."""

    def chosen(self, data: Any) -> Settings:
        raise NotImplementedError

    @initialize(data=st.data())
    def start(self, data: Any) -> None:
        rng = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
        self.settings = self.chosen(data)
        prompt = rng.integers(1, 40, REQUESTS)
        shared = rng.integers(1, prompt + 1)
        self.workload = Workload(
            np.zeros(REQUESTS),
            prompt,
            rng.integers(2, 40, REQUESTS),
            sequences=rng.choice([1, 2, 3], REQUESTS).astype(np.int32),
            segment_ptr=np.arange(REQUESTS + 1),
            segment_source=rng.integers(0, 2, REQUESTS),
            segment_start=np.zeros(REQUESTS, np.int64),
            segment_tokens=shared,
            output_source=np.full(REQUESTS, -1),
        )
        self.core = new_core(self.settings, self.workload)
        self.core.requests["status"] = WAITING
        self.core.scalars["num_waiting"] = REQUESTS
        self.tokens = Tokens()
        self.prompts = [self.tokens.path(known_tokens(self.workload, r))[: prompt[r]] for r in range(REQUESTS)]
        self.rows: dict[int, list[list[int]]] = {}
        size = self.settings.block_size
        self.slots = np.full((max(1, self.settings.num_gpu_blocks), size), -1)
        self.host = np.full((self.settings.host_blocks + 1, size), -1)
        self.sampled = 0

    # What the operations mean for contents.

    def put(self, request: int, start: int) -> None:
        """Writes the tokens start.. of every sequence of a request."""
        r = self.core.requests[request]
        if not self.settings.paged:
            return
        for sequence in range(r["sequences"] if r["forked"] else 1):
            nodes = self.rows[request][sequence]
            for group in self.full_groups():
                for position in range(start, r["computed"]):
                    block = self.core.tables[group, r["row"] + sequence, position // self.settings.block_size]
                    assert block, "a token is written into the null block"
                    self.slots[block, position % self.settings.block_size] = nodes[position]

    def full_groups(self) -> list[int]:
        return [g for g in range(len(self.core.groups)) if self.core.groups["kind"][g] == FULL]

    def running(self) -> list[int]:
        return [int(r) for r in self.core.running[: self.core.scalars["num_running"][0]]]

    # Rules.

    @rule(request=st.integers(0, REQUESTS - 1), tokens=st.integers(1, 30))
    def admit(self, request: int, tokens: int) -> None:
        r = self.core.requests[request]
        if r["status"] != WAITING:
            return
        back = r["swapped"] > 0
        computed = int(admit(self.core, request, tokens))
        if computed < 0:
            return
        s = self.core.scalars[0]
        if back:
            for place, block in self.core.swapped_in[: s["num_swapped_in"]]:
                self.slots[block] = self.host[place]
        else:
            self.rows[request] = [list(self.prompts[request]) for _ in range(r["sequences"])]
        self.put(request, computed)

    @rule(data=st.data(), tokens=st.integers(1, 20))
    @precondition(lambda self: self.running())
    def grow(self, data: Any, tokens: int) -> None:
        request = data.draw(st.sampled_from(self.running()))
        r = self.core.requests[request]
        computed, prompt = int(r["computed"]), int(r["prompt"])
        if computed < prompt:
            tokens = min(tokens, prompt - computed)
        tokens = min(tokens, prompt + int(r["output"]) - 1 - computed)
        if tokens <= 0 or (r["sequences"] > 1 and computed >= prompt and not r["forked"]):
            return
        before = self.core.extent_of[r["row"]]
        if not grow(self.core, request, tokens):
            assert before == self.core.extent_of[r["row"]]
            return
        for source, target in self.core.copies[: self.core.scalars["num_copies"][0]]:
            self.slots[target] = self.slots[source]
        for sequence in self.rows[request]:
            while len(sequence) < computed + tokens:
                self.sampled += 1
                sequence.append(self.tokens.child(sequence[-1], self.sampled))
        self.put(request, computed)

    @rule(data=st.data())
    @precondition(lambda self: self.running())
    def fork(self, data: Any) -> None:
        request = data.draw(st.sampled_from(self.running()))
        r = self.core.requests[request]
        if r["sequences"] > 1 and not r["forked"] and r["computed"] == r["prompt"]:
            part(self.core, request)

    @rule(data=st.data())
    @precondition(lambda self: self.running() and self.settings.paged)
    def adopt(self, data: Any) -> None:
        request = data.draw(st.sampled_from(self.running()))
        r = self.core.requests[request]
        if r["forked"]:
            child, parent = data.draw(st.permutations(range(r["sequences"])))[:2]
            adopt(self.core, request, child, parent)
            self.rows[request][child] = list(self.rows[request][parent])

    @rule(data=st.data())
    @precondition(lambda self: self.running())
    def stop(self, data: Any) -> None:
        stop(self.core, data.draw(st.sampled_from(self.running())), 1)

    @rule(data=st.data())
    @precondition(lambda self: self.running() and self.settings.host_blocks)
    def swap_out(self, data: Any) -> None:
        request = data.draw(st.sampled_from(self.running()))
        if move_out(self.core, request):
            for block, place in self.core.swapped_out[: self.core.scalars["num_swapped_out"][0]]:
                self.host[place] = self.slots[block]

    # What holds always.

    @invariant()
    def the_state_is_sound(self) -> None:
        if hasattr(self, "core"):
            check(self.core)

    @invariant()
    def every_sequence_reads_its_own_tokens(self) -> None:
        if not hasattr(self, "core") or not self.settings.paged:
            return
        for request in self.running():
            r = self.core.requests[request]
            for sequence in range(r["sequences"] if r["forked"] else 1):
                for group in self.full_groups():
                    blocks = self.core.tables[group, r["row"] + sequence, : r["blocks"]]
                    found = self.slots[blocks].ravel()[: r["computed"]].tolist()
                    assert found == self.rows[request][sequence][: r["computed"]]


class PagedManager(Managers):
    def chosen(self, data: Any) -> Settings:
        caching = data.draw(st.booleans())
        kinds = [CacheGroup("sliding_window", 9), CacheGroup("chunked_local", 8), CacheGroup()]
        if not caching:
            kinds.append(CacheGroup("state_space"))
        return Settings(
            block_size=data.draw(st.sampled_from([1, 2, 4, 8])),
            num_gpu_blocks=data.draw(st.integers(4, 80)),
            enable_prefix_caching=caching,
            preemption="swap",
            host_blocks=data.draw(st.sampled_from([0, 10, 60])),
            max_num_seqs=REQUESTS * 3,
            max_model_len=100,
            groups=(CacheGroup(), *data.draw(st.lists(st.sampled_from(kinds), max_size=2))),
        )


class ContiguousManager(Managers):
    def chosen(self, data: Any) -> Settings:
        return Settings(
            layout="contiguous",
            pool_slots=data.draw(st.integers(20, 700)),
            reservation=data.draw(st.sampled_from(["max", "pow2", "oracle", "grow"])),
            placement=data.draw(st.sampled_from(["buddy", "first-fit", "best-fit"])),
            max_num_seqs=REQUESTS * 3,
            max_model_len=100,
        )


@pytest.mark.parametrize("machine", [PagedManager, ContiguousManager])
def test_any_order_of_operations_keeps_the_state_sound(machine: type[Managers]) -> None:
    run_state_machine_as_test(machine, settings=EXAMPLES)
