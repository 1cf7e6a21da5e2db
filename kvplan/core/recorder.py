"""What is measured while a replica runs: where the memory is, over time; how far apart tokens come.

Every moment is a split of the pool into used, reserved, internal, external, cached and free slots that adds up to
the pool exactly (integers). Means are weighted with the time of the steps, that is, over the time in which anything
ran. The timeline has a fixed number of buckets; when it is full, neighbours merge and the buckets' width doubles,
sums with sums and maxima with maxima, so no peak is lost however long the run.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvplan.core.handle import Handle
from kvplan.core.jit import compiled, inner
from kvplan.core.state import CONTIGUOUS, Core

BUCKETS = 1024
ADDRESSES = 256
ADDRESS_FREE, ADDRESS_CACHED = -1, -2

# Gaps between tokens: a histogram whose bins are 1/1024 of an octave apart, from 2^-20 s (1 µs) to 2^20 s.
GAP_BINS_PER_OCTAVE = 1024
GAP_LOWEST_EXPONENT = -20
GAP_OCTAVES = 40

_SPLIT = ("used", "reserved", "internal", "external", "cached", "free")

MOMENT = np.dtype([(name, "i8") for name in (*_SPLIT, "shared", "total")], align=True)

BUCKET = np.dtype(
    [
        ("steps", "i8"),
        ("busy_s", "f8"),
        *[(name, "f8") for name in (*_SPLIT, "shared")],  # slots times seconds
        ("running", "f8"),  # sequences times seconds
        ("waiting", "f8"),
        ("largest_free", "f8"),  # slots, of the snapshot at the bucket's beginning
        ("held_max", "i8"),
        ("running_max", "i8"),
        ("waiting_max", "i8"),
        ("preemptions", "i8"),
        ("output_tokens", "i8"),
        ("prefill_tokens", "i8"),
        ("hit_tokens", "i8"),
    ],
    align=True,
)

TOTALS = np.dtype(
    [
        ("width_s", "f8"),  # of a bucket
        ("origin_s", "f8"),
        ("snapshot", "i8"),  # bucket of the last snapshot, -1 before the first
        ("gaps", "f8"),
        ("gap_sum_s", "f8"),
        ("gap_max_s", "f8"),
        ("last_hit_tokens", "i8"),
        ("held_max", "i8"),
        ("peak_s", "f8"),
        ("steps", "i8"),
        ("stalls", "i8"),
    ],
    align=True,
)


class Record(Handle):
    """The recorder's arrays."""

    totals: NDArray[Any]  # TOTALS[1]
    peak: NDArray[Any]  # MOMENT[1]: when most was held
    now: NDArray[Any]  # MOMENT[1]
    timeline: NDArray[Any]  # BUCKET[BUCKETS]
    map_owner: NDArray[np.int32]  # [BUCKETS, ADDRESSES]: serial of the request at an address at the bucket's beginning
    gap_counts: NDArray[np.int64]  # [GAP_BINS_PER_OCTAVE * GAP_OCTAVES]


def new_record(origin_s: float = 0.0, width_s: float = 1e-3) -> Record:
    totals = np.zeros(1, TOTALS)
    totals["width_s"] = width_s
    totals["origin_s"] = origin_s
    totals["snapshot"] = -1
    return Record(
        totals=totals,
        peak=np.zeros(1, MOMENT),
        now=np.zeros(1, MOMENT),
        timeline=np.zeros(BUCKETS, BUCKET),
        map_owner=np.full((BUCKETS, ADDRESSES), ADDRESS_FREE, np.int32),
        gap_counts=np.zeros(GAP_BINS_PER_OCTAVE * GAP_OCTAVES, np.int64),
    )


@compiled
def split(core: Core, moment: NDArray[Any]) -> None:
    """Where the memory is now, in token slots that add up to the pool."""
    c = core.config[0]
    s = core.scalars[0]
    m = moment[0]
    m.total = c.total_slots
    m.shared = s.shared_slots
    m.used = s.used_slots - s.shared_slots
    m.internal = s.never_slots
    if c.layout == CONTIGUOUS:
        held = s.held_slots
        m.cached = 0
        m.external = s.rounded_slots + s.external_slots
    else:
        held = (c.usable_blocks - s.free_blocks) * c.block_size
        m.cached = s.cached_free * c.block_size
        m.external = 0
    m.reserved = held - m.used - m.internal
    m.free = c.total_slots - held - m.external - m.cached


@inner
def add_moment(bucket, moment, seconds: float, running: int, waiting: int) -> None:
    bucket.steps += 1
    bucket.busy_s += seconds
    bucket.used += moment.used * seconds
    bucket.reserved += moment.reserved * seconds
    bucket.internal += moment.internal * seconds
    bucket.external += moment.external * seconds
    bucket.cached += moment.cached * seconds
    bucket.free += moment.free * seconds
    bucket.shared += moment.shared * seconds
    bucket.running += running * seconds
    bucket.waiting += waiting * seconds
    held = moment.used + moment.reserved + moment.internal
    bucket.held_max = max(bucket.held_max, held)
    bucket.running_max = max(bucket.running_max, running)
    bucket.waiting_max = max(bucket.waiting_max, waiting)


@inner
def merge_into(target, other) -> None:
    target.steps += other.steps
    target.busy_s += other.busy_s
    target.used += other.used
    target.reserved += other.reserved
    target.internal += other.internal
    target.external += other.external
    target.cached += other.cached
    target.free += other.free
    target.shared += other.shared
    target.running += other.running
    target.waiting += other.waiting
    target.held_max = max(target.held_max, other.held_max)
    target.running_max = max(target.running_max, other.running_max)
    target.waiting_max = max(target.waiting_max, other.waiting_max)
    target.preemptions += other.preemptions
    target.output_tokens += other.output_tokens
    target.prefill_tokens += other.prefill_tokens
    target.hit_tokens += other.hit_tokens


@inner
def fold_timeline(record: Record) -> None:
    """Doubles the width of the buckets: the first half of the timeline then holds all of it."""
    buckets = len(record.timeline)
    for i in range(buckets // 2):
        even, odd = record.timeline[2 * i], record.timeline[2 * i + 1]
        if even.steps == 0:  # the snapshot of an empty bucket is nobody's
            even.largest_free = odd.largest_free
            for a in range(record.map_owner.shape[1]):
                record.map_owner[2 * i, a] = record.map_owner[2 * i + 1, a]
        merge_into(even, odd)
        record.timeline[i] = record.timeline[2 * i]
        for a in range(record.map_owner.shape[1]):
            record.map_owner[i, a] = record.map_owner[2 * i, a]
    for i in range(buckets // 2, buckets):
        clear(record.timeline[i])
    t = record.totals[0]
    t.width_s *= 2.0
    t.snapshot = t.snapshot // 2


@inner
def clear(bucket) -> None:
    bucket.steps = 0
    bucket.busy_s = 0.0
    bucket.used = 0.0
    bucket.reserved = 0.0
    bucket.internal = 0.0
    bucket.external = 0.0
    bucket.cached = 0.0
    bucket.free = 0.0
    bucket.shared = 0.0
    bucket.running = 0.0
    bucket.waiting = 0.0
    bucket.largest_free = 0.0
    bucket.held_max = 0
    bucket.running_max = 0
    bucket.waiting_max = 0
    bucket.preemptions = 0
    bucket.output_tokens = 0
    bucket.prefill_tokens = 0
    bucket.hit_tokens = 0


@inner
def snapshot(core: Core, record: Record, place: int) -> None:
    """Who holds each of 256 addresses, and the longest run of free ones, at the beginning of a bucket."""
    c = core.config[0]
    addresses = record.map_owner.shape[1]
    if c.layout == CONTIGUOUS:
        longest = np.int64(0)
        for a in range(addresses):
            record.map_owner[place, a] = ADDRESS_FREE
        node = np.int64(core.extents[0].next)
        while node >= 0:
            e = core.extents[node]
            if e.owner < 0:
                longest = max(longest, e.size)
            else:
                # The slot's first row carries the request.
                first = e.start * addresses // c.total_slots
                last = (e.start + e.size - 1) * addresses // c.total_slots
                for a in range(first, last + 1):
                    record.map_owner[place, a] = core.requests[core.slot_request[e.owner]].serial
            node = np.int64(e.next)
        record.timeline[place].largest_free = longest
        return
    for a in range(addresses):
        block = 1 + a * c.usable_blocks // addresses
        b = core.blocks[block]
        if b.ref > 0:
            record.map_owner[place, a] = b.owner
        else:
            record.map_owner[place, a] = ADDRESS_CACHED if b.hash != np.uint64(0) else ADDRESS_FREE
    run, longest = np.int64(0), np.int64(0)
    for block in range(1, c.usable_blocks + 1):
        run = run + 1 if core.blocks[block].ref == 0 else np.int64(0)
        longest = max(longest, run)
    record.timeline[place].largest_free = longest * c.block_size


@compiled
def record_step(core: Core, record: Record, start: float, seconds: float, decode_rows: int) -> None:
    """Takes a step in: the state that `plan` left, for `seconds` from `start`."""
    s = core.scalars[0]
    t = record.totals[0]
    split(core, record.now)
    m = record.now[0]
    held = m.used + m.reserved + m.internal
    if held > t.held_max:
        t.held_max = held
        t.peak_s = start
        record.peak[0] = record.now[0]
    place = np.int64((start - t.origin_s) / t.width_s)
    while place >= len(record.timeline):
        fold_timeline(record)
        place = np.int64((start - t.origin_s) / t.width_s)
    if place != t.snapshot:
        t.snapshot = place
        snapshot(core, record, place)
    bucket = record.timeline[place]
    add_moment(bucket, m, seconds, s.running_sequences, s.num_waiting)
    bucket.preemptions += s.num_preempted
    bucket.prefill_tokens += s.planned_tokens - decode_rows
    bucket.hit_tokens += s.hit_tokens - t.last_hit_tokens
    t.last_hit_tokens = s.hit_tokens
    t.steps += 1


@inner
def gap_bin(seconds: float) -> int:
    """The bin of a gap: linear within its octave, so that no logarithm is needed a step."""
    mantissa, exponent = math.frexp(seconds)  # seconds = mantissa * 2^exponent, 0.5 <= mantissa < 1
    place = (exponent - 1 - GAP_LOWEST_EXPONENT) * GAP_BINS_PER_OCTAVE
    place += np.int64((mantissa - 0.5) * (2 * GAP_BINS_PER_OCTAVE))
    return min(max(np.int64(0), place), np.int64(GAP_BINS_PER_OCTAVE * GAP_OCTAVES - 1))


def gap_edges() -> NDArray[np.float64]:
    """The edges of the bins, in seconds: [bins + 1]."""
    octaves = np.arange(GAP_BINS_PER_OCTAVE * GAP_OCTAVES + 1)
    whole, part = np.divmod(octaves, GAP_BINS_PER_OCTAVE)
    return np.ldexp(1.0 + part / GAP_BINS_PER_OCTAVE, whole + GAP_LOWEST_EXPONENT)


@inner
def record_gap(record: Record, seconds: float, tokens: int) -> None:
    """`tokens` tokens came `seconds` after the ones before them."""
    t = record.totals[0]
    record.gap_counts[gap_bin(seconds)] += tokens
    t.gaps += tokens
    t.gap_sum_s += seconds * tokens
    t.gap_max_s = max(t.gap_max_s, seconds)


@compiled
def record_tokens(core: Core, record: Record, entries: NDArray[Any], count: int, now: float) -> None:
    """Before `commit`: the gaps between the tokens that a step ending at `now` brings and the ones before."""
    t = record.totals[0]
    place = max(np.int64(0), t.snapshot)
    last = -1.0
    same = np.int64(0)
    for i in range(count):
        entry = entries[i]
        if entry.samples == 0:
            continue
        record.timeline[place].output_tokens += entry.sequences
        r = core.requests[entry.request]
        if r.first_token_s < 0:
            continue
        if r.last_token_s != last:
            if same > 0:
                record_gap(record, now - last, same)
            last, same = r.last_token_s, np.int64(0)
        same += entry.sequences
    if same > 0:
        record_gap(record, now - last, same)
