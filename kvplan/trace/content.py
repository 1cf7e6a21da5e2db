"""Who shares which tokens: how hash ids, prefixes and sessions become ``Content``.

A source names a sequence of tokens; a private one stands for text that only one request has written. Hash ids
of a block size B share one source in which block ``id`` is the tokens ``id*B .. id*B+B-1``: equal ids are
equal tokens, and a run of consecutive ids is one segment.
"""

from __future__ import annotations

import bisect
from collections.abc import Hashable, Iterable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvplan.trace.column import Column
from kvplan.trace.id_rows import BATCH, IdRows, Number, distinct, ranks
from kvplan.trace.name_numbers import NameNumbers
from kvplan.trace.trace import ROWS, Content, Longs, Wholes, no_outputs, whole_kind

Segment = tuple[int, int, int]
"""(source, start, tokens), as in ``Content``."""

_MAX_BLOCK_ID = 1 << 40
"""Larger ids are renumbered, so that ``id * block_size`` stays within 64 bits."""


def blocks_content(
    prompt_tokens: Wholes,
    ids_per_row: Wholes,
    ids: NDArray[Any],
    block_size: int,
    *,
    spaces: Wholes | None = None,
    rows: Wholes | None = None,
) -> Content:
    """The content that block ids describe.

    Args:
        prompt_tokens: [R], whole numbers of any type, as all of these are.
        ids_per_row: [R], how many of ``ids`` belong to each request.
        ids: [sum], the block ids of all requests in order, whole numbers >= 0.
        block_size: tokens in a block. The last id of a request may stand for a partial block (ids are counted
            with ceil), or be the last full one (floor): what it covers ends with the prompt either way.
        spaces: [R], requests with different spaces share nothing though their ids be equal (ids that are
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
    most = int(ids.max(initial=0)) if number is None else len(ids)
    kind = whole_kind((most + 1) * block_size)
    start, length = np.empty(segments, kind), np.empty(segments, kind)
    # Most files have one space: a column of one number then takes no room.
    there = np.zeros(1, np.int64) if spaces is None else spaces[used > 0]
    local = len(there) > 0 and bool((there != there[0]).any())
    kind = whole_kind(int(there.max(initial=0)))
    one = there[:1].astype(kind)
    source: Longs = np.empty(segments, kind) if local else np.broadcast_to(one, segments)
    at = 0
    for owner, first, begin in _runs(walked, number):
        part = slice(at, at + len(owner))
        start[part], length[part] = first * block_size, begin * block_size
        if spaces is not None and local:
            source[part] = spaces[owner]
        at += len(owner)
    for rows_at in range(0, len(used), ROWS):
        part = slice(rows_at, rows_at + ROWS)
        covered = np.minimum(used[part].astype(np.int64) * block_size, prompt_tokens[part])
        _to_lengths(length, pointer[rows_at : rows_at + ROWS + 1], covered)
    return Content(pointer, source, start, length, no_outputs(len(prompt_tokens)))


def _runs(rows: IdRows, number: Number | None) -> Iterator[tuple[Longs, Longs, Longs]]:
    """(row, id, place of the id in its row) where a run of consecutive ids begins, batch by batch, none empty."""
    for row, within, ids, before in rows.batches(number):
        begins = (ids != before + 1) | (within == 0)
        if begins.any():
            yield row[begins], ids[begins], within[begins]


def _to_lengths(begin: Wholes, pointer: Longs, covered: Longs) -> None:
    """Each segment's beginning in its prompt becomes its length, in place, in the rows of ``pointer``.

    ``covered``: where each row's last segment ends.
    """
    some = pointer[1:] > pointer[:-1]
    last = pointer[1:][some] - 1
    tail = covered[some] - begin[last]
    for at in range(int(pointer[0]), int(pointer[-1]) - 1, BATCH):
        part = slice(at, min(at + BATCH, int(pointer[-1]) - 1))
        begin[part] = begin[part.start + 1 : part.stop + 1] - begin[part]
    begin[last] = tail


MOST_SEGMENTS = 1_000_000
"""Where turns leave a part of their session out, each may repeat a segment of every turn before it."""

_SEGMENTS_A_TURN = 2
"""How much is kept of a session once there are so many segments."""


class ContentBuilder:
    """Content request by request, for what is told by name: shared prefixes and the turns of a session.

    A session that goes on from turn to turn is one source: a turn's prompt is the beginning of it, one segment
    however many turns it holds, and the output goes on from there. A turn that leaves some of the former out goes
    on in a source of its own.

    ``restarted`` counts the turns that were cut off from their session because the trace had ``most_segments``
    already, no room for its whole history: they share nothing with the turns before them.
    """

    def __init__(self, most_segments: int = MOST_SEGMENTS) -> None:
        self.most_segments = max(MOST_SEGMENTS, most_segments)
        self.restarted = 0
        self._count = 0
        self._names = NameNumbers()
        self._named = Column()  # the source of each name
        self._pointer = Column()
        self._pointer.append(0)
        self._source, self._start, self._tokens = Column(), Column(), Column()
        self._output_source, self._output_start = Column(-1), Column(0)
        self._last_row, self._total = Column(), Column()  # of each session; -1: it has none

    def source(self, name: Hashable = None) -> int:
        """The source of that name, a new private one for None."""
        if name is not None:
            number = self._names.number(name)
            if number < len(self._named):
                return self._named[number]
            self._named.append(self._count)
        self._count += 1
        return self._count - 1

    def history_tokens(self, session: int) -> int:
        """How long the session is so far: the last turn's prompt and output."""
        return self._total[session] if session < len(self._total) else 0

    def add(self, segments: Iterable[Segment], *, output_source: int = -1, output_start: int = 0) -> None:
        """The next request's content, given outright."""
        for source, start, count in segments:
            if count > 0:
                self._source.append(source)
                self._start.append(start)
                self._tokens.append(count)
        self._pointer.append(len(self._source))
        self._output_source.append(output_source)
        self._output_start.append(output_start)

    def segments(self, row: int) -> list[Segment]:
        """What was added as the request ``row``, counted from 0."""
        own = range(self._pointer[row], self._pointer[row + 1])
        return [(self._source[at], self._start[at], self._tokens[at]) for at in own]

    def turn(self, session: int, prompt: int, output: int, *, shared: int, head: Iterable[Segment] = ()) -> None:
        """The next request is a turn of ``session``, a number; they begin at 0, and take room up to the largest.

        Its prompt begins with the first ``shared`` tokens of what the session holds so far (where that is
        nothing, with ``head``); the rest of the prompt and the output are new and known to later turns.
        """
        history = self._history(session)
        goes_on = bool(history) and shared >= self.history_tokens(session)
        segments = history if goes_on else list(clip(history or head, shared))
        if len(self._source) > self.most_segments and len(segments) > _SEGMENTS_A_TURN:
            self.restarted += 1
            segments, goes_on = [], False
        new = prompt - sum(tokens for _, _, tokens in segments)
        if goes_on:
            source, start, tokens = segments[-1]
            segments[-1] = (source, start, tokens + new)
        elif new > 0:
            segments.append((self.source(), 0, new))
        if goes_on or new > 0:
            source, start, tokens = segments[-1]
            output_start = start + tokens
        else:
            source, output_start = self.source(), 0
        while session >= len(self._total):
            self._last_row.append(-1)
            self._total.append(0)
        self._last_row[session] = len(self._pointer) - 1
        self._total[session] = prompt + output
        self.add(segments, output_source=source, output_start=output_start)

    def _history(self, session: int) -> list[Segment]:
        """The last turn's prompt and output. The last segment, of no tokens perhaps, is where the next turn goes on."""
        if not self.history_tokens(session):
            return []
        row = self._last_row[session]
        segments = self.segments(row)
        output = self._total[session] - sum(tokens for _, _, tokens in segments)
        source, start = self._output_source[row], self._output_start[row]
        if segments:
            last = segments[-1]
            if last[0] == source and last[1] + last[2] == start:
                segments[-1] = (source, last[1], last[2] + output)
                return segments
        return [*segments, (source, start, output)]

    def build(self) -> Content:
        """What was added, in that order; nothing can be added any more."""
        self._last_row, self._total = Column(), Column()
        rows = len(self._output_source)
        output_source = self._output_source.taken(narrow=True)
        return Content(
            _all_of(self._pointer),
            _all_of(self._source),
            _all_of(self._start),
            _all_of(self._tokens),
            no_outputs(rows) if output_source is None else output_source,
            self._output_start.taken(narrow=True),
        )


def _all_of(column: Column) -> Wholes:
    taken = column.taken(narrow=True)
    assert taken is not None, "it has no default"
    return taken


def restarts(builder: ContentBuilder) -> str:
    """What to tell of ``restarted``."""
    return (
        f"sessions: {builder.restarted:,} turns are taken to share nothing with the turns before them: the"
        " sessions are too long to be followed whole (`kvplan trace slice` the trace)"
    )


def clip(segments: Iterable[Segment], tokens: int) -> Iterator[Segment]:
    """The first ``tokens`` tokens of ``segments``."""
    for source, start, count in segments:
        if tokens <= 0:
            return
        yield source, start, min(count, tokens)
        tokens -= count


def unfolded(content: Content, output_tokens: Longs) -> Content:
    """The same content where every output has a source of its own and begins at 0.

    For a change of lengths that stretches outputs more than the prompts that repeat them: in one source what
    comes behind an output would be taken for its end.

    Args:
        output_tokens: int64[R].
    """
    if content.output_start is None:
        return content
    named = np.flatnonzero((content.output_source >= 0) & (output_tokens > 0))
    order = named[np.lexsort((content.output_start[named], content.output_source[named]))]
    source, begin = content.output_source[order], content.output_start[order]
    own = int(max(content.segment_source.max(initial=-1), source.max(initial=-1)))
    renamed = content.output_source.tolist()
    outputs: dict[int, tuple[list[int], list[tuple[int, int, int]]]] = {}
    for row, of, start, tokens in zip(
        order.tolist(), source.tolist(), begin.tolist(), output_tokens[order].tolist(), strict=True
    ):
        starts, ranges = outputs.setdefault(of, ([], []))
        if starts and starts[-1] == start:  # the same output once more
            ranges[-1] = (start, max(ranges[-1][1], start + tokens), own)
        else:
            own += 1
            starts.append(start)
            ranges.append((start, start + tokens, own))
        renamed[row] = own
    builder = ContentBuilder()
    for (segments, _, _), output_source in zip(content.rows(), renamed, strict=True):
        pieces = (piece for segment in segments for piece in _split(segment, *outputs.get(segment[0], ([], []))))
        builder.add(pieces, output_source=output_source)
    return builder.build()


def _split(segment: Segment, starts: list[int], ranges: list[tuple[int, int, int]]) -> Iterator[Segment]:
    """The segment cut where outputs, ``ranges`` of (start, end, source of its own), begin and end in its source."""
    source, at, tokens = segment
    end = at + tokens
    for start, stop, own in ranges[max(0, bisect.bisect_right(starts, at) - 1) :]:
        if start >= end:
            break
        if at < start:
            yield source, at, start - at
            at = start
        if at < stop:
            yield own, at - start, min(stop, end) - at
            at = min(stop, end)
    if at < end:
        yield source, at, end - at


def merged(parts: list[Content]) -> Content:
    """The content of the same requests told in two ways, each request in one of them; sources stay apart.

    Args:
        parts: the two; taken out, so that the first's columns are freed as soon as they are copied.
    """
    second = parts.pop()
    first = dict(vars(parts.pop()))
    counts = np.column_stack([np.diff(first["segment_ptr"]), np.diff(second.segment_ptr)])
    pointer = np.append(0, np.cumsum(counts.sum(axis=1))).astype(np.int64)
    of_first = np.repeat(np.tile([True, False], len(counts)), counts.ravel())
    shift = int(first["segment_source"].max(initial=-1)) + 1

    def column(name: str, shift: int = 0) -> Longs:
        one, two = first.pop(name), getattr(second, name)
        most = max(int(one.max(initial=0)), int(two.max(initial=0)) + shift)
        whole = np.empty(len(of_first), whole_kind(most))
        whole[of_first] = one
        whole[~of_first] = two
        whole[~of_first] += shift
        return whole

    told = second.output_source.astype(np.int64)
    output = np.where(told >= 0, told + shift, first["output_source"])
    start, tokens = column("segment_start"), column("segment_tokens")
    source = column("segment_source", shift)  # last: the first content's often takes no room
    return Content(pointer, source, start, tokens, output, second.output_start)
