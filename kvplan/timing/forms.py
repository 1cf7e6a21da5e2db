"""Attention with the KV cache in another form than a profile was measured with: other blocks, another dtype.

A profile measures everything with one block size and one KV dtype, and attention again with others, at some of its
points. Used is how much longer attention takes there than at the same point in the profile's own form, so that what is
common to both cancels. The factor is linear in the logarithm of the block size between two sizes, linear between
points, and held beyond them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from kvplan.timing.attention_tables import attention_grids, attention_kinds, scattered, summed_apart
from kvplan.timing.profile import BlockForm, Profile, RankProfile
from kvplan.timing.step_times import Grid, StepTimes
from kvplan.timing.tail import hold

Rows = NDArray[np.float64]
KINDS = ("prefill", "decode")
POINT = ("block_size", "decode_rows", "decode_context", "seconds")


@dataclass(frozen=True, eq=False)
class _Factors:
    """Of one form, by kind of step, over that kind's two axes; a kind without points costs what it costs the profile's
    own form."""

    by_kind: Mapping[str, Grid]

    def at(self, kind: str, points: Rows) -> Rows:
        """[n] for points [n, 2]."""
        grid = self.by_kind.get(kind)
        if grid is None:
            return np.ones(len(points))
        from kvplan.core.step_time import DECODE, grid_values

        within = np.column_stack([np.clip(points[:, i], axis[0], axis[-1]) for i, axis in enumerate(grid.axes)])
        factors = np.empty(len(points))
        grid_values(StepTimes("measured", decode=grid).compiled(), DECODE, within, factors)
        return factors


class Forms:
    """The forms that a rank's attention was measured in.

    Args:
        own: the one of all else in the profile.
    """

    def __init__(self, own: BlockForm, rank: RankProfile) -> None:
        self.own = own
        measured = attention_kinds(rank.attention)
        self._factors = {own: _Factors({})}
        for form, rows in rank.forms.items():
            found = attention_kinds(rows)
            grids = {kind: grid for kind in KINDS if (grid := _factor_grid(measured[kind], found[kind])) is not None}
            self._factors[form] = _Factors(grids)

    def sizes(self, dtype: str) -> list[int]:
        """Block sizes that were measured with a KV dtype, ascending."""
        return sorted(form.block_size for form in self._factors if form.kv_cache_dtype == dtype)

    def nearest(self, form: BlockForm) -> BlockForm:
        """The form itself where it can be priced; else the one that is priced in its place."""
        dtype = form.kv_cache_dtype if self.sizes(form.kv_cache_dtype) else self.own.kv_cache_dtype
        sizes = sorted({*self.sizes(dtype), *self.sizes(self.own.kv_cache_dtype)})
        return BlockForm(_clipped(form.block_size, sizes), dtype)

    def factors(self, form: BlockForm, kind: str, points: Rows) -> Rows:
        """How much longer attention takes in a form that `nearest` returned than in the profile's own, [n] at points
        [n, 2] of a kind."""
        dtype, own = form.kv_cache_dtype, self.own.kv_cache_dtype
        known = _clipped(form.block_size, self.sizes(dtype))
        factors = self._at(dtype, known, kind, points)
        if known != form.block_size:  # what the size costs with the profile's own dtype, it costs with this one
            factors *= self._at(own, form.block_size, kind, points) / self._at(own, known, kind, points)
        return factors

    def _at(self, dtype: str, block_size: int, kind: str, points: Rows) -> Rows:
        sizes = self.sizes(dtype)
        size = _clipped(block_size, sizes)
        place = next(i for i, measured in enumerate(sizes) if measured >= size)
        high = self._factors[BlockForm(sizes[place], dtype)].at(kind, points)
        if sizes[place] == size:
            return high
        low = self._factors[BlockForm(sizes[place - 1], dtype)].at(kind, points)
        part = np.log(size / sizes[place - 1]) / np.log(sizes[place] / sizes[place - 1])
        return np.asarray(low + part * (high - low))


def in_form(profile: Profile, rank: RankProfile, form: BlockForm | None) -> tuple[RankProfile, tuple[str, ...]]:
    """The rank as it would have been measured in a form, and what a reader should know of it.

    None, or a profile that does not say what form its own is: the rank as it is. Attention is scaled, be it measured
    alone, mixed or with unequal contexts; nothing else depends on the form.
    """
    own = profile.form
    if form is None or own is None or form == own:
        return rank, ()
    forms = Forms(own, rank)
    priced = forms.nearest(form)
    warnings = (f"timing: the profile has no {form}: priced as {priced}",) if priced != form else ()
    if priced == own:
        return rank, warnings
    attention = rank.attention.copy()
    of_prefill, of_decode = attention[:, 2] == 0, attention[:, 0] == 0
    attention[of_prefill, 4] *= forms.factors(priced, "prefill", attention[of_prefill, 0:2])
    attention[of_decode, 4] *= forms.factors(priced, "decode", attention[of_decode, 2:4])
    skew = rank.skew.copy()
    skew[:, 6:9] *= forms.factors(priced, "decode", skew[:, [2, 5]])[:, None]
    scaled = replace(rank, attention=attention, skew=skew, forms={})
    return replace(scaled, mixed=_mixed(rank, scaled)), warnings


def decode_by_block_size(profile: Profile, rank: RankProfile, dtype: str | None) -> Rows:
    """[n, 4], columns of `POINT`: measured decode attention of one layer at each block size that a KV dtype (the
    profile's own where there is no other) was measured with, at the points that all of them have; empty under two."""
    own = profile.form
    if own is None:
        return np.zeros((0, len(POINT)))
    by_size: dict[str, dict[int, dict[tuple[float, ...], float]]] = {}
    for form, rows in {own: rank.attention, **rank.forms}.items():
        found = by_size.setdefault(form.kv_cache_dtype, {})
        found[form.block_size] = {tuple(row[:2]): float(row[2]) for row in attention_kinds(rows)["decode"].tolist()}
    chosen = by_size.get(dtype or "", {})
    sizes = chosen if len(chosen) > 1 else by_size[own.kv_cache_dtype]
    if len(sizes) < 2:
        return np.zeros((0, len(POINT)))
    common = sorted(set.intersection(*(set(points) for points in sizes.values())))
    return np.array([(size, *point, sizes[size][point]) for point in common for size in sorted(sizes)]).reshape(
        -1, len(POINT)
    )


def _mixed(measured: RankProfile, scaled: RankProfile) -> Rows:
    """Steps of both kinds, longer by as much as the sum of their parts."""
    mixed = measured.mixed.copy()
    if len(mixed):
        before, after = (summed_apart(*attention_grids(rank, 1)[:2], mixed) for rank in (measured, scaled))
        mixed[:, 4] *= after / before
    return mixed


def _factor_grid(own: Rows, other: Rows) -> Grid | None:
    """[rows or tokens, context or prior]: the seconds of ``other`` in those of ``own``, at the points of both."""
    seconds = {tuple(row[:-1]): row[-1] for row in own.tolist()}
    rows = [(*row[:-1], row[-1] / seconds[point]) for row in other.tolist() if (point := tuple(row[:-1])) in seconds]
    if not rows:
        return None
    axes, factors = scattered(np.array(rows))
    for axis in reversed(range(factors.ndim)):
        factors = np.apply_along_axis(hold, axis, factors, axes[axis])
    return Grid(axes, factors, "forms")


def _clipped(size: int, sizes: Sequence[int]) -> int:
    return min(max(size, sizes[0]), sizes[-1])
