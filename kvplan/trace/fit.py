"""A generator fitted to a trace, so that a private trace can be shared as numbers that give nobody away.

What is kept: length quantiles, how prompt and output go together (a matrix of ranks), the rate over time and
the burstiness beyond it, and how much of a prompt was seen before and how long ago. No request survives.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from kvplan.errors import InputError
from kvplan.trace.sharing import prefix_hits
from kvplan.trace.trace import Doubles, Longs, Trace

RANKS = (
    *(0, 0.001, 0.002, 0.005, 0.01, 0.02, 0.03, 0.04),
    *(round(0.05 * i, 2) for i in range(1, 19)),
    *(0.92, 0.94, 0.95, 0.96, 0.97, 0.98, 0.985, 0.99, 0.9925, 0.995, 0.9975, 0.999, 1),
)
_JOINT = 10
_REFINED = 40
"""At most so many points beyond the ranks everybody expects."""
_DECILES = tuple(round(0.1 * i, 1) for i in range(11))
_WINDOWS = (360, 180, 120, 60, 30, 12)
_TELLING = 10.0
"""A profile is worth its windows where their dispersion is that much above the 1 that chance gives."""


def fit(trace: Trace, *, requests: int | None = None) -> dict[str, Any]:
    """The ``synthetic`` description (see ``synthesize``) of a trace like this one.

    Args:
        requests: how many the generator shall draw; None: as many as the trace has.

    Raises:
        InputError: fewer than two requests.
    """
    if len(trace) < 2:
        raise InputError("has fewer than two requests: nothing to fit", source=trace.origin.path, line=1)
    spec: dict[str, Any] = {"requests": requests or len(trace), "arrivals": _arrivals(trace.arrival_s)}
    prompt = trace.prompt_tokens
    sessions = _sessions(trace)
    if sessions is not None:
        spec["sessions"], prompt = sessions
    spec["prompt"] = {"quantiles": _quantiles(prompt)}
    spec["output"] = {"quantiles": _quantiles(trace.output_tokens)}
    joint = _joint(prompt, trace.output_tokens)
    if joint is not None:
        spec["joint"] = joint
    if sessions is None and trace.content is not None:
        reuse = _reuse(trace)
        if reuse is not None:
            spec["reuse"] = reuse
    if trace.n is not None:
        spec["n"] = {"quantiles": _quantiles(trace.n)}
    return spec


def _plain(value: float, digits: int = 6) -> int | float:
    rounded = float(f"{value:.{digits}g}")
    return int(rounded) if rounded.is_integer() else rounded


def _quantiles(values: Any, ranks: tuple[float, ...] = RANKS) -> dict[float, float]:
    """The quantile table of a sample: at ``ranks``, and where the line between two of them misses the most.

    The percentiles that people quote are in the table; the further points bring the straight lines' mean to
    the sample's own, which a step in the sample (a template of fixed length) would otherwise shift.
    """
    ordered = np.sort(np.asarray(values, dtype=np.float64))
    sums = np.append(0.0, np.cumsum(ordered))
    table = list(ranks)
    for _ in range(_REFINED):
        grid = np.array(table)
        at = np.quantile(ordered, grid)
        # The exact sum between two ranks against the trapezoid's, both as shares of the sample.
        exact = np.interp(grid, np.linspace(0, 1, len(sums)), sums) / len(ordered)
        miss = np.abs(np.diff(exact) - np.diff(grid) * (at[1:] + at[:-1]) / 2)
        worst = int(np.argmax(miss))
        middle = round((table[worst] + table[worst + 1]) / 2, 6)
        if miss.sum() < 1e-3 * abs(exact[-1]) or middle in table:
            break
        table.insert(worst + 1, middle)
    at = np.quantile(ordered, table)
    return {rank: _plain(float(value)) for rank, value in zip(table, at, strict=True)}


def _joint(prompt: Longs, output: Longs) -> list[list[int]] | None:
    """Counts of (tenth of prompts, tenth of outputs); None for too few requests to tell."""
    if len(prompt) < 10 * _JOINT**2:
        return None
    cells = _tenths(prompt) * _JOINT + _tenths(output)
    counts = np.bincount(cells, minlength=_JOINT**2).reshape(_JOINT, _JOINT)
    return [[int(count) for count in row] for row in counts]


def _tenths(values: Longs) -> Longs:
    # Equal values share their ranks at random (seeded), or a heavy value would tie prompt to output by
    # accident.
    order = np.lexsort((np.random.default_rng(0).random(len(values)), values))
    rank = np.empty(len(values), np.int64)
    rank[order] = np.arange(len(values))
    tenths: Longs = rank * _JOINT // len(values)
    return tenths


def _arrivals(arrival: Doubles) -> dict[str, Any]:
    """Mean rate, its profile over the trace, and the burstiness on the clock that the profile warps."""
    count, since = len(arrival), arrival - arrival[0]
    span = float(since[-1])
    if span == 0:
        return {"rate": 1, "cv": 1}
    fitted: dict[str, Any] = {"rate": _plain((count - 1) / span)}
    windows = next((w for w in _WINDOWS if count >= 8 * w and _dispersion_of(since, span, w) > _TELLING), 1)
    counts = np.histogram(since, bins=windows, range=(0, span))[0]
    if windows > 1:
        fitted["profile"] = [int(c) for c in counts]
    share = np.interp(since, np.linspace(0, span, windows + 1), np.append(0.0, np.cumsum(counts)) / count)
    gaps = np.diff(share)
    if np.count_nonzero(np.diff(since)) < 0.5 * (count - 1):
        # Most arrivals share their time with others: the log's clock is coarse. Beyond a tick the renewal
        # process shows in its counts over a few ticks, whose dispersion tends to cv^2.
        fitted["tick_s"] = tick = _plain(float(np.median(np.diff(np.unique(since)))))
        fitted["cv"] = _plain(dispersion(arrival, 4 * tick) ** 0.5, 3)
    else:
        fitted["cv"] = _plain(float(gaps.std() / gaps.mean()), 3)
    return fitted


def _dispersion_of(since: Doubles, span: float, windows: int) -> float:
    counts = np.histogram(since, bins=windows, range=(0, span))[0]
    return float(counts.var() / counts.mean())


def _reuse(trace: Trace) -> dict[str, Any] | None:
    """How often, how much and how long after prompts begin with an earlier beginning, by tenths of length."""
    hits = prefix_hits(trace)
    some = hits.tokens > 0
    if not some.any():
        return None
    fraction = hits.tokens / trace.prompt_tokens
    lag = trace.arrival_s[some] - trace.arrival_s[hits.last_row[some]]
    parts = [np.ones(len(trace), bool)]
    if len(trace) >= 10 * _JOINT**2:
        tenth = _tenths(trace.prompt_tokens)
        parts = [tenth == part for part in range(_JOINT)]
    return {
        "probability": [_plain(float(some[part].mean()), 4) for part in parts],
        "fraction": [
            {"quantiles": _quantiles(fraction[part & some] if (part & some).any() else np.zeros(1), _DECILES)}
            for part in parts
        ],
        "lag_s": {"quantiles": _quantiles(lag, _DECILES)},
    }


def _sessions(trace: Trace) -> tuple[dict[str, Any], Longs] | None:
    """(``sessions``, tokens each turn adds) where nearly all later turns hold their former turn."""
    if trace.session is None:
        return None
    rows = np.flatnonzero(trace.session >= 0)
    rows = rows[np.argsort(trace.session[rows], kind="stable")]
    later = np.append(False, np.diff(trace.session[rows]) == 0)
    if len(rows) < 0.9 * len(trace) or later.sum() < 10:
        return None
    before, after = rows[np.flatnonzero(later) - 1], rows[later]
    added = trace.prompt_tokens.copy()
    added[after] -= trace.prompt_tokens[before] + trace.output_tokens[before]
    if (added[after] < 1).mean() > 0.1:
        return None
    turns = np.bincount(np.cumsum(~later) - 1)
    think = trace.arrival_s[after] - trace.arrival_s[before]
    return {
        "turns": {"quantiles": _quantiles(turns)},
        "think_s": {"quantiles": _quantiles(think)},
    }, np.maximum(added, 1)


@dataclass(frozen=True)
class Closeness:
    """One figure of two traces and how far the second lies from the first."""

    figure: str
    real: float
    drawn: float

    @property
    def relative(self) -> float:
        """(drawn - real) / real; the plain difference where real is 0."""
        return (self.drawn - self.real) / self.real if self.real else self.drawn


def closeness(real: Trace, drawn: Trace) -> list[Closeness]:
    """Mean, p50, p90, p99 of lengths, rate, burstiness, prefix hits: of the real trace and the drawn one."""
    wanted, got = figures(real), figures(drawn)
    return [Closeness(name, figure, got[name]) for name, figure in wanted.items() if name in got]


def figures(trace: Trace) -> dict[str, float]:
    """The figures that ``closeness`` compares."""
    found: dict[str, float] = {}
    for name, values in (("prompt", trace.prompt_tokens), ("output", trace.output_tokens)):
        found[f"{name} mean"] = float(values.mean())
        for percent in (50, 90, 99):
            found[f"{name} p{percent}"] = float(np.percentile(values, percent))
    found["prompt-output rank correlation"] = _rank_correlation(trace.prompt_tokens, trace.output_tokens)
    if trace.span_s > 0:
        gaps = np.diff(trace.arrival_s)
        found["rate (1/s)"] = (len(trace) - 1) / trace.span_s
        found["cv of gaps"] = float(gaps.std() / gaps.mean())
        for window in (1, 10, 60):
            if trace.span_s > 10 * window:
                found[f"dispersion in {window} s"] = dispersion(trace.arrival_s, window)
    if trace.content is not None:
        found["prefix hit rate (tokens)"] = float(prefix_hits(trace).tokens.sum() / trace.prompt_tokens.sum())
    return found


def dispersion(arrival: Doubles, window_s: float) -> float:
    """Variance over mean of the arrivals in windows: 1 for Poisson, more for bursts of that length."""
    counts = np.bincount(((arrival - arrival[0]) / window_s).astype(np.int64))[:-1]
    return float(counts.var() / counts.mean())


def _rank_correlation(a: Longs, b: Longs) -> float:
    ranks = [np.argsort(np.argsort(values, kind="stable"), kind="stable") for values in (a, b)]
    if len(a) < 2:
        return 0.0
    return float(np.corrcoef(ranks[0], ranks[1])[0, 1])
