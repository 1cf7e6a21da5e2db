"""Predicted beside observed: every figure with its signed error."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from kvplan.calibration.observed import MEASURES, Observed
from kvplan.metrics.percentiles import statistics

if TYPE_CHECKING:
    import pandas as pd

RANKS = ("mean", "p50", "p90", "p99")
JUDGED = (*MEASURES, "makespan_s", "output_tokens_per_s", "peak_running")
"""What a tolerance applies to. Preemptions are counts that a small shift changes; they are reported alone."""


@dataclass(frozen=True)
class Figure:
    """One figure: ``rank`` is empty for those that are no distribution. ``error`` is predicted / observed − 1."""

    measure: str
    rank: str
    predicted: float | None
    observed: float | None

    @property
    def error(self) -> float | None:
        if self.predicted is None or self.observed is None or self.observed == 0:
            return None
        return self.predicted / self.observed - 1.0

    def as_json(self) -> dict[str, float | None]:
        return {"predicted": self.predicted, "observed": self.observed, "error": self.error}


@dataclass(frozen=True, eq=False)
class Comparison:
    """All figures of one run, and what a reader should know about them."""

    observed: Observed
    figures: tuple[Figure, ...]
    kv_used: Mapping[str, float | None] = field(default_factory=dict)
    """Fraction of the pool in live allocations: mean predicted and observed while the gauge was read, and the root
    mean square of their difference."""
    warnings: tuple[str, ...] = ()

    @property
    def worst(self) -> Figure | None:
        """The judged figure with the largest error."""
        known = [figure for figure in self.figures if figure.error is not None and figure.measure in JUDGED]
        return max(known, key=lambda figure: abs(figure.error or 0.0), default=None)

    def as_json(self) -> dict[str, Any]:
        """What ``validation.json`` holds, beside the scenario."""
        document: dict[str, Any] = {}
        for figure in self.figures:
            if figure.rank:
                document.setdefault(figure.measure, {})[figure.rank] = figure.as_json()
            else:
                document[figure.measure] = figure.as_json()
        return {
            **document,
            "kv_used": dict(self.kv_used),
            "observed": {
                "source": self.observed.source,
                "format": self.observed.format,
                "requests": len(self.observed),
            },
            "notes": [*self.observed.notes, *self.warnings],
        }


def compare(
    observed: Observed, requests: pd.DataFrame, timeline: pd.DataFrame, warnings: tuple[str, ...] = ()
) -> Comparison:
    """Judge the ``requests`` and ``timeline`` of one simulated run against what was observed."""
    return Comparison(observed, tuple(_figures(observed, requests, timeline)), _kv_used(observed, timeline), warnings)


def _figures(observed: Observed, requests: pd.DataFrame, timeline: pd.DataFrame) -> Iterator[Figure]:
    finished = requests[requests["status"] == "finished"]
    for measure in MEASURES:
        seen = observed.statistics(measure)
        ours = statistics(finished[measure].to_numpy(float))
        for rank in RANKS:
            yield Figure(measure, rank, ours[rank], None if seen is None else seen.get(rank))
    makespan = None
    if len(finished):
        makespan = float(finished["finish_s"].max() - requests["arrival_s"].min())
    tokens = float(finished["output_tokens"].sum())
    yield Figure("makespan_s", "", makespan, observed.makespan_s)
    yield Figure("output_tokens_per_s", "", tokens / makespan if makespan else None, observed.output_tokens_per_s)
    yield Figure("peak_running", "", float(timeline["running_max"].max()), observed.peak_running)
    yield Figure("preemptions", "", float(requests["preemptions"].sum()), observed.counters.get("preemptions"))
    if "hit_tokens" in observed.counters:
        hits = float(timeline["hit_tokens"].sum())
        yield Figure("prefix_hit_tokens", "", hits, observed.counters["hit_tokens"])


def allocated(timeline: pd.DataFrame) -> Any:
    """Fraction of the pool in live allocations: what an engine's KV-usage gauge shows."""
    return timeline["used"] + timeline["reserved"] + timeline["internal"]


def _kv_used(observed: Observed, timeline: pd.DataFrame) -> dict[str, float | None]:
    if "kv_used" not in observed.series or not len(timeline):
        return {}
    moments, seen = observed.series["t_s"], observed.series["kv_used"]
    ours = np.interp(moments, timeline["t_s"] + timeline["dt_s"] / 2, allocated(timeline), right=0.0)
    return {
        "predicted_mean": float(ours.mean()),
        "observed_mean": float(seen.mean()),
        "rms_difference": float(np.sqrt(np.mean((ours - seen) ** 2))),
    }
