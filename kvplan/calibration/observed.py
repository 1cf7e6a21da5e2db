"""A served run that somebody else measured: what came in, what was seen, and with which settings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvplan.metrics.percentiles import Statistics, statistics

Floats = NDArray[np.float64]
MEASURES = ("ttft_s", "tpot_s", "e2e_s")


@dataclass(frozen=True, eq=False)
class Observed:
    """One run. Arrays are by request, in order of arrival where arrivals are known; failed requests are left out.

    Args:
        arrival_s: from the first arrival on; None where the file does not say (a trace has to).
        prompt_tokens, output_tokens: None where the file holds no single requests.
        measured: for each of `MEASURES` that is known the values by request, seconds; NaN where undefined.
        summed: the same as statistics, for files that hold no single requests (a metrics scrape).
        series: moments and gauges: ``t_s`` (on the clock of ``arrival_s``), ``running``, ``waiting``,
        ``kv_used``
            (fraction of the pool).
        counters: totals such as ``preemptions``, ``makespan_s``.
        settings: what the run was started with, by scenario key (``cache.block_size``).
    """

    source: str
    format: str
    arrival_s: Floats | None = None
    prompt_tokens: NDArray[np.int64] | None = None
    output_tokens: NDArray[np.int64] | None = None
    measured: Mapping[str, Floats] = field(default_factory=dict)
    summed: Mapping[str, Statistics] = field(default_factory=dict)
    series: Mapping[str, Floats] = field(default_factory=dict)
    counters: Mapping[str, float] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return 0 if self.prompt_tokens is None else len(self.prompt_tokens)

    def statistics(self, measure: str) -> Statistics | None:
        """Mean and percentiles of one of `MEASURES`, or None where it was not observed."""
        if measure in self.measured:
            return statistics(self.measured[measure])
        return self.summed.get(measure)

    @property
    def makespan_s(self) -> float | None:
        """From the first arrival to the last token."""
        if "makespan_s" in self.counters:
            return self.counters["makespan_s"]
        if self.arrival_s is None or "e2e_s" not in self.measured:
            return None
        return float((self.arrival_s + self.measured["e2e_s"]).max() - self.arrival_s.min())

    @property
    def output_tokens_per_s(self) -> float | None:
        if self.output_tokens is None or not self.makespan_s:
            return self.counters.get("output_tokens_per_s")
        return float(self.output_tokens.sum() / self.makespan_s)

    @property
    def peak_running(self) -> float | None:
        """As counted; else the largest sample of the gauge: between two samples it may have been larger."""
        if "peak_running" in self.counters:
            return self.counters["peak_running"]
        running = self.series.get("running")
        return float(running.max()) if running is not None and len(running) else None
