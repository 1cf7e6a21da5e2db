"""Distributions as people publish them (quantile tables, histograms), evaluated at ranks between 0 and 1."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from kvplan.errors import InputError
from kvplan.trace.rows import number
from kvplan.trace.trace import Doubles


@dataclass(frozen=True, eq=False)
class Distribution:
    """A distribution by its quantile function: straight lines between the points (rank, value).

    Args:
        ranks: float64[K], 0 to 1, ascending.
        values: float64[K], ascending.
    """

    ranks: Doubles
    values: Doubles

    def at(self, ranks: Doubles) -> Doubles:
        """The values at ``ranks`` (each 0..1)."""
        return np.interp(ranks, self.ranks, self.values)

    @property
    def mean(self) -> float:
        """The mean of the straight-line quantile function."""
        return float(np.sum(np.diff(self.ranks) * (self.values[1:] + self.values[:-1]) / 2))


def distribution(spec: Any, field: str) -> Distribution:
    """A distribution from its description in a scenario.

    - a number: always that
    - ``{quantiles: {0: 2, 0.5: 1020, 1: 14050}}``: value at each rank, straight lines between
    - ``{histogram: {lo: 1, hi: 2028, counts: [...]}}``: equal bins from lo to hi, even within a bin
    - ``{lognormal: {median: 500, sigma: 1.0, max: 8192}}``
    - ``{exponential: {mean: 30}}``

    Raises:
        InputError: not such a description.
    """
    if isinstance(spec, (int, float, str)):
        value = float(number(spec, field))
        return Distribution(np.array([0.0, 1.0]), np.array([value, value]))
    if not isinstance(spec, Mapping) or len(spec) != 1:
        raise InputError("is no distribution", field=field, value=spec, hint=f"a number or one of {', '.join(_KINDS)}")
    kind, body = next(iter(spec.items()))
    if kind not in _KINDS:
        raise InputError("is no kind of distribution", field=field, value=kind, hint=", ".join(_KINDS))
    if not isinstance(body, Mapping):
        raise InputError("must be a mapping", field=f"{field}.{kind}", value=body)
    return _KINDS[kind](body, f"{field}.{kind}")


def _quantiles(body: Mapping[Any, Any], field: str) -> Distribution:
    points = sorted((float(number(rank, field)), float(number(value, field))) for rank, value in body.items())
    ranks, values = np.array([p[0] for p in points]), np.array([p[1] for p in points])
    if len(points) < 2 or ranks[0] != 0 or ranks[-1] != 1:
        raise InputError("must have the ranks 0 and 1", field=field, value=ranks.tolist())
    if (np.diff(values) < 0).any() or (np.diff(ranks) <= 0).any():
        raise InputError("must climb with their ranks", field=field, value=values.tolist())
    return Distribution(ranks, values)


def _histogram(body: Mapping[Any, Any], field: str) -> Distribution:
    _keys(body, ("lo", "hi", "counts"), field)
    low, high = (float(number(body[key], f"{field}.{key}")) for key in ("lo", "hi"))
    if not isinstance(body["counts"], (list, tuple)):
        raise InputError("must be a list", field=f"{field}.counts", value=body["counts"])
    counts = np.array([number(count, f"{field}.counts") for count in body["counts"]], dtype=np.float64)
    if not len(counts) or counts.min() < 0 or counts.sum() <= 0 or not low < high:
        raise InputError("needs lo < hi and counts >= 0, not all 0", field=field)
    edges = np.linspace(low, high, len(counts) + 1)
    full = np.append(counts > 0, True)
    ranks = np.append(0.0, np.cumsum(counts) / counts.sum())
    # An empty bin has no rank of its own: the quantile function jumps over it.
    points = [(ranks[0], edges[0])]
    for index in np.flatnonzero(full[:-1]):
        points += [(ranks[index], edges[index]), (ranks[index + 1], edges[index + 1])]
    return Distribution(np.array([p[0] for p in points]), np.array([p[1] for p in points]))


def _lognormal(body: Mapping[Any, Any], field: str) -> Distribution:
    _keys(body, ("median", "sigma"), field, optional=("max",))
    median, sigma = (float(number(body[key], f"{field}.{key}")) for key in ("median", "sigma"))
    if median <= 0 or sigma < 0:
        raise InputError("needs median > 0 and sigma >= 0", field=field)
    values = median * np.exp(sigma * _normal_quantiles())
    return Distribution(_RANKS, np.minimum(values, float(number(body.get("max", 2**31 - 1), field))))


def _exponential(body: Mapping[Any, Any], field: str) -> Distribution:
    _keys(body, ("mean",), field)
    mean = float(number(body["mean"], f"{field}.mean"))
    if mean <= 0:
        raise InputError("needs mean > 0", field=field)
    return Distribution(_RANKS, -mean * np.log1p(-np.minimum(_RANKS, 1 - 1e-7)))


def _keys(body: Mapping[Any, Any], needed: tuple[str, ...], field: str, optional: tuple[str, ...] = ()) -> None:
    for key in needed:
        if key not in body:
            raise InputError("is missing", field=f"{field}.{key}")
    for key in body:
        if key not in needed + optional:
            raise InputError("is not a key here", field=f"{field}.{key}", hint=", ".join(needed + optional))


def _normal_quantiles() -> Doubles:
    from statistics import NormalDist

    inner = [NormalDist().inv_cdf(min(max(rank, 1e-7), 1 - 1e-7)) for rank in _RANKS]
    return np.array(inner)


_RANKS = np.unique(
    np.concatenate([np.linspace(0, 1, 401), 1 - np.geomspace(1e-6, 1e-2, 60), np.geomspace(1e-6, 1e-2, 60)])
)
_KINDS = {
    "quantiles": _quantiles,
    "histogram": _histogram,
    "lognormal": _lognormal,
    "exponential": _exponential,
}
