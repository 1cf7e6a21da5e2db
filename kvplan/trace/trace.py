"""A trace in columns: when each request arrives, how long it is, and what it shares with others."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, eq=False)
class Content:
    """Who shares which tokens: the identity of every prompt token, run-length encoded.

    Request ``r`` owns the segments ``segment_ptr[r]:segment_ptr[r + 1]``. They cover the beginning of its
    prompt, in order; what they leave uncovered is unique to the request. The token at place ``i`` of a segment
    is the token ``(segment_source[s], segment_start[s] + i)``: two tokens are equal when these pairs are equal,
    whichever requests they stand in. The generated tokens of request ``r`` are ``(output_source[r], 0..)``, so
    a later turn of a session names its former turn's output by that source.

    Shapes: ``segment_ptr`` int64[R + 1]; ``segment_source``, ``segment_start``, ``segment_tokens`` int64[S];
    ``output_source`` int64[R]. Sources are any int64 >= 0; -1 in ``output_source`` means unique to the request.
    """

    segment_ptr: NDArray[np.int64]
    segment_source: NDArray[np.int64]
    segment_start: NDArray[np.int64]
    segment_tokens: NDArray[np.int64]
    output_source: NDArray[np.int64]


@dataclass(frozen=True)
class Origin:
    """Where a trace came from and what its reader understood (printed to the person)."""

    path: str = ""
    format: str = ""
    notes: tuple[str, ...] = ()
    """What was inferred: the unit of time, the block size of hash ids, their scope, chained or not."""
    bad_rows: int = 0


@dataclass(frozen=True, eq=False)
class Trace:
    """R requests in order of arrival.

    Args:
        arrival_s: float64[R], seconds, ascending, first >= 0.
        prompt_tokens: int64[R], >= 1.
        output_tokens: int64[R], >= 1.
        request_id: names, or None for "0", "1", ...
        priority: int32[R] (smaller runs first, as vLLM's), or None for all 0.
        session: int64[R], equal for the turns of one conversation, -1 for none; or None.
        n: int32[R], parallel samples; or None for all 1.
        beam_width: int32[R], 0 for no beam search; or None for all 0.
        content: which tokens are shared; None where nothing is.
    """

    arrival_s: NDArray[np.float64]
    prompt_tokens: NDArray[np.int64]
    output_tokens: NDArray[np.int64]
    request_id: NDArray[np.object_] | None = None
    priority: NDArray[np.int32] | None = None
    session: NDArray[np.int64] | None = None
    n: NDArray[np.int32] | None = None
    beam_width: NDArray[np.int32] | None = None
    content: Content | None = None
    origin: Origin = field(default_factory=Origin)

    def __len__(self) -> int:
        return len(self.arrival_s)
