"""Who shares which tokens: how hash ids, prefixes and sessions become ``Content``.

A source names a sequence of tokens; a private one stands for text that only one request has written. Hash ids
of a block size B share one source in which block ``id`` is the tokens ``id*B .. id*B+B-1``: equal ids are
equal tokens, and a run of consecutive ids is one segment.
"""

from __future__ import annotations

from array import array
from collections.abc import Hashable, Iterable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvplan.trace.id_rows import BATCH, IdRows, Number, distinct, ranks
from kvplan.trace.trace import Content, Longs

Segment = tuple[int, int, int]
"""(source, start, tokens), as in ``Content``."""

_MAX_BLOCK_ID = 1 << 40
"""Larger ids are renumbered, so that ``id * block_size`` stays within 64 bits."""


def blocks_content(
    prompt_tokens: Longs,
    ids_per_row: Longs,
    ids: NDArray[Any],
    block_size: int,
    *,
    spaces: Longs | None = None,
    rows: Longs | None = None,
) -> Content:
    """The content that block ids describe.

    Args:
        prompt_tokens: int64[R].
        ids_per_row: int64[R], how many of ``ids`` belong to each request.
        ids: [sum], the block ids of all requests in order, whole numbers >= 0.
        block_size: tokens in a block. The last id of a request may stand for a partial block (ids are counted
            with ceil), or be the last full one (floor): what it covers ends with the prompt either way.
        spaces: int64[R], requests with different spaces share nothing though their ids be equal (ids that are
            local to a session); None for ids that hold for the whole file.
        rows: the content of these requests only, in this order; None: of all.

    Ids beyond the prompt's end are dropped. Outputs are unique to their request.
    """
    used = np.minimum(ids_per_row, -(-prompt_tokens // block_size))
    number = None
    if len(ids) and ids.max() >= _MAX_BLOCK_ID:
        everything = IdRows(ids, ids_per_row, used)
        if any(values.max() >= _MAX_BLOCK_ID for values in everything.values()):
            number = ranks(distinct(everything.values()))
    walked = IdRows(ids, ids_per_row, used, rows)
    if rows is not None:
        prompt_tokens, used = prompt_tokens[rows], used[rows]
        spaces = None if spaces is None else spaces[rows]
    pointer = np.zeros(len(prompt_tokens) + 1, np.int64)
    for owner, _, _ in _runs(walked, number):
        counts = np.bincount(owner - owner[0])
        pointer[owner[0] + 1 : owner[0] + 1 + len(counts)] += counts
    np.cumsum(pointer, out=pointer)
    segments = int(pointer[-1])
    start, length = np.empty(segments, np.int64), np.empty(segments, np.int64)
    # Most files have one space: a column of one number then takes no room.
    there = np.zeros(1, np.int64) if spaces is None else spaces[used > 0]
    local = len(there) > 0 and bool((there != there[0]).any())
    one = there[:1].astype(np.int64)
    source: Longs = np.empty(segments, np.int64) if local else np.broadcast_to(one, segments)
    at = 0
    for owner, first, begin in _runs(walked, number):
        part = slice(at, at + len(owner))
        start[part], length[part] = first * block_size, begin * block_size
        if spaces is not None and local:
            source[part] = spaces[owner]
        at += len(owner)
    _to_lengths(length, pointer, np.minimum(used * block_size, prompt_tokens))
    return Content(pointer, source, start, length, np.full(len(prompt_tokens), -1, np.int64))


def _runs(rows: IdRows, number: Number | None) -> Iterator[tuple[Longs, Longs, Longs]]:
    """(row, id, place of the id in its row) where a run of consecutive ids begins, batch by batch, none empty."""
    for row, within, ids, before in rows.batches(number):
        begins = (ids != before + 1) | (within == 0)
        if begins.any():
            yield row[begins], ids[begins], within[begins]


def _to_lengths(begin: Longs, pointer: Longs, covered: Longs) -> None:
    """Each segment's beginning in its prompt becomes its length, in place; ``covered``: where a row's last ends."""
    some = pointer[1:] > pointer[:-1]
    last = pointer[1:][some] - 1
    tail = covered[some] - begin[last]
    for at in range(0, len(begin) - 1, BATCH):
        part = slice(at, min(at + BATCH, len(begin) - 1))
        begin[part] = begin[part.start + 1 : part.stop + 1] - begin[part]
    begin[last] = tail


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

    def forget(self, session: Hashable) -> None:
        """No further turn of that session comes: what it holds takes several hundred bytes."""
        self._history.pop(session, None)

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


def merged(parts: list[Content]) -> Content:
    """The content of the same requests told in two ways, each request in one of them; sources stay apart.

    Args:
        parts: the two; taken out, so that the first's columns are freed as soon as they are copied.
    """
    second = parts.pop()
    first = dict(vars(parts.pop()))
    rows = len(second.output_source)
    counts = np.column_stack([np.diff(first["segment_ptr"]), np.diff(second.segment_ptr)])
    of_first = np.repeat(np.tile([True, False], rows), counts.ravel())
    shift = int(first["segment_source"].max(initial=-1)) + 1

    def column(name: str, shift: int = 0) -> Longs:
        whole = np.empty(len(of_first), np.int64)
        whole[of_first] = first.pop(name)
        whole[~of_first] = getattr(second, name) + shift
        return whole

    output = first["output_source"]
    return Content(
        np.append(0, np.cumsum(counts.sum(axis=1))).astype(np.int64),
        column("segment_source", shift),
        column("segment_start"),
        column("segment_tokens"),
        np.where(second.output_source >= 0, second.output_source + shift, output),
    )
