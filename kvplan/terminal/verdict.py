"""One sentence on a summary: which run carries the load best, and what the others' pools lost."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kvplan.terminal.formats import count, percent, seconds

Run = Mapping[str, Any]

_SAME_THROUGHPUT = 0.01
_SAME_LATENCY = 0.05

_SAME_WASTE = 0.01
"""Of the pool: less of it explains nothing."""


def verdict(summary: Mapping[str, Any]) -> str:
    """A sentence of what was simulated, no advice: `kvplan diagnose` tries changes."""
    runs: list[Run] = summary["runs"]
    alive = [run for run in runs if run["requests"]["finished"]]
    if not alive:
        total, reasons = runs[0]["requests"]["total"], runs[0]["requests"]["refused_reasons"]
        why = f": {max(reasons, key=reasons.get)}" if reasons else ""
        return f"Nothing ran: all {count(total)} requests were refused{why}."
    if len(runs) == 1:
        return _alone(runs[0])
    best, worst = max(runs, key=_throughput), min(runs, key=_throughput)
    if _throughput(best) > (1 + _SAME_THROUGHPUT) * _throughput(worst):
        return _faster(best, worst) + _lost(best, worst)
    quick, slow = min(runs, key=_ttft), max(runs, key=_ttft)
    if _ttft(slow) > (1 + _SAME_LATENCY) * _ttft(quick):
        return (
            f"All runs deliver the same throughput, but a p99 TTFT of {seconds(_ttft(quick))} under "
            f"{quick['name']} is {seconds(_ttft(slow))} under {slow['name']}" + _lost(quick, slow)
        )
    return f"All runs carry this load alike. {_alone(runs[0])}"


def _alone(run: Run) -> str:
    used, queue, requests = run["memory"]["mean"]["used"], run["latency"]["queue_s"], run["requests"]
    return (
        f"{run['name']}: tokens filled {percent(used)} of the pool on average, {percent(_waste(run))} was "
        f"reserved or in holes; p99 queue time {seconds(queue['p99'])}, {count(requests['preemptions'])} "
        f"preemptions, {count(requests['refused'])} refused."
    )


def _faster(best: Run, worst: Run) -> str:
    if not worst["requests"]["finished"]:
        return f"{best['name']} serves this load and {worst['name']} refuses all of it"
    ratio = _throughput(best) / _throughput(worst)
    return (
        f"{best['name']} delivers {ratio:.2f}× the output tokens per second of {worst['name']} "
        f"({count(_throughput(best))} against {count(_throughput(worst))})"
    )


def _lost(good: Run, bad: Run) -> str:
    if _waste(bad) < _waste(good) + _SAME_WASTE:
        return f"; waste is not why: {percent(_waste(bad))} and {percent(_waste(good))} are reserved or in holes."
    return (
        f": {bad['name']} leaves {percent(_waste(bad))} of its pool reserved or in holes, "
        f"{good['name']} {percent(_waste(good))}."
    )


def _waste(run: Run) -> float:
    mean = run["memory"]["mean"]
    return float(mean["reserved"] + mean["internal"] + mean["external"])


def _throughput(run: Run) -> float:
    return float(run["throughput"]["output_tokens_per_s"] or 0.0)


def _ttft(run: Run) -> float:
    value = run["latency"]["ttft_s"]["p99"]
    return float("inf") if value is None else float(value)
