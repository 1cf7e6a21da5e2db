"""The attention tables of a profile: its scattered rows as full tables, by kind of step."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvplan.errors import InputError
from kvplan.timing.profile import RankProfile
from kvplan.timing.step_times import Grid, StepTimes
from kvplan.timing.tail import hold

Rows = NDArray[np.float64]
Points = NDArray[np.float64]


def attention_grids(rank: RankProfile, layers: int) -> tuple[Grid, Grid, Grid | None, int]:
    """(prefill, decode, mixed or None, points filled in) of a step, from one layer's attention."""
    kinds = attention_kinds(rank.attention)
    prefill, a = _table(kinds["prefill"], "prefill", layers)
    decode, b = _table(kinds["decode"], "decode", layers)
    if not len(kinds["mixed"]):
        return prefill, decode, corrected_sum(prefill, decode, rank.mixed, layers), a + b
    mixed, c = _table(kinds["mixed"], "mixed", layers)
    return prefill, decode, mixed, a + b + c


def corrected_sum(prefill: Grid, decode: Grid, mixed: Rows, layers: int) -> Grid | None:
    """Mixed steps as the sum of both kinds, times what that sum was found to be off by; None where nothing was found.

    The factor is known at the few points of ``mixed``, linear between them and held beyond, so that the table has all
    the points of the two others and is exact at those of ``mixed`` that are among them.
    """
    if not len(mixed):
        return None
    apart = summed_apart(prefill, decode, mixed)
    axes, factor = scattered(np.column_stack([mixed[:, :-1], mixed[:, -1] * layers / apart]))
    for axis in reversed(range(factor.ndim)):
        factor = np.apply_along_axis(hold, axis, factor, axes[axis])
    fine = tuple(np.unique(np.concatenate(both)) for both in zip(axes, (*prefill.axes, *decode.axes), strict=True))
    for axis, (at, points) in enumerate(zip(fine, axes, strict=True)):
        factor = np.apply_along_axis(_resampled, axis, factor, points, at)
    corners = np.stack(np.meshgrid(*fine, indexing="ij"), axis=-1).reshape(-1, len(fine))
    total = summed_apart(prefill, decode, np.column_stack([corners, np.zeros(len(corners))]))
    return Grid(fine, total.reshape(factor.shape) * factor, "mixed")


def _resampled(line: Points, points: Points, at: Points) -> Points:
    return np.asarray(np.interp(at, points, line))


def summed_apart(prefill: Grid, decode: Grid, mixed: Rows) -> Points:
    """Seconds of a prefill and of a decode with the coordinates of each row, added."""
    from kvplan.core.step_time import DECODE, PREFILL, grid_values

    tables = StepTimes("measured", prefill=prefill, decode=decode).compiled()
    total = np.zeros(len(mixed))
    for grid, columns in ((PREFILL, slice(0, 2)), (DECODE, slice(2, 4))):
        part = np.empty(len(mixed))
        grid_values(tables, grid, np.ascontiguousarray(mixed[:, columns]), part)
        total += part
    return total


def _table(rows: Rows, name: str, layers: int) -> tuple[Grid, int]:
    """(the full table of scattered points, how many holes were filled): along the last axis first."""
    if not len(rows):
        raise InputError(f"the profile has no {name} attention", field="timing.profile")
    axes, values = scattered(rows)
    values *= layers
    holes = int(np.isnan(values).sum())
    for least in (2, 1):  # a line with one point says nothing of its slope: its neighbours come first
        for axis in reversed(range(values.ndim)):
            if np.isnan(values).any():
                values = np.apply_along_axis(_extend, axis, values, axes[axis], least)
    return Grid(axes, values, name), holes


def scattered(rows: Rows) -> tuple[tuple[Points, ...], NDArray[np.float64]]:
    """(axes, values) of a table from rows of coordinates and value; NaN where nothing was measured."""
    axes = tuple(np.unique(rows[:, i]) for i in range(rows.shape[1] - 1))
    values = np.full(tuple(len(axis) for axis in axes), np.nan)
    values[tuple(np.searchsorted(axis, rows[:, i]) for i, axis in enumerate(axes))] = rows[:, -1]
    return axes, values


def spread(points: NDArray[Any], most: int) -> NDArray[Any]:
    """At most so many points of an axis, the ends among them."""
    places = np.linspace(0, len(points) - 1, min(most, len(points))).round().astype(int)
    chosen: NDArray[Any] = points[np.unique(places)]
    return chosen


def attention_kinds(rows: Rows) -> dict[str, Rows]:
    """The rows of `profile.ATTENTION` by kind of step, without the columns that a kind lacks."""
    prefill, decode = rows[:, 0] > 0, rows[:, 2] > 0
    return {
        "prefill": rows[prefill & ~decode][:, [0, 1, 4]],
        "decode": rows[decode & ~prefill][:, [2, 3, 4]],
        "mixed": rows[prefill & decode],
    }


def _extend(line: Points, at: Points, least: int) -> Points:
    """Fill a line of at least so many points: linear between them, the last slope beyond, the first below."""
    known = np.flatnonzero(~np.isnan(line))
    if len(known) == len(line) or len(known) < least:
        return line
    filled = np.interp(at, at[known], line[known])
    if len(known) > 1:
        i, j = known[-2], known[-1]
        slope = max((line[j] - line[i]) / (at[j] - at[i]), 0.0)
        filled[j + 1 :] = line[j] + slope * (at[j + 1 :] - at[j])
    return filled
