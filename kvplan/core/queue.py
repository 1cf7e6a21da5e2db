"""The queue of requests that wait: first come first served, or by priority.

`fcfs` is a ring buffer: arrivals join at the tail, preempted requests return to the head. `priority` is a binary
heap by (priority, arrival, index). A request that finishes while it waits (async scheduling: its last token was in
flight when it was preempted) stays as a dead entry and is passed over.
"""

from __future__ import annotations

import numpy as np

from kvplan.core.jit import compiled
from kvplan.core.state import PRIORITY, WAITING, Core


@compiled
def before(core: Core, a: int, b: int) -> bool:
    ra, rb = core.requests[a], core.requests[b]
    if ra.priority != rb.priority:
        return ra.priority < rb.priority
    if ra.arrival_s != rb.arrival_s:
        return ra.arrival_s < rb.arrival_s
    return a < b


@compiled
def push(core: Core, request: int, front: bool) -> None:
    s = core.scalars[0]
    s.num_waiting += 1
    core.requests[request].status = WAITING
    heap = core.waiting
    if core.config[0].policy == PRIORITY:
        place = s.wait_size
        while place > 0:
            parent = (place - 1) // 2
            if not before(core, request, heap[parent]):
                break
            heap[place] = heap[parent]
            place = parent
        heap[place] = request
    elif front:
        s.wait_head = (s.wait_head - 1) % len(heap)
        heap[s.wait_head] = request
    else:
        heap[(s.wait_head + s.wait_size) % len(heap)] = request
    s.wait_size += 1


@compiled
def drop_head(core: Core) -> None:
    """Removes the entry at the head, dead or alive."""
    s = core.scalars[0]
    heap = core.waiting
    s.wait_size -= 1
    if core.config[0].policy != PRIORITY:
        s.wait_head = (s.wait_head + 1) % len(heap)
        return
    last = heap[s.wait_size]
    place = np.int64(0)
    while True:
        child = 2 * place + 1
        if child >= s.wait_size:
            break
        if child + 1 < s.wait_size and before(core, heap[child + 1], heap[child]):
            child += 1
        if not before(core, heap[child], last):
            break
        heap[place] = heap[child]
        place = child
    heap[place] = last


@compiled
def peek(core: Core) -> int:
    """The request at the head, or -1 where nobody waits."""
    s = core.scalars[0]
    while s.wait_size > 0:
        place = s.wait_head if core.config[0].policy != PRIORITY else np.int64(0)
        request = np.int64(core.waiting[place])
        if core.requests[request].status == WAITING:
            return request
        drop_head(core)
    return np.int64(-1)


@compiled
def pop(core: Core) -> None:
    """Takes the request that `peek` showed."""
    drop_head(core)
    core.scalars[0].num_waiting -= 1
