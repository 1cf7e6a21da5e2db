"""Why a server would not start, as its engine checks it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from kvplan.memory.groups import CacheGroup, blocks_per_request
from kvplan.memory.overrides import GIB


@dataclass(frozen=True)
class Problem:
    """One reason, in a sentence, with the bytes that stand against each other."""

    kind: Literal["tensor_parallel", "no_cache", "too_large", "max_model_len"]
    message: str
    needed_bytes: int = 0
    available_bytes: int = 0
    estimated_max_len: int = 0


def longest_length(groups: Iterable[CacheGroup], usable_blocks: int, in_flight_tokens: int, at_most: int) -> int:
    """The longest sequence that fits ``usable_blocks``, not beyond ``at_most``; 0 if not even one token
    does."""
    groups = tuple(groups)
    low, high = 0, at_most
    while low < high:
        middle = (low + high + 1) // 2
        if blocks_per_request(groups, middle, in_flight_tokens) <= usable_blocks:
            low = middle
        else:
            high = middle - 1
    return low


def no_cache(short_bytes: int, stage: int) -> Problem:
    """Nothing is left once weights and activations are taken."""
    return Problem(
        "no_cache",
        f"no memory is left for the KV cache: {short_bytes / GIB:.2f} GiB short on pipeline stage {stage}",
        available_bytes=-short_bytes,
    )


def too_large(weights: int, pool: int, total: int) -> Problem:
    """A pool that was asked for outright and cannot stand beside the weights."""
    return Problem(
        "too_large",
        f"the weights and the pool asked for take {(weights + pool) / GIB:.2f} GiB of a GPU of {total / GIB:.2f} GiB",
        weights + pool,
        total,
    )


def length_does_not_fit(length: int, blocks: int, usable: int, bytes_per_block: int, longest: int) -> Problem:
    """The engine refuses to start when one request of max_model_len does not fit the pool."""
    needed, pool = blocks * bytes_per_block, usable * bytes_per_block
    return Problem(
        "max_model_len",
        f"one request of max_model_len {length} needs {blocks} blocks ({needed / GIB:.2f} GiB) and {usable} are usable "
        f"({pool / GIB:.2f} GiB)",
        needed,
        pool,
        longest,
    )
