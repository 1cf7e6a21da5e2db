"""Who shares which tokens: how hash ids, prefixes and sessions become ``Content``.

A source names a sequence of tokens; a private one stands for text that only one request has written. Hash ids
of a block size B share one source in which block ``id`` is the tokens ``id*B .. id*B+B-1``: equal ids are
equal tokens, and a run of consecutive ids is one segment.
"""

from __future__ import annotations

from array import array
from collections.abc import Hashable, Iterable

import numpy as np

from kvplan.trace.trace import Content, Longs

Segment = tuple[int, int, int]
"""(source, start, tokens), as in ``Content``."""

_MAX_BLOCK_ID = 1 << 40
"""Larger ids are renumbered, so that ``id * block_size`` stays within 64 bits."""


def blocks_content(
    prompt_tokens: Longs, ids_per_row: Longs, ids: Longs, block_size: int, *, spaces: Longs | None = None
) -> Content:
    """The content that block ids describe.

    Args:
        prompt_tokens: int64[R].
        ids_per_row: int64[R], how many of ``ids`` belong to each request.
        ids: int64[sum], the block ids of all requests in order, >= 0.
        block_size: tokens in a block. The last id of a request may stand for a partial block (ids are counted
            with ceil), or be the last full one (floor): what it covers ends with the prompt either way.
        spaces: int64[R], requests with different spaces share nothing though their ids be equal (ids that are
            local to a session); None for ids that hold for the whole file.

    Ids beyond the prompt's end are dropped. Outputs are unique to their request.
    """
    rows = len(prompt_tokens)
    row_of = np.repeat(np.arange(rows), ids_per_row)
    within = np.arange(len(ids)) - np.repeat(np.cumsum(ids_per_row) - ids_per_row, ids_per_row)
    kept = within * block_size < prompt_tokens[row_of]
    row_of, within, ids = row_of[kept], within[kept], ids[kept]
    if len(ids) and ids.max() >= _MAX_BLOCK_ID:
        ids = np.unique(ids, return_inverse=True)[1].astype(np.int64)
    source_of = np.zeros(rows, np.int64) if spaces is None else spaces
    begins = within == 0
    begins[1:] |= ids[1:] != ids[:-1] + 1
    first = np.flatnonzero(begins)
    blocks = np.diff(np.append(first, len(ids)))
    owner = row_of[first]
    length = np.minimum(blocks * block_size, prompt_tokens[owner] - within[first] * block_size)
    pointer = np.zeros(rows + 1, np.int64)
    np.cumsum(np.bincount(owner, minlength=rows), out=pointer[1:])
    return Content(
        pointer,
        source_of[owner].astype(np.int64),
        ids[first] * block_size,
        length.astype(np.int64),
        np.full(rows, -1, np.int64),
    )


MOST_SEGMENTS = 1_000_000
"""A turn repeats all turns before it: segments grow with the square of a session's length (1,000 turns)."""

_SEGMENTS_A_TURN = 16
"""How much is kept of a session once there are so many segments."""


class ContentBuilder:
    """Content request by request, for what is told by name: shared prefixes and the turns of a session.

    ``restarted`` counts the turns that were cut off from their session because the trace had ``most_segments``
    already, no room for its whole history: they share nothing with the turns before them.
    """

    def __init__(self, most_segments: int = MOST_SEGMENTS) -> None:
        self.most_segments = max(MOST_SEGMENTS, most_segments)
        self._count = 0
        self._named: dict[Hashable, int] = {}
        self._history: dict[Hashable, list[Segment]] = {}
        self._pointer = array("q", [0])
        self._source, self._start, self._tokens = array("q"), array("q"), array("q")
        self._output = array("q")
        self.restarted = 0

    def source(self, name: Hashable = None) -> int:
        """The source of that name, a new private one for None."""
        if name is not None and name in self._named:
            return self._named[name]
        self._count += 1
        if name is not None:
            self._named[name] = self._count - 1
        return self._count - 1

    def history_tokens(self, session: Hashable) -> int:
        """How long the session is so far: the last turn's prompt and output."""
        return sum(tokens for _, _, tokens in self._history.get(session, ()))

    def add(self, segments: Iterable[Segment], *, output_source: int = -1) -> None:
        """The next request's content, given outright."""
        for source, start, count in segments:
            if count > 0:
                self._source.append(source)
                self._start.append(start)
                self._tokens.append(count)
        self._pointer.append(len(self._source))
        self._output.append(output_source)

    def turn(self, session: Hashable, prompt: int, output: int, *, shared: int, head: Iterable[Segment] = ()) -> None:
        """The next request is a turn of ``session``.

        Its prompt begins with the first ``shared`` tokens of what the session holds so far (where that is
        nothing, with ``head``); the rest of the prompt and the output are new and known to later turns.
        """
        segments = clip(self._history.get(session) or list(head), shared)
        if len(self._source) > self.most_segments and len(segments) > _SEGMENTS_A_TURN:
            self.restarted += 1
            segments = []
        new = prompt - sum(tokens for _, _, tokens in segments)
        if new > 0:
            segments.append((self.source(), 0, new))
        output_source = self.source()
        self.add(segments, output_source=output_source)
        self._history[session] = [*segments, (output_source, 0, output)]

    def build(self) -> Content:
        """What was added, in that order; nothing can be added any more."""

        def column(values: array[int]) -> Longs:
            return np.frombuffer(values, dtype=np.int64) if values else np.zeros(0, np.int64)  # no copy

        return Content(
            column(self._pointer),
            column(self._source),
            column(self._start),
            column(self._tokens),
            column(self._output),
        )


def restarts(builder: ContentBuilder) -> str:
    """What to tell of ``restarted``."""
    return (
        f"sessions: {builder.restarted:,} turns are taken to share nothing with the turns before them: the"
        " sessions are too long to be followed whole (`kvplan trace slice` the trace)"
    )


def clip(segments: Iterable[Segment], tokens: int) -> list[Segment]:
    """The first ``tokens`` tokens of ``segments``."""
    clipped = []
    for source, start, count in segments:
        if tokens <= 0:
            break
        clipped.append((source, start, min(count, tokens)))
        tokens -= count
    return clipped


def merged(first: Content, second: Content) -> Content:
    """The content of the same requests told in two ways, each request in one of them; sources stay apart."""
    rows = len(first.output_source)
    shift = int(first.segment_source.max(initial=-1)) + 1
    counts = np.column_stack([np.diff(first.segment_ptr), np.diff(second.segment_ptr)])
    owner = np.concatenate([np.repeat(np.arange(rows), counts[:, 0]), np.repeat(np.arange(rows), counts[:, 1])])
    order = np.argsort(owner, kind="stable")
    pointer = np.append(0, np.cumsum(counts.sum(axis=1))).astype(np.int64)
    return Content(
        pointer,
        np.concatenate([first.segment_source, second.segment_source + shift])[order],
        np.concatenate([first.segment_start, second.segment_start])[order],
        np.concatenate([first.segment_tokens, second.segment_tokens])[order],
        np.where(second.output_source >= 0, second.output_source + shift, first.output_source),
    )
