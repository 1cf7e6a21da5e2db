"""The state of one replica, as arrays.

Everything the scheduler and the cache managers know stands in one `Core`: a handful of NumPy arrays that compiled
code changes in place and that a real executor reads without a copy (`tables` is the very block table that the
attention kernel follows). Records rather than many arrays, so that what belongs together lies together.

Ids: a *request* is an index into `requests`; a *row* is a place in `tables`, held while a request is resident; a
request with `sequences` = n holds the rows row..row+n-1 of its slot. Block 0 is the null block.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvplan.core.handle import Handle

# Constants are np.int64: a Python int would make Numba compile a function anew for each value it is passed.

# Places of a queue.
HEAD, TAIL = (np.int64(i) for i in range(2))
# What blocks are counted for.
FOR_STEP, FOR_ADMISSION = (np.int64(i) for i in range(2))
# What a request is doing.
PENDING, WAITING, RUNNING, FINISHED, REFUSED, ABORTED = (np.int64(i) for i in range(6))

# Why a request was refused (0: it was not).
REFUSALS = (
    "",
    "prompt + output exceeds max_model_len",
    "needs more KV cache than the whole pool",
    "prompt exceeds max_num_batched_tokens and chunked prefill is off",
    "needs more sequences than max_num_seqs",
)
TOO_LONG, TOO_BIG, TOO_MANY_TOKENS, TOO_MANY_SEQUENCES = (np.int64(i) for i in range(1, 5))

# cfg.layout
PAGED, CONTIGUOUS = (np.int64(i) for i in range(2))
# cfg.reservation
RESERVE_MAX, RESERVE_POW2, RESERVE_ORACLE, RESERVE_GROW = (np.int64(i) for i in range(4))
# cfg.placement
BUDDY, FIRST_FIT, BEST_FIT = (np.int64(i) for i in range(3))
# cfg.policy
FCFS, PRIORITY = (np.int64(i) for i in range(2))
# cfg.preemption
RECOMPUTE, SWAP = (np.int64(i) for i in range(2))
# cfg.batching
CONTINUOUS, STATIC = (np.int64(i) for i in range(2))
# cfg.admission
ADMIT_VLLM, ADMIT_GUARANTEED_NO_EVICT, ADMIT_MAX_UTILIZATION = (np.int64(i) for i in range(3))
# group.kind
FULL, SLIDING_WINDOW, CHUNKED_LOCAL, STATE_SPACE = (np.int64(i) for i in range(4))

CONFIG = np.dtype(
    [
        ("layout", "i8"),
        ("block_size", "i8"),
        ("usable_blocks", "i8"),  # paged: blocks without the null block
        ("total_slots", "i8"),  # token slots in the pool, all layouts
        ("prefix_caching", "i8"),
        ("reservation", "i8"),
        ("placement", "i8"),
        ("max_model_len", "i8"),
        ("max_num_seqs", "i8"),
        ("max_num_batched_tokens", "i8"),
        ("chunked_prefill", "i8"),
        ("policy", "i8"),
        ("long_prefill_token_threshold", "i8"),
        ("watermark_blocks", "i8"),
        ("reserve_full_isl", "i8"),
        ("async_scheduling", "i8"),
        ("batching", "i8"),
        ("preemption", "i8"),
        ("admission", "i8"),
        ("host_blocks", "i8"),  # blocks of the swap space
        ("speculative_tokens", "i8"),
        ("acceptance_rate", "f8"),
        ("lookahead_tokens", "i8"),  # slots beyond the scheduled tokens (a draft model's own)
        ("beam_survival", "f8"),
        ("seed", "i8"),
        ("stride", "i8"),  # rows of a slot: the largest `sequences` of the trace
        ("skip", "i8"),  # jump over uneventful stretches
        ("outputs_shared", "i8"),  # another request's prompt can name a generated token
        ("block_bytes", "f8"),  # for the cost of copies and swaps
    ],
    align=True,
)

REQUEST = np.dtype(
    [
        ("arrival_s", "f8"),
        ("prompt", "i4"),
        ("output", "i4"),
        ("priority", "i4"),
        ("sequences", "i4"),  # parallel samples or beams
        ("beams", "i4"),  # 1: the sequences are the beams of one search
        ("status", "i4"),
        ("reason", "i4"),
        ("row", "i4"),  # first row of its slot, -1 when not resident
        ("computed", "i4"),  # tokens whose K and V are in the cache, the step in flight included
        ("generated", "i4"),  # output tokens known, for each sequence
        ("promised", "i4"),  # output tokens of steps not yet committed (async scheduling)
        ("flying", "i4"),  # tokens of steps not yet committed
        ("blocks", "i4"),  # end of the table: columns 0..blocks-1 are set (null ones included)
        ("hashed", "i4"),  # leading blocks that are registered in the prefix cache
        ("forked", "i4"),  # 1 once the sequences have tables of their own
        ("swapped", "i4"),  # blocks that wait in the host pool
        ("host_head", "i4"),  # first of them
        ("used_slots", "i8"),  # what this request adds to the scalars of the same names
        ("never_slots", "i8"),
        ("held_slots", "i8"),
        ("preemptions", "i4"),
        ("swaps", "i4"),
        ("serial", "i4"),  # its number in the whole run, whichever replica serves it: names its own tokens
        ("external", "i4"),  # leading tokens whose K and V another replica computed and sends
        ("cached", "i4"),  # prompt tokens that the prefix cache gave at the first admission, -1 before it
        ("first_scheduled_s", "f8"),
        ("first_token_s", "f8"),
        ("last_token_s", "f8"),
        ("finish_s", "f8"),
    ],
    align=True,
)

BLOCK = np.dtype(
    [
        ("next", "i4"),  # free queue
        ("prev", "i4"),
        ("owner", "i4"),  # serial of the request that took it last
        ("ref", "u2"),
        ("fill", "u2"),  # tokens in it while it is shared and not full, else block_size
        ("hash", "u8"),  # 0: not in the prefix cache
        ("chain_next", "i4"),  # the next block in its bucket of the prefix map, -1 for none
        ("chain_prev", "i4"),  # the one before; of the first block: the last one
    ],
    align=True,
)
MOST_IN_U2 = 65_535  # 32 bytes a block: two to a cache line

GROUP = np.dtype(
    [
        ("kind", "i8"),
        ("window", "i8"),
        ("admission_cap", "i8"),  # most blocks that the admission check asks for, 0 for no cap
        ("spec", "i8"),  # first group with the same kind and window: they hit or miss together
    ],
    align=True,
)

# Address-ordered list of extents, free (owner -1) and held (owner: the row).
EXTENT = np.dtype([("start", "i8"), ("size", "i8"), ("next", "i4"), ("prev", "i4"), ("owner", "i4")], align=True)

PLANNED = np.dtype(
    [
        ("request", "i4"),
        ("row", "i4"),
        ("sequences", "i4"),  # rows row..row+sequences-1 run, each with `tokens` tokens
        ("computed", "i4"),  # tokens before the step
        ("tokens", "i4"),
        ("samples", "i4"),  # 1: each sequence yields a token
        ("drafts", "i4"),  # how many of `tokens` are unverified draft tokens
        ("fresh", "i4"),  # 1: first admission, 2: resumed, 0: was running
    ],
    align=True,
)

SCALARS = np.dtype(
    [
        ("now", "f8"),
        ("step", "i8"),
        ("num_requests", "i8"),  # requests known (a cluster adds more later)
        ("next_arrival", "i8"),  # first request that has not arrived yet
        ("unfinished", "i8"),  # arrived, neither finished nor refused
        ("num_running", "i8"),
        ("running_sequences", "i8"),
        ("num_waiting", "i8"),
        ("wait_head", "i8"),  # ring buffer (fcfs) or heap size (priority)
        ("wait_size", "i8"),  # entries in the ring or heap, dead ones included
        ("num_rows_free", "i8"),
        ("free_blocks", "i8"),
        ("cached_free", "i8"),  # of these: with a hash
        ("host_free", "i8"),
        ("num_planned", "i8"),
        ("planned_tokens", "i8"),
        ("num_copies", "i8"),
        ("num_swapped_out", "i8"),
        ("num_swapped_in", "i8"),
        ("num_preempted", "i8"),
        ("num_finished", "i8"),
        ("flying_planned", "i8"),  # async: entries of the step in flight
        ("device_free_s", "f8"),  # async: when the step in flight ends
        ("head_blocked", "i8"),  # the last plan left the head of the queue waiting for memory
        ("batch_open", "i8"),  # static batching: members may still join
        # Where the memory is, in token slots; what is not listed follows from these.
        ("used_slots", "i8"),  # filled, every sequence counted
        ("shared_slots", "i8"),  # of these: counted more than once
        ("never_slots", "i8"),  # allocated and never to be filled
        ("held_slots", "i8"),  # contiguous: reserved by live sequences
        ("rounded_slots", "i8"),  # contiguous: what placement rounds up beyond the reservation
        ("committed_blocks", "i8"),  # blocks the running requests will hold at their ends
        ("external_slots", "i8"),
        ("largest_free_slots", "i8"),
        ("layout_dirty", "i8"),
        # Counters.
        ("preemptions", "i8"),
        ("swaps", "i8"),
        ("query_tokens", "i8"),
        ("hit_tokens", "i8"),
        ("cow_copies", "i8"),
        ("grow_copies", "i8"),
        ("finished", "i8"),
        ("refused", "i8"),
        ("steps_skipped", "i8"),
        ("scheduled_tokens", "i8"),
        ("output_tokens", "i8"),
        ("allocated_blocks", "i8"),
        # The hash scratch row.
        ("scratch_request", "i8"),
        ("scratch_hashes", "i8"),
    ],
    align=True,
)


class Core(Handle):
    """All of a replica's state. R requests, N blocks, G cache groups, S rows, C columns."""

    config: NDArray[Any]  # CONFIG[1]
    scalars: NDArray[Any]  # SCALARS[1]
    groups: NDArray[Any]  # GROUP[G]
    requests: NDArray[Any]  # REQUEST[R]
    running: NDArray[np.int32]  # [max_num_seqs]: requests in order of admission
    waiting: NDArray[np.int32]  # [R + 1]: ring buffer or heap of requests
    rows_free: NDArray[np.int32]  # stack of slots' first rows
    blocks: NDArray[Any]  # BLOCK[N + 1]: N is the sentinel of the free queue
    tables: NDArray[np.int32]  # [G, S + 1, C]: physical block ids; the last row is scratch for prefix hits
    dropped: NDArray[np.int32]  # [G, S + 1]: leading null columns of a row (left of the window)
    hashes: NDArray[np.uint64]  # [S + 1, C]: hash chain of each row; the last row is scratch
    heads: NDArray[np.int32]  # [power of two]: the prefix map, by the low bits of the hash: first block or -1
    extents: NDArray[Any]  # EXTENT[2 S + 64]; 0 is the head of the list
    extent_free: NDArray[np.int32]  # stack of unused nodes; [0] is its size
    extent_of: NDArray[np.int32]  # [S]: the extent of a row, -1 for none
    slot_request: NDArray[np.int32]  # [S]: the request that a row serves
    host_next: NDArray[np.int32]  # [host_blocks + 1]: free list and lists of swapped requests
    planned: NDArray[Any]  # PLANNED[max_num_seqs]
    flying: NDArray[Any]  # PLANNED[max_num_seqs]: async, the step before
    copies: NDArray[np.int32]  # [., 2]: (source, destination) blocks, before the step
    swapped_out: NDArray[np.int32]  # [., 2]: (device block, host block)
    swapped_in: NDArray[np.int32]  # [., 2]: (host block, device block)
    preempted: NDArray[np.int32]  # requests preempted by the last plan
    finished: NDArray[np.int32]  # requests finished by the last commit
    buckets: NDArray[np.int32]  # scratch of the skip: rows by place in their block
    segment_ptr: NDArray[np.int64]  # [R + 1] or [1] where nothing is shared
    segment_source: NDArray[np.int64]
    segment_start: NDArray[np.int64]
    segment_tokens: NDArray[np.int64]
    output_source: NDArray[np.int64]
    output_start: NDArray[np.int64]
