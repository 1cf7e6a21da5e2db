"""Whether a run kept its promise: the bounds of the SLO, everybody served, and a queue that does not grow."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from kvplan.cluster.ledger import DONE, OUTCOMES
from kvplan.cluster.run import ClusterResult
from kvplan.core.state import REFUSALS
from kvplan.metrics.percentiles import statistics

Slo = Mapping[str, Mapping[str, float]]
"""Metric to quantile to bound in seconds, as in a scenario: ``{"ttft_s": {"p99": 2.0}}``."""

GROWTH_BOUND = 0.02
"""A queue grows where more than this share of the arrivals piles up ..."""
_LEAST_RISE = 5.0
"""... and that is more than so many requests a replica, so that a short trace is not judged by its last burst."""


@dataclass(frozen=True)
class Judgement:
    """``worst``: the largest of value / bound over the SLO's bounds, infinite where a request was not served.

    ``reason``: why not, or which bound is the nearest. ``measured``: "ttft_s.p99" to its value.
    """

    ok: bool
    worst: float
    reason: str
    growth: float
    measured: Mapping[str, float]


def judge(result: ClusterResult, slo: Slo) -> Judgement:
    """Bounds on ``itl_s`` are judged by each request's own mean gap (tpot_s)."""
    measured, worst, nearest = {}, 0.0, ""
    seconds = result.ledger.seconds(result.traffic)
    for metric, bounds in slo.items():
        found = statistics(seconds["tpot_s" if metric == "itl_s" else metric])
        for quantile, bound in bounds.items():
            value = found[quantile]
            if value is None:
                continue
            measured[f"{metric}.{quantile}"] = value
            if value / bound > worst:
                worst, nearest = value / bound, f"{quantile} {metric} {value:.4g} s of {bound:g} s"
    growth, rise = queue_growth(result)
    rows = result.ledger.rows
    unserved = rows["outcome"] != DONE
    if unserved.any():
        first = rows[unserved][0]
        why = REFUSALS[int(first["reason"])] or OUTCOMES[int(first["outcome"])].replace("_", " ")
        return Judgement(False, math.inf, f"{int(unserved.sum())} requests not served: {why}", growth, measured)
    if worst > 1:
        return Judgement(False, worst, nearest, growth, measured)
    if growth > GROWTH_BOUND and rise > _LEAST_RISE * len(result.replicas):
        reason = f"the queue grows by {growth:.1%} of the arrivals"
        return Judgement(False, max(worst, 1 + growth), reason, growth, measured)
    return Judgement(True, worst, nearest or "no bound", growth, measured)


def queue_growth(result: ClusterResult) -> tuple[float, float]:
    """The growth of the number of waiting requests over the last two thirds of the arrivals.

    Returns the slope of a straight line through it as a share of the arrival rate, and its rise in requests.
    """
    arrivals = result.traffic.workload.arrival_s
    begun = result.ledger.rows["first_scheduled_s"]
    begin, end = float(arrivals[0]), float(arrivals[-1])
    if end <= begin:
        return 0.0, 0.0
    moments = np.linspace(begin + (end - begin) / 3, end, 64)
    waiting = np.searchsorted(arrivals, moments, side="right") - np.searchsorted(
        np.sort(begun[begun >= 0]), moments, side="right"
    )
    slope = float(np.polyfit(moments - begin, waiting, 1)[0])
    return slope / (len(arrivals) / (end - begin)), slope * (moments[-1] - moments[0])
