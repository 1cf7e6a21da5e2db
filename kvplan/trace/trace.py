"""A trace in columns: when each request arrives, how long it is, and what it shares with others."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvplan.errors import InputError

Longs = NDArray[np.int64]
Wholes = NDArray[np.signedinteger[Any]]
"""int32 where that holds the numbers, else int64."""


def whole_kind(most: int) -> type[np.signedinteger[Any]]:
    """The smaller of int32 and int64 that holds ``most``: files spend two bytes on a block id, six on a row."""
    return np.int32 if most < 1 << 31 else np.int64


Doubles = NDArray[np.float64]


def no_outputs(rows: int) -> Longs:
    """``output_source`` of requests whose outputs no other request can name."""
    return np.broadcast_to(np.int64(-1), rows)


ROWS = 1 << 12
"""Rows that are looked at together, so that what is computed of them stays small."""


@dataclass(frozen=True, eq=False)
class Content:
    """Who shares which tokens: the identity of every prompt token, run-length encoded.

    Request ``r`` owns the segments ``segment_ptr[r]:segment_ptr[r + 1]``. They cover the beginning of its
    prompt, in order; what they leave uncovered is unique to the request. The token at place ``i`` of a
    segment is the token ``(segment_source[s], segment_start[s] + i)``: two tokens are equal when these pairs
    are equal, whichever requests they stand in. The generated tokens of request ``r`` are
    ``(output_source[r], output_start[r] + i)``, so that a later turn of a session can name its former turn's
    output. A whole session may be one source: each turn then is the beginning of it, prompt and output.

    Shapes: ``segment_ptr`` [R + 1]; ``segment_source``, ``segment_start``, ``segment_tokens`` [S]; ``output_source``,
    ``output_start`` [R]; all int64, or int32 where that holds them. Sources are any numbers >= 0; -1 in
    ``output_source``: unique to the request. ``output_start`` None: 0 for all. Columns are read, never written;
    one of equal values may be a view that repeats one number (stride 0).
    """

    segment_ptr: Wholes
    segment_source: Wholes
    segment_start: Wholes
    segment_tokens: Wholes
    output_source: Wholes
    output_start: Wholes | None = None

    def covered_tokens(self) -> Longs:
        """int64[R]: how many of each prompt's first tokens have an identity that others may share."""
        covered = np.zeros(len(self.output_source), np.int64)
        for part, tokens in self._covered():
            covered[part] = tokens
        return covered

    def fits(self, prompt_tokens: Longs) -> NDArray[np.bool_]:
        """bool[R]: whether what is told of each prompt is no longer than it."""
        good = np.ones(len(prompt_tokens), bool)
        for part, tokens in self._covered():
            good[part] = tokens <= prompt_tokens[part]
        return good

    def _covered(self) -> Iterator[tuple[slice, Longs]]:
        """``covered_tokens`` of some rows at a time."""
        for begin in range(0, len(self.output_source), ROWS):
            pointer = self.segment_ptr[begin : begin + ROWS + 1]
            covered = np.zeros(len(pointer) - 1, np.int64)
            some = pointer[1:] > pointer[:-1]
            if some.any():
                tokens = self.segment_tokens[pointer[0] : pointer[-1]].astype(np.int64, copy=False)
                covered[some] = np.add.reduceat(tokens, (pointer[:-1] - pointer[0])[some])
            yield slice(begin, begin + ROWS), covered

    def rows(self) -> Iterator[tuple[list[tuple[int, int, int]], int, int]]:
        """(segments, output source, output start) of each request as Python's numbers, some rows at a time."""
        columns = (self.segment_source, self.segment_start, self.segment_tokens)
        for begin in range(0, len(self.output_source), ROWS):
            pointer = self.segment_ptr[begin : begin + ROWS + 1].tolist()
            part = slice(pointer[0], pointer[-1])
            segments = list(zip(*(column[part].tolist() for column in columns), strict=True))
            sources = self.output_source[begin : begin + ROWS].tolist()
            starts = (
                itertools.repeat(0) if self.output_start is None else self.output_start[begin : begin + ROWS].tolist()
            )
            for row, (source, start) in enumerate(zip(sources, starts, strict=False)):
                yield segments[pointer[row] - pointer[0] : pointer[row + 1] - pointer[0]], source, start

    def take(self, rows: Longs) -> Content:
        """The content of ``rows`` (indices, any order, repeats allowed). Sources keep their meaning."""
        return taken(dict(vars(self)), rows)


def taken(columns: dict[str, Any], rows: Longs) -> Content:
    """``Content.take`` of the content that has these columns; they are taken out of the mapping one by one.

    With no other reference to them, each is freed as soon as it is copied.
    """
    pointer = columns.pop("segment_ptr")
    counts = (pointer[1:] - pointer[:-1])[rows]
    ends = np.zeros(len(rows) + 1, np.int64)
    np.cumsum(counts, out=ends[1:])
    begins = pointer[:-1][rows].astype(np.int64, copy=False)
    pieces = [
        (slice(int(ends[at]), int(ends[to])), slice(at, to)) for at, to in itertools.pairwise(_shares(ends, 1 << 16))
    ]

    def column(name: str) -> Longs:
        old = columns.pop(name)
        new = np.empty(int(ends[-1]), old.dtype)
        for into, part in pieces:
            of = np.repeat(begins[part] - ends[part], counts[part]) + np.arange(into.start, into.stop)
            new[into] = old[of]
        return new

    return Content(
        ends,
        column("segment_source"),
        column("segment_start"),
        column("segment_tokens"),
        columns.pop("output_source")[rows],
        None if (start := columns.pop("output_start", None)) is None else start[rows],
    )


def _shares(ends: Longs, size: int) -> list[int]:
    """Where to cut rows that end at ``ends[1:]`` so that a part has about ``size`` entries, a row more at most."""
    cuts = np.searchsorted(ends, np.arange(0, int(ends[-1]), size), side="left")
    return sorted({0, *cuts.tolist(), len(ends) - 1})


@dataclass(frozen=True, eq=False)
class Recorded:
    """The rows as the file has them, where the trace had to differ (empty answers, failed requests).

    Statistics of a file are taken from here, so that they equal what others compute from the same file. Lengths
    are int32 where that holds them.
    """

    arrival_s: Doubles
    prompt_tokens: Wholes
    output_tokens: Wholes


@dataclass(frozen=True)
class Origin:
    """Where a trace came from and what its reader understood (printed to the person)."""

    path: str = ""
    format: str = ""
    notes: tuple[str, ...] = ()
    """What was inferred: the unit of time, the block size of hash ids, their scope, chained or not."""
    bad_rows: int = 0
    bad_row_examples: tuple[str, ...] = ()
    """The first ten bad rows, each with its line."""
    block_size: int | None = None
    """Tokens in a block of the file's own hash ids, where it has some."""
    recorded: Recorded | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)
    """What else the file tells of the engine that was observed (block counts, hit rates), by plain name."""


_COLUMNS: dict[str, type] = {
    "arrival_s": np.float64,
    "prompt_tokens": np.int64,
    "output_tokens": np.int64,
    "request_id": object,
    "priority": np.int32,
    "session": np.int64,
    "n": np.int32,
    "beam_width": np.int32,
}


@dataclass(frozen=True, eq=False)
class Trace:
    """R requests in order of arrival.

    Args:
        arrival_s: float64[R], seconds, ascending, first >= 0.
        prompt_tokens: int64[R], >= 1.
        output_tokens: int64[R], >= 1.
        request_id: names (object[R], or NumPy's StringDType, which takes a quarter of the room), or int64[R] or
            int32[R] for the decimal texts of these numbers, or None for "0", "1", ...; `names` has the texts.
        priority: int32[R] (smaller runs first, as vLLM's), or None for all 0.
        session: int64[R], equal for the turns of one conversation, -1 for none; or None.
        n: int32[R], parallel samples; or None for all 1.
        beam_width: int32[R], 0 for no beam search; or None for all 0.
        content: which tokens are shared; None where nothing is.

    Raises:
        InputError: a column breaks its contract above; names the column and the first row (from 0) at fault.
    """

    arrival_s: Doubles
    prompt_tokens: Longs
    output_tokens: Longs
    request_id: NDArray[Any] | None = None
    priority: NDArray[np.int32] | None = None
    session: Longs | None = None
    n: NDArray[np.int32] | None = None
    beam_width: NDArray[np.int32] | None = None
    content: Content | None = None
    origin: Origin = field(default_factory=Origin)

    def __len__(self) -> int:
        return len(self.arrival_s)

    def __post_init__(self) -> None:
        for name, kind in _COLUMNS.items():
            column = getattr(self, name)
            if column is None:
                continue
            given = getattr(column, "dtype", None)
            kept = name == "request_id" and (given in (np.int32, np.int64) or isinstance(given, np.dtypes.StringDType))
            array: NDArray[Any] = np.ascontiguousarray(column, dtype=given if kept else kind)
            if array.shape != (len(self.arrival_s),):
                raise InputError(f"has shape {array.shape}, the trace {len(self.arrival_s)} rows", field=name)
            object.__setattr__(self, name, array)
        self._check("arrival_s", np.isfinite(self.arrival_s) & (self.arrival_s >= 0), "a time >= 0")
        ascending = np.ones(len(self), bool)
        np.greater_equal(self.arrival_s[1:], self.arrival_s[:-1], out=ascending[1:])
        self._check("arrival_s", ascending, "no earlier than the row before")
        self._check("prompt_tokens", self.prompt_tokens >= 1, ">= 1")
        self._check("output_tokens", self.output_tokens >= 1, ">= 1")
        if self.n is not None:
            self._check("n", self.n >= 1, ">= 1")
        if self.beam_width is not None:
            self._check("beam_width", self.beam_width >= 0, ">= 0")
        if self.content is not None:
            self._check_content(self.content)

    def _check(self, name: str, good: NDArray[np.bool_], must: str) -> None:
        if not good.all():
            row = int(np.argmin(good))
            raise InputError(f"row {row} must be {must}", field=name, value=getattr(self, name)[row].item())

    def _check_content(self, content: Content) -> None:
        pointer, segments = content.segment_ptr, len(content.segment_tokens)
        if pointer.shape != (len(self) + 1,) or content.output_source.shape != (len(self),):
            raise InputError("does not have one entry a request", field="content.segment_ptr")
        if pointer[0] != 0 or pointer[-1] != segments or (np.diff(pointer) < 0).any():
            raise InputError("must climb from 0 to the number of segments", field="content.segment_ptr")
        if content.output_start is not None and content.output_start.shape != content.output_source.shape:
            raise InputError("does not have one entry a request", field="content.output_start")
        if segments and (content.segment_tokens.min() < 1 or content.segment_source.min() < 0):
            raise InputError("a segment has >= 1 token and a source >= 0", field="content.segment_tokens")
        self._check("prompt_tokens", content.fits(self.prompt_tokens), "as long as its content")

    @property
    def span_s(self) -> float:
        """Seconds from the first arrival to the last."""
        return float(self.arrival_s[-1] - self.arrival_s[0]) if len(self) else 0.0

    def name(self, row: int) -> str:
        """The request's id: its own, or its place in the trace."""
        return str(row) if self.request_id is None else str(self.request_id[row])

    def names(self) -> NDArray[np.object_]:
        """object[R], the ids of all requests."""
        ids = np.arange(len(self)) if self.request_id is None else self.request_id
        return np.fromiter(map(str, ids), object, len(self))

    def take(self, rows: Longs) -> Trace:
        """The given rows (ascending indices); unnamed requests keep the names they had."""
        columns: dict[str, Any] = {
            name: None if getattr(self, name) is None else getattr(self, name)[rows] for name in _COLUMNS
        }
        if self.request_id is None:
            columns["request_id"] = np.asarray(rows, np.int64)
        content = None if self.content is None else self.content.take(rows)
        return Trace(**columns, content=content, origin=replace(self.origin, recorded=None))
