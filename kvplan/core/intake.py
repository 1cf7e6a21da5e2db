"""A core that is fed while it runs: requests join it, and those that are done are forgotten.

Between two steps the arrays of requests may be changed from outside. `append` adds rows behind the known ones and
makes larger arrays where these are full; `forget` takes the rows of finished, refused and aborted requests out and
closes the gaps, so that a replica's memory is bounded by the requests that it holds at once. A request is an index
into `requests` and changes it when others are forgotten; its `serial` is its name for good.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from kvplan.core.state import ABORTED, FCFS, FINISHED, REFUSED, REQUEST, WAITING, Core

if TYPE_CHECKING:
    from kvplan.core.replica import Workload

COUNTERS = (
    "now",
    "step",
    "preemptions",
    "swaps",
    "query_tokens",
    "hit_tokens",
    "cow_copies",
    "grow_copies",
    "finished",
    "refused",
    "steps_skipped",
    "scheduled_tokens",
    "output_tokens",
    "allocated_blocks",
)
"""Scalars that outlive a crash."""


_NOBODY = np.zeros(1, REQUEST)
_NOBODY["row"] = -1


@dataclass(frozen=True)
class Room:
    """What a core that is fed later must be able to hold.

    Args:
        longest: tokens of the longest sequence, prompt + output.
        sequences: most parallel samples or beams of a request.
        requests: how many it holds before its arrays must grow.
    """

    longest: int
    sequences: int = 1
    requests: int = 256


def append(core: Core, rows: NDArray[Any], workload: Workload) -> Core:
    """Adds `rows` (REQUEST[n], made of `workload`) behind the requests that the core knows.

    Returns the core to go on with: the same one, or one with larger arrays that shares all else with it.
    """
    have = int(core.scalars["num_requests"][0])
    total = have + len(rows)
    changed: dict[str, NDArray[Any]] = {}
    if total > len(core.requests):
        changed["requests"] = _enlarged(core.requests, max(total, 2 * len(core.requests)))
        changed["waiting"] = np.full(len(changed["requests"]) + 1, -1, np.int32)
        entries = _queued(core)
        changed["waiting"][: len(entries)] = entries
        core.scalars["wait_head"] = 0 if int(core.config["policy"][0]) == FCFS else core.scalars["wait_head"]
    requests = changed.get("requests", core.requests)
    requests[have:total] = rows
    changed |= _content(core, workload, have, total, len(requests))
    core.scalars["num_requests"] = total
    if not changed:
        return core
    return Core(**{name: changed.get(name, getattr(core, name)) for name in Core.__annotations__})


def forget(core: Core) -> NDArray[Any]:
    """Takes out the requests that are done. Returns their rows (REQUEST[d]), in order of arrival at this replica."""
    s = core.scalars[0]
    known = int(s["num_requests"])
    rows = core.requests[:known]
    done = np.isin(rows["status"], (FINISHED, REFUSED, ABORTED)) & (rows["flying"] == 0)
    done &= rows["row"] < 0  # a member of a static batch that is done stays until all are
    done[int(s["next_arrival"]) :] = False
    taken = rows[done].copy()
    if not len(taken):
        return taken
    place = np.where(done, -1, np.cumsum(~done) - 1).astype(np.int32)
    waiting = _queued(core)
    waiting = place[waiting[rows["status"][waiting] == WAITING]]
    for name, count in (("running", "num_running"), ("preempted", "num_preempted"), ("finished", "num_finished")):
        listed = getattr(core, name)[: int(s[count])]
        listed[:] = place[listed]
    for name, count in (("planned", "num_planned"), ("flying", "flying_planned")):
        entries = getattr(core, name)[: int(s[count])]
        entries["request"] = place[entries["request"]]
    held = core.slot_request >= 0
    core.slot_request[held] = place[core.slot_request[held]]
    kept = np.flatnonzero(~done)
    _forget_content(core, kept, known)
    core.requests[: len(kept)] = rows[kept]
    core.requests[len(kept) : known] = _NOBODY
    core.waiting[: len(waiting)] = waiting
    s["wait_size"] = len(waiting)
    if int(core.config["policy"][0]) == FCFS:
        s["wait_head"] = 0
    s["next_arrival"] -= len(taken)
    s["num_requests"] = len(kept)
    s["scratch_request"] = -1
    return taken


def _queued(core: Core) -> NDArray[np.int32]:
    """The entries of the waiting queue, dead ones included: a ring from its head, or a heap in order of urgency."""
    s = core.scalars[0]
    size = int(s["wait_size"])
    if int(core.config["policy"][0]) == FCFS:
        return core.waiting[(int(s["wait_head"]) + np.arange(size)) % len(core.waiting)]
    entries = core.waiting[:size]
    rows = core.requests[entries]
    return entries[np.lexsort((entries, rows["arrival_s"], rows["priority"]))]  # sorted, so a heap


def _content(core: Core, workload: Workload, have: int, total: int, capacity: int) -> dict[str, NDArray[Any]]:
    """The content arrays with the workload's behind `have` requests; empty where neither shares anything."""
    shared_before, shares = len(core.segment_ptr) > 1, len(workload.segment_ptr) > 1
    if not (shared_before or shares):
        return {}
    changed: dict[str, NDArray[Any]] = {}
    pointer, source, start = core.segment_ptr, core.output_source, core.output_start
    if len(pointer) < capacity + 1:
        pointer = changed["segment_ptr"] = _enlarged(pointer, capacity + 1)
        source = changed["output_source"] = _enlarged(source, capacity)
        start = changed["output_start"] = _enlarged(start, capacity)
        if not shared_before:
            source[:have] = -1
    begin = int(pointer[have]) if shared_before else 0
    if not shares:
        pointer[have : total + 1] = begin
        source[have:total] = -1
        return changed
    end = begin + int(workload.segment_ptr[-1])
    for name in ("segment_source", "segment_start", "segment_tokens"):
        array = getattr(core, name)
        if end > len(array):
            array = changed[name] = _enlarged(array, max(end, 2 * len(array)))
        array[begin:end] = getattr(workload, name)
    pointer[have : total + 1] = begin + workload.segment_ptr
    source[have:total] = workload.output_source
    start[have:total] = workload.output_start if len(workload.output_start) else 0
    if (workload.output_source >= 0).any():
        core.config["outputs_shared"] = 1
    return changed


def _forget_content(core: Core, kept: NDArray[np.int64], known: int) -> None:
    if len(core.segment_ptr) <= 1:
        return
    pointer = core.segment_ptr[: known + 1].copy()
    counts = np.diff(pointer)[kept]
    after = np.concatenate([[0], np.cumsum(counts)])
    chosen = np.repeat(pointer[kept], counts) + np.arange(after[-1]) - np.repeat(after[:-1], counts)
    for name in ("segment_source", "segment_start", "segment_tokens"):
        array = getattr(core, name)
        array[: len(chosen)] = array[chosen]
    core.segment_ptr[: len(after)] = after
    core.output_source[: len(kept)] = core.output_source[kept]
    core.output_start[: len(kept)] = core.output_start[kept]


def _enlarged(array: NDArray[Any], length: int) -> NDArray[Any]:
    larger = np.zeros(length, array.dtype)
    if array.dtype == REQUEST:
        larger[len(array) :] = _NOBODY
    larger[: len(array)] = array
    return larger
