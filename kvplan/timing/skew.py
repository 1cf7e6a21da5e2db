"""What unequal contexts cost in a decode batch, from measured batches of long and short sequences.

A kernel that gives each sequence its own thread blocks waits for the longest. Between the time of a batch at
the mean context and of one at the longest, the real one lies a share ``alpha`` of the way. It depends on how
many rows there are, how many of them are long, and on the prefill beside them; hardly on how long.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from kvplan.timing.step_times import Grid

SHARES = np.array([0.0, 0.03, 0.0625, 0.125, 0.25, 0.5, 0.75, 0.9])
"""Points of the share of long rows. Measured batches go to the nearest."""


def skew_grids(rows: NDArray[np.float64]) -> tuple[Grid | None, Grid | None]:
    """(decode alone by [rows, share], mixed by [prefill tokens, prior, rows, share]) from `profile.SKEW`'s rows."""
    if not len(rows):
        return None, None
    alone = rows[rows[:, 0] == 0]
    mixed = rows[rows[:, 0] > 0]
    return _alpha(alone, (2,), "decode_skew"), _alpha(mixed, (0, 1, 2), "mixed_skew")


def _alpha(rows: NDArray[np.float64], axes: tuple[int, ...], name: str) -> Grid | None:
    """Σ(time − time at mean) / Σ(time at longest − time at mean) of the batches that fall on each point.

    The ratio of sums, not the mean of ratios: a batch whose two ends differ by noise then counts for little.
    """
    if not len(rows):
        return None
    points = tuple(np.unique(rows[:, axis]) for axis in axes)
    share = rows[:, 3] / rows[:, 2]
    nearest = np.abs(share[:, None] - SHARES[None, :]).argmin(axis=1)
    place = (*(np.searchsorted(p, rows[:, axis]) for p, axis in zip(points, axes, strict=True)), nearest)
    shape = (*(len(p) for p in points), len(SHARES))
    above = np.zeros(shape)
    span = np.zeros(shape)
    np.add.at(above, place, rows[:, 8] - rows[:, 6])
    np.add.at(span, place, np.maximum(rows[:, 7] - rows[:, 6], 0.0))
    values = np.full(shape, np.nan)
    measured = span > 0
    values[measured] = np.clip(above[measured] / span[measured], 0.0, 1.0)
    for axis in reversed(range(values.ndim)):
        values = np.apply_along_axis(_hold, axis, values, (*points, SHARES)[axis])
    return Grid((*points, SHARES), np.nan_to_num(values), name)


def _hold(line: NDArray[np.float64], at: NDArray[np.float64]) -> NDArray[np.float64]:
    """Holes between points: linear; beyond them: the nearest point's value."""
    known = ~np.isnan(line)
    return np.interp(at, at[known], line[known]) if known.any() else line
