"""One replica: a compiled core, its recorder, and the two ways to drive them.

>>> replica = Replica(settings, workload)        # doctest: +SKIP
>>> replica.run(timing)                          # simulated clock, compiled    # doctest: +SKIP
>>> while replica.plan(now): ...; replica.commit(now)    # a real executor's clock    # doctest: +SKIP
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvplan.core import replay as compiled_replay
from kvplan.core import scheduler, state
from kvplan.core.first_start import compile_together
from kvplan.core.intake import COUNTERS, Room, append, forget
from kvplan.core.recorder import Record, new_record, record_step, record_tokens
from kvplan.core.settings import KINDS, Settings, admission_cap, config_record
from kvplan.core.step_time import STEP_LOAD, TimingTables


def _none() -> NDArray[np.int64]:
    return np.zeros(0, np.int64)


@dataclass(frozen=True, eq=False)
class Workload:
    """The requests of a run, in columns, in order of arrival: what the core reads of a `kvplan.trace.Trace`.

    Shapes: [R] each; the segments as in `kvplan.trace.Content`, empty where nothing is shared; `output_start` is
    empty too where all of it is 0.
    """

    arrival_s: NDArray[np.float64]
    prompt_tokens: NDArray[np.int64]
    output_tokens: NDArray[np.int64]
    priority: NDArray[np.int32] | None = None
    sequences: NDArray[np.int32] | None = None
    beams: NDArray[np.bool_] | None = None
    segment_ptr: NDArray[np.int64] = field(default_factory=_none)
    segment_source: NDArray[np.int64] = field(default_factory=_none)
    segment_start: NDArray[np.int64] = field(default_factory=_none)
    segment_tokens: NDArray[np.int64] = field(default_factory=_none)
    output_source: NDArray[np.int64] = field(default_factory=_none)
    output_start: NDArray[np.int64] = field(default_factory=_none)

    def __len__(self) -> int:
        return len(self.arrival_s)

    def take(self, chosen: NDArray[np.int64]) -> Workload:
        """The requests at the given places, ascending, with their content."""
        columns: dict[str, Any] = {
            name: None if (column := getattr(self, name)) is None else np.ascontiguousarray(column[chosen])
            for name in ("arrival_s", "prompt_tokens", "output_tokens", "priority", "sequences", "beams")
        }
        if len(self.segment_ptr) <= 1:
            return Workload(**columns)
        counts = np.diff(self.segment_ptr)[chosen]
        pointer = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
        pieces = np.repeat(self.segment_ptr[chosen] - pointer[:-1], counts) + np.arange(pointer[-1])
        return Workload(
            **columns,
            segment_ptr=pointer,
            segment_source=self.segment_source[pieces],
            segment_start=self.segment_start[pieces],
            segment_tokens=self.segment_tokens[pieces],
            output_source=self.output_source[chosen],
            output_start=self.output_start[chosen] if len(self.output_start) else self.output_start,
        )


NO_REQUESTS = Workload(np.zeros(0), _none(), _none())


def new_requests(workload: Workload) -> NDArray[np.void]:
    requests = np.zeros(max(1, len(workload)), state.REQUEST)
    count = len(workload)
    requests["arrival_s"][:count] = workload.arrival_s
    requests["prompt"][:count] = workload.prompt_tokens
    requests["output"][:count] = workload.output_tokens
    if workload.priority is not None:
        requests["priority"][:count] = workload.priority
    requests["sequences"] = 1
    if workload.sequences is not None:
        requests["sequences"][:count] = workload.sequences
    if workload.beams is not None:
        requests["beams"][:count] = workload.beams
    requests["serial"] = np.arange(len(requests))
    requests["row"] = -1
    requests["host_head"] = -1
    requests["cached"] = -1
    for name in ("first_scheduled_s", "first_token_s", "last_token_s", "finish_s"):
        requests[name] = -1.0
    return requests


def _free_queue(num_blocks: int, block_size: int) -> NDArray[np.void]:
    """Blocks 1..N-1 in id order between two ends of the sentinel N; block 0, the null block, is never in it."""
    blocks = np.zeros(num_blocks + 1, state.BLOCK)
    ids = np.arange(num_blocks + 1, dtype=np.int32)
    blocks["next"], blocks["prev"] = ids + 1, ids - 1
    blocks["next"][num_blocks], blocks["prev"][num_blocks] = (
        (1, num_blocks - 1)
        if num_blocks > 1
        else (
            num_blocks,
            num_blocks,
        )
    )
    if num_blocks > 1:
        blocks["prev"][1] = num_blocks
    blocks["owner"] = -1
    blocks["chain_next"] = blocks["chain_prev"] = -1
    blocks["fill"] = block_size
    return blocks


def _extents(settings: Settings, rows: int) -> tuple[NDArray[np.void], NDArray[np.int32]]:
    """One free extent; under buddy the largest powers of two that make up the pool, in falling order of size."""
    nodes = 2 * rows + 72
    extents = np.zeros(nodes, state.EXTENT)
    extents["owner"] = -1
    extents["next"] = extents["prev"] = -1
    sizes = [settings.pool_slots] if not settings.paged else []
    if not settings.paged and settings.placement == "buddy":
        sizes = [1 << bit for bit in range(62, -1, -1) if settings.pool_slots >> bit & 1]
    start = 0
    for node, size in enumerate(sizes, start=1):
        extents[node] = (start, size, node + 1 if node < len(sizes) else -1, node - 1, -1)
        extents[node - 1]["next"] = node
        start += size
    extents[0]["owner"] = -3  # neither free nor anybody's
    unused = np.arange(nodes - 1, len(sizes), -1, dtype=np.int32)
    stack = np.zeros(nodes + 1, np.int32)
    stack[0] = len(unused)
    stack[1 : 1 + len(unused)] = unused
    return extents, stack


def new_core(settings: Settings, workload: Workload, room: Room | None = None) -> state.Core:
    """The state before the first step. Its size is linear in the pool, the requests and max_num_seqs.

    `room`: what it must hold beside the workload, where more will be appended.
    """
    requests = new_requests(workload)
    count = len(workload)
    sequences = requests["sequences"][:count]
    stride = int(sequences.max(initial=1 if room is None else room.sequences))
    slots = min(settings.max_num_seqs, max(1, count))
    if room is not None:
        slots = settings.max_num_seqs
        known, requests = requests, np.zeros(max(len(requests), room.requests), state.REQUEST)
        requests["row"] = -1
        requests[: len(known)] = known
    rows = slots * stride
    final = np.minimum(
        workload.prompt_tokens + workload.output_tokens + settings.num_speculative_tokens + 1,
        settings.max_model_len + settings.num_speculative_tokens + 1,
    )
    longest = int(final.max(initial=1))
    if room is not None:
        beyond = settings.num_speculative_tokens + 1
        longest = max(longest, min(room.longest + beyond, settings.max_model_len + beyond - 1))
    columns = -(-longest // settings.block_size) + 1 if settings.paged else 1
    groups = np.zeros(len(settings.groups), state.GROUP)
    for index, group in enumerate(settings.groups):
        groups[index] = (
            KINDS[group.attention],
            group.window,
            admission_cap(settings, group),
            settings.groups.index(group),
        )
    num_blocks = settings.num_gpu_blocks if settings.paged else 1
    caching = settings.enable_prefix_caching
    hash_places = 1 << max(4, (2 * num_blocks - 1).bit_length()) if caching else 1
    scalars = np.zeros(1, state.SCALARS)
    s = scalars[0]
    s["num_requests"] = count
    s["free_blocks"] = num_blocks - 1
    s["num_rows_free"] = slots
    s["host_free"] = settings.host_blocks
    s["scratch_request"] = -1
    s["layout_dirty"] = 1
    host_next = np.arange(1, settings.host_blocks + 2, dtype=np.int32)
    host_next[-1] = -1
    moved = (num_blocks, 2) if settings.preemption == "swap" else (1, 2)
    extents, extent_free = _extents(settings, rows)
    outputs_shared = bool(len(workload.output_source) and (workload.output_source >= 0).any())
    return state.Core(
        config=config_record(settings, stride=stride, outputs_shared=outputs_shared),
        scalars=scalars,
        groups=groups,
        requests=requests,
        running=np.full(slots, -1, np.int32),
        waiting=np.full(len(requests) + 1, -1, np.int32),
        rows_free=np.arange(slots - 1, -1, -1, dtype=np.int32) * np.int32(stride),
        blocks=_free_queue(num_blocks, settings.block_size),
        tables=np.zeros((len(groups), rows + 1, columns), np.int32),
        dropped=np.zeros((len(groups), rows + 1), np.int32),
        hashes=np.zeros((rows + 1, columns) if caching else (1, 1), np.uint64),
        heads=np.full(hash_places, -1, np.int32),
        extents=extents,
        extent_free=extent_free,
        extent_of=np.full(rows, -1, np.int32),
        slot_request=np.full(rows, -1, np.int32),
        host_next=host_next,
        planned=np.zeros(slots, state.PLANNED),
        flying=np.zeros(slots, state.PLANNED),
        copies=np.zeros((rows * len(groups) + 1, 2), np.int32),
        swapped_out=np.zeros((moved[0] + rows, 2), np.int32),
        swapped_in=np.zeros((moved[0] + rows, 2), np.int32),
        preempted=np.full(slots, -1, np.int32),
        finished=np.full(slots, -1, np.int32),
        buckets=np.zeros(slots + stride + settings.block_size + 3, np.int32),
        segment_ptr=workload.segment_ptr if len(workload.segment_ptr) else np.zeros(1, np.int64),
        segment_source=workload.segment_source,
        segment_start=workload.segment_start,
        segment_tokens=workload.segment_tokens,
        output_source=workload.output_source,
        output_start=workload.output_start if len(workload.output_start) else np.zeros_like(workload.output_source),
    )


class Replica:
    """Drives one core.

    Args:
        workload: its requests, or the first of them.
        room: what it must hold in all, where more requests are to be `offer`ed.

    Raises:
        InputError: from `Settings`, when the settings cannot work together.
    """

    def __init__(self, settings: Settings, workload: Workload, room: Room | None = None) -> None:
        self.settings = settings
        self.core = new_core(settings, workload, room)
        self._room = room
        origin = float(workload.arrival_s[0]) if len(workload) else 0.0
        self.record: Record = new_record(origin)
        self._load = np.zeros(1, STEP_LOAD)
        self._offered = len(workload)

    def run(
        self,
        timing: TimingTables,
        *,
        until: float = np.inf,
        progress: Callable[[int, int], None] | None = None,
        work: int = 20_000_000,
    ) -> bool:
        """Runs on the simulated clock. True when nothing is left, False when `until` came first.

        `progress(done, total)` is called about twice a second of compute, so that Ctrl-C is heard as well.
        """
        compile_together(self.core, timing, self.record)
        s = self.core.scalars
        while True:
            reason = compiled_replay.replay(self.core, timing, self._load, self.record, until, work)
            if progress is not None:
                progress(int(s["finished"][0] + s["refused"][0]), int(s["num_requests"][0]))
            if reason != compiled_replay.AGAIN:
                return bool(reason == compiled_replay.DONE)

    def offer(self, workload: Workload, serials: NDArray[np.int64] | None = None) -> None:
        """Adds requests to those that it knows; none may arrive before one that it knows already.

        `serials` [R] names them in the whole run (by default: counted from the first one on this replica). Requests
        with equal serials have equal prompts.

        Raises:
            ValueError: one is longer, or has more sequences, than the replica's `Room`.
        """
        rows = new_requests(workload)[: len(workload)]
        rows["serial"] = self._offered + np.arange(len(rows)) if serials is None else serials
        self.offer_rows(rows, workload)

    def offer_rows(self, rows: NDArray[Any], content: Workload) -> None:
        """`offer`, of rows made by `new_requests`: for one request at a time. Of `content` only the segments count."""
        if self._room is None or not self._fits(rows):
            raise ValueError("the replica has no room for such a request")
        known = int(self.core.scalars["num_requests"][0])
        if known == 0 and len(rows) and self.record.totals["steps"][0] == 0:
            self.record.totals["origin_s"] = rows["arrival_s"][0]
        self._offered += len(rows)
        self.core = append(self.core, rows, content)

    def _fits(self, rows: NDArray[Any]) -> bool:
        assert self._room is not None
        final = rows["prompt"].astype(np.int64) + rows["output"]
        longest = min(int(final.max(initial=1)), self.settings.max_model_len)
        return longest <= self._room.longest and int(rows["sequences"].max(initial=1)) <= self._room.sequences

    def forget(self) -> NDArray[np.void]:
        """Takes out the requests that are done: their rows (REQUEST[d]). The others change their index."""
        return forget(self.core)

    def abort(self, serial: int) -> bool:
        """Takes out a request whose client has gone; see `scheduler.abort`. False where it cannot, or is not here."""
        known = self.core.requests["serial"][: int(self.core.scalars["num_requests"][0])]
        for request in np.flatnonzero(known == serial)[::-1]:  # the last: a retry may have come back
            return bool(scheduler.abort(self.core, int(request)))
        return False

    def crash(self) -> NDArray[np.void]:
        """Loses the pool and every request: their rows as they were. Call `forget` first to keep those that are done.

        Clock, counters and record go on.
        """
        known = int(self.core.scalars["num_requests"][0])
        lost = self.core.requests[:known].copy()
        kept = {name: self.core.scalars[name][0] for name in COUNTERS}
        self.core = new_core(self.settings, NO_REQUESTS, self._room)
        for name, value in kept.items():
            self.core.scalars[name] = value
        return lost

    def plan(self, now: float) -> int:
        """Decides a step at time `now`; see `core.planned`. Returns the number of requests in it."""
        return int(scheduler.plan(self.core, now))

    def load(self) -> NDArray[np.void]:
        """What the planned step computes (STEP_LOAD[1]), for a step-time model."""
        compiled_replay.measure_load(self.core, self._load)
        return self._load

    def commit(self, now: float) -> None:
        """Takes the planned step in (async: the one before it), which ended at `now`."""
        core = self.core
        s = core.scalars[0]
        if not self.settings.async_scheduling:
            record_tokens(core, self.record, core.planned, s["num_planned"], now)
            scheduler.commit(core, core.planned, s["num_planned"], now)
            return
        record_tokens(core, self.record, core.flying, s["flying_planned"], now)
        scheduler.commit(core, core.flying, s["flying_planned"], now)
        planned = int(s["num_planned"])
        core.flying[:planned] = core.planned[:planned]
        core.scalars["flying_planned"] = planned

    def observe(self, start: float, seconds: float) -> None:
        """Records the planned step, which ran for `seconds` from `start` (a real executor's clock)."""
        decode_rows = int(self.load()["decode_rows"][0])
        record_step(self.core, self.record, start, seconds, decode_rows)

    def refuse_head(self) -> None:
        """Refuses the head of the queue, which an idle replica could not admit."""
        compiled_replay.refuse_head(self.core)

    @property
    def idle(self) -> bool:
        s = self.core.scalars[0]
        return not (s["num_running"] or s["num_waiting"] or s["flying_planned"])
