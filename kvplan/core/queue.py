"""The queue of requests that wait: first come first served, or by priority.

`fcfs` is a ring buffer: arrivals join at the tail, preempted requests return to the head. `priority` is a binary
heap by (priority, arrival, index). A request that finishes while it waits (async scheduling: its last token was in
flight when it was preempted) stays as a dead entry and is passed over.
"""

from __future__ import annotations

import numpy as np

from kvplan.core.jit import inner
from kvplan.core.state import HEAD, PRIORITY, WAITING, Core


@inner
def before(core: Core, a: int, b: int) -> bool:
    ra, rb = core.requests[a], core.requests[b]
    if ra.priority != rb.priority:
        return ra.priority < rb.priority
    if ra.arrival_s != rb.arrival_s:
        return ra.arrival_s < rb.arrival_s
    return a < b


@inner
def push(core: Core, request: int, where: int) -> None:
    s = core.scalars[0]
    s.num_waiting += 1
    core.requests[request].status = WAITING
    heap = core.waiting
    if core.config[0].policy == PRIORITY:
        place = s.wait_size
        while place > 0:
            parent = (place - 1) // 2
            if not before(core, request, np.int64(heap[parent])):
                break
            heap[place] = heap[parent]
            place = parent
        heap[place] = request
    elif where == HEAD:
        s.wait_head = (s.wait_head - 1) % len(heap)
        heap[s.wait_head] = request
    else:
        heap[(s.wait_head + s.wait_size) % len(heap)] = request
    s.wait_size += 1


@inner
def drop_head(core: Core) -> None:
    """Removes the entry at the head, dead or alive."""
    s = core.scalars[0]
    heap = core.waiting
    s.wait_size -= 1
    if core.config[0].policy != PRIORITY:
        s.wait_head = (s.wait_head + 1) % len(heap)
        return
    last = np.int64(heap[s.wait_size])
    place = np.int64(0)
    while True:
        child = 2 * place + 1
        if child >= s.wait_size:
            break
        if child + 1 < s.wait_size and before(core, np.int64(heap[child + 1]), np.int64(heap[child])):
            child += 1
        if not before(core, np.int64(heap[child]), last):
            break
        heap[place] = heap[child]
        place = child
    heap[place] = last


@inner
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


@inner
def pop(core: Core) -> None:
    """Takes the request that `peek` showed."""
    drop_head(core)
    core.scalars[0].num_waiting -= 1
