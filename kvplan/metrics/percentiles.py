"""How a sample is summed up: mean, p50, p90, p95, p99, max (linear interpolation between order statistics)."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

RANKS = (50, 90, 95, 99)

Statistics = dict[str, float | None]


def statistics(values: NDArray[Any]) -> Statistics:
    """Of finite numbers; all None where there is none."""
    values = values[np.isfinite(values)]
    if not len(values):
        return {"mean": None, **{f"p{rank}": None for rank in RANKS}, "max": None}
    ranks = np.percentile(values, RANKS)
    return {
        "mean": float(values.mean()),
        **{f"p{rank}": float(value) for rank, value in zip(RANKS, ranks, strict=True)},
        "max": float(values.max()),
    }


def histogram_statistics(
    counts: NDArray[np.int64], edges: NDArray[np.float64], total: float, largest: float
) -> Statistics:
    """The same of a histogram over `edges` [bins + 1], whose exact sum and maximum are known.

    A percentile is a bin's upper edge, so at most one bin's width too large.
    """
    number = int(counts.sum())
    if number == 0:
        return statistics(np.zeros(0))
    below = np.cumsum(counts)
    found: Statistics = {"mean": total / number}
    for rank in RANKS:
        place = int(np.searchsorted(below, rank / 100 * number))
        found[f"p{rank}"] = min(float(edges[place + 1]), largest)
    found["max"] = largest
    return found
