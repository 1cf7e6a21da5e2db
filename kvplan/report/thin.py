"""Long series made short without losing a peak."""

from __future__ import annotations

import itertools

import numpy as np
from numpy.typing import NDArray


def thin_extremes(t: NDArray[np.float64], y: NDArray[np.float64], points: int) -> NDArray[np.intp]:
    """Indices, ascending, of at most ``points`` samples that keep each stretch's minimum and maximum.

    The series is cut into ``points // 2`` stretches of equal sample count; the first and the last sample
    and the smallest and the largest of each stretch survive, so no peak or trough is lost, only where
    exactly between two of them the line ran. NaN never wins against a number.

    Args:
        t: float64[N], ascending (only its length matters; it is the x axis).
        y: float64[N].
        points: at least 8.
    """
    if points < 8:
        raise ValueError(f"points must be at least 8, got {points}")
    count = len(t)
    if count <= points:
        return np.arange(count)
    edges = np.linspace(0, count, points // 2).astype(np.intp)
    keep = {0, count - 1}
    low = np.where(np.isnan(y), np.inf, y)
    high = np.where(np.isnan(y), -np.inf, y)
    for start, stop in itertools.pairwise(edges):
        keep.add(int(start + np.argmin(low[start:stop])))
        keep.add(int(start + np.argmax(high[start:stop])))
    return np.array(sorted(keep), dtype=np.intp)


def merge_buckets(
    weight: NDArray[np.float64], columns: NDArray[np.float64], points: int
) -> tuple[NDArray[np.intp], NDArray[np.float64]]:
    """Neighbouring buckets merged into at most ``points``, by weighted mean, so that shares still sum to 1.

    Args:
        weight: float64[N], e.g. busy seconds of each bucket. All-zero stretches are averaged plainly.
        columns: float64[N, C].

    Returns:
        (first index of each merged bucket, float64[points, C] means).
    """
    count = len(weight)
    if count <= points:
        return np.arange(count), columns
    starts = np.unique(np.linspace(0, count, points, endpoint=False).astype(np.intp))
    stretches = np.add.reduceat(weight, starts)
    number = np.diff(np.append(starts, count))
    weight = np.where(np.repeat(stretches, number) > 0, weight, 1.0)
    sums = np.add.reduceat(columns * weight[:, None], starts, axis=0)
    return starts, sums / np.add.reduceat(weight, starts)[:, None]
