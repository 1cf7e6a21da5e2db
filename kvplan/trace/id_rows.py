"""The block ids of many requests, walked in batches: a file may spend three bytes on an id, NumPy eight a column."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvplan.trace.trace import Longs, Wholes, whole_kind

BATCH = 1 << 16
"""Ids at once; what is computed of them takes some MiB, whatever the file's size."""

Batch = tuple[Longs, Longs, Longs, Longs]
"""(row, place within the row, id, the id before it in its row), one entry an id; -1 before a row's first."""

Number = Callable[[Longs], Longs]
"""Numbers for values, equal for equal ones."""


class PackedIds:
    """Ids one row after the other, each batch in as few bytes as its largest id needs."""

    def __init__(self) -> None:
        self._done: list[NDArray[Any]] = []
        self._open = array("q")
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def extend(self, parts: list[array[int]] | list[NDArray[Any]]) -> None:
        """Append ids >= 0, given in parts; those of more than ``BATCH`` ids come ``packed``."""
        for part in parts:
            self._count += len(part)
            if isinstance(part, np.ndarray):
                self._pack()
                self._done.append(part)
            else:
                self._open.extend(part)
                if len(self._open) >= BATCH:
                    self._pack()

    def whole(self) -> NDArray[Any]:
        """All of them in one array, of the smallest type that holds them; nothing is kept here any more."""
        self._pack()
        parts, self._done = self._done, []
        if not parts:
            return np.zeros(0, np.int64)
        ids = np.empty(self._count, np.result_type(*{part.dtype for part in parts}))
        np.concatenate(parts, out=ids)
        return ids

    def _pack(self) -> None:
        if self._open:
            self._done.append(packed(self._open))
            self._open = array("q")


def packed(ids: array[int]) -> NDArray[Any]:
    """Ids >= 0 as the smallest of uint8, uint16, uint32, int64 that holds them."""
    values = np.frombuffer(ids, np.int64) if ids else np.zeros(0, np.int64)
    most = values.max(initial=0)
    kind = next((kind for kind in (np.uint8, np.uint16, np.uint32) if most <= np.iinfo(kind).max), np.int64)
    return values.astype(kind)


class IdRows:
    """Rows of ids.

    Args:
        ids: the ids of all rows, one row after the other; whole numbers of any type, >= 0.
        per_row: [R], how many of them belong to each row; whole numbers of any type, as all of these are.
        used: [R], only so many of each row's first ids are walked; None: all.
        order: the rows to walk, in this order; None: all as they stand. ``Batch`` counts rows in this order.
    """

    def __init__(
        self, ids: NDArray[Any], per_row: Wholes, used: Wholes | None = None, order: Wholes | None = None
    ) -> None:
        kind = whole_kind(max(len(ids), len(per_row)))
        starts = np.cumsum(per_row, dtype=kind)
        starts -= per_row
        counts = per_row if used is None else used
        if order is not None:
            starts, counts = starts[order], counts[order]
        self._ids = ids
        if counts.all():
            self._row = np.arange(len(counts), dtype=kind)
            self._start, self._count = starts, counts
        else:  # without empty rows a batch has no more rows than ids
            self._row = np.flatnonzero(counts).astype(kind)
            self._start, self._count = starts[self._row], counts[self._row]
        self._end = np.cumsum(self._count, dtype=whole_kind(int(self._count.sum(dtype=np.int64))))

    def __len__(self) -> int:
        return int(self._end[-1]) if len(self._end) else 0

    def batches(self, number: Number | None = None) -> Iterator[Batch]:
        """Every id in order, int64; ``number`` gives the numbers that stand in their place."""
        for begin in range(0, len(self), BATCH):
            end = min(begin + BATCH, len(self))
            first, last = np.searchsorted(self._end, (begin, end - 1), side="right").tolist()
            part = slice(first, last + 1)
            row_begin = self._end[part] - self._count[part]
            own = np.repeat(
                np.arange(last + 1 - first), np.minimum(self._end[part], end) - np.maximum(row_begin, begin)
            )
            within = np.arange(begin, end) - row_begin[own]
            at = self._start[part][own] + within
            ids = np.empty(len(at) + 1, np.int64)
            ids[1:] = self._ids[at]
            ids[0] = self._ids[at[0] - (within[0] > 0)]  # the batch may begin within a row
            if number is not None:
                ids = number(ids)
            before = ids[:-1].copy()
            before[within == 0] = -1
            yield self._row[part][own], within, ids[1:], before

    def values(self) -> Iterator[Longs]:
        """The ids alone."""
        return (ids for _, _, ids, _ in self.batches())


def distinct(batches: Iterable[Longs]) -> Longs:
    """The different values, ascending."""
    known, waiting, count = np.zeros(0, np.int64), [], 0
    for batch in batches:
        waiting.append(np.unique(batch))
        count += len(waiting[-1])
        if count >= max(len(known), 4 * BATCH):
            known, waiting, count = _united([known, *waiting]), [], 0
    return _united([known, *waiting])


def _united(parts: list[Longs]) -> Longs:
    values = np.concatenate(parts)
    values.sort()  # in place: np.unique sorts a copy
    new = np.ones(len(values), bool)
    np.not_equal(values[1:], values[:-1], out=new[1:])
    return values[new]


def ranks(known: Longs) -> Number:
    """The place of each value among ``known``, which is ascending and has them all."""
    return lambda values: np.searchsorted(known, values)


def numbering(values: Callable[[], Iterable[Longs]], most: int, room: int) -> tuple[Number | None, int]:
    """(numbers from 0 for values >= 0, how many numbers there are); None: the values are numbers enough.

    Args:
        values: gives all of them in batches, as often as it is asked.
        most: no value is larger.
        room: how many numbers there may be.
    """
    if most < max(room, BATCH):
        return None, most + 1
    known = distinct(values())
    return ranks(known), len(known)
