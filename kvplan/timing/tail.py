"""What unequal contexts cost in a decode batch, from measured batches of long and short sequences.

A kernel that gives a sequence a few thread blocks walks it at the speed of those blocks, however idle the
rest of the device. While many sequences are left, the device's bandwidth is the limit and only the sum of
their contexts counts; when the short ones are done, the long ones go on alone. So a batch of few long rows
takes

    time at the mean context + max(0, tail · (long − short) − long rows / rows · (time at long − time at
    short))

with ``tail`` in seconds a token. On an RTX 4090 (FlashAttention 2) it is 0.030 µs a layer from 32 rows on,
whatever the lengths; a third of it below, where the kernel splits a sequence; less in a mixed step whose
prefill chunk walks a longer context itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from kvplan.timing.step_times import Grid, StepTimes

if TYPE_CHECKING:
    from kvplan.core.step_time import TimingTables

Rows = NDArray[np.float64]


def tail_grids(
    skew: Rows, prefill: Grid, decode: Grid, mixed: Grid | None, layers: int
) -> tuple[Grid | None, Grid | None]:
    """(decode alone by [rows, longest], mixed by [prefill tokens, prior, rows, longest]), seconds of a step.

    Of `profile.SKEW`'s rows only those with the fewest long rows at each point count: with many of them the
    bandwidth hides the tail. ``prefill``, ``decode``, ``mixed`` are the tables of equal contexts, of a step.
    """
    alone = skew[skew[:, 0] == 0]
    beside = skew[skew[:, 0] > 0]
    tables = StepTimes("measured", prefill=prefill, decode=decode, mixed=mixed).compiled()
    decode_tail = _grid(alone, (2, 5), "decode_tail", tables, layers) if len(alone) else None
    mixed_tail = None
    if len(beside) and mixed is not None:
        mixed_tail = _grid(beside, (0, 1, 2, 5), "mixed_tail", tables, layers)
    return decode_tail, mixed_tail


def equal_seconds(tables: TimingTables, rows: Rows, context: NDArray[np.float64]) -> NDArray[np.float64]:
    """Attention of the batches of `profile.SKEW`'s rows, had all their sequences this context."""
    from kvplan.core.step_time import DECODE, MIXED, grid_values

    seconds = np.empty(len(rows))
    beside = rows[:, 0] > 0
    for grid, chosen, columns in ((DECODE, ~beside, slice(2, 3)), (MIXED, beside, slice(0, 3))):
        points = np.ascontiguousarray(np.column_stack([rows[chosen, columns], context[chosen]]))
        out = np.empty(len(points))
        grid_values(tables, grid, points, out)
        seconds[chosen] = out
    return seconds


def _grid(rows: Rows, axes: tuple[int, ...], name: str, tables: TimingTables, layers: int) -> Grid:
    points = tuple(np.unique(rows[:, axis]) for axis in axes)
    place = tuple(np.searchsorted(p, rows[:, axis]) for p, axis in zip(points, axes, strict=True))
    shape = tuple(len(p) for p in points)
    fewest = np.full(shape, np.inf)
    np.minimum.at(fewest, place, rows[:, 3])
    rows = rows[rows[:, 3] == fewest[place]]
    place = tuple(np.searchsorted(p, rows[:, axis]) for p, axis in zip(points, axes, strict=True))
    long, short = rows[:, 5], rows[:, 4]
    apart = equal_seconds(tables, rows, long) - equal_seconds(tables, rows, short)
    beyond = (rows[:, 8] - rows[:, 6]) * layers
    a_token = np.maximum(beyond + rows[:, 3] / rows[:, 2] * apart, 0.0) / (long - short)
    total, count = np.zeros(shape), np.zeros(shape)
    np.add.at(total, place, a_token)
    np.add.at(count, place, 1.0)
    values = np.full(shape, np.nan)
    values[count > 0] = total[count > 0] / count[count > 0]
    for axis in reversed(range(values.ndim)):
        values = np.apply_along_axis(hold, axis, values, points[axis])
    return Grid(points, np.nan_to_num(values), name)


def hold(line: NDArray[np.float64], at: NDArray[np.float64]) -> NDArray[np.float64]:
    """Holes between points: linear; beyond them: the nearest point's value."""
    known = ~np.isnan(line)
    return np.interp(at, at[known], line[known]) if known.any() else line
