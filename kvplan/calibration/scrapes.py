"""/metrics scrapes of a vLLM server: gauges over time, and what its histograms say of latencies."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from kvplan.calibration.observed import Observed
from kvplan.errors import InputError
from kvplan.metrics.percentiles import Statistics

LINE = re.compile(r"^(?P<name>[a-zA-Z_:][\w:]*)(?:\{(?P<labels>.*)\})?\s+(?P<value>\S+)(?:\s+(?P<time_ms>\d+))?\s*$")
LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
HISTOGRAMS = {
    "ttft_s": ("vllm:time_to_first_token_seconds",),
    "tpot_s": ("vllm:request_time_per_output_token_seconds", "vllm:time_per_output_token_seconds"),
    "e2e_s": ("vllm:e2e_request_latency_seconds",),
}
GAUGES = {
    "running": ("vllm:num_requests_running",),
    "waiting": ("vllm:num_requests_waiting",),
    "kv_used": ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"),
}
Samples = dict[str, list[tuple[dict[str, str], float]]]


def from_scrapes(paths: Sequence[Path]) -> Observed:
    """One or more scrapes of one server, in the order of their names; histograms are the last minus the first.

    Percentiles are interpolated inside a bucket, so they are no better than the buckets; means are exact. A
    scrape holds no single requests: the trace has to be given beside it.

    Raises:
        InputError: a line that is no sample, or nothing of vLLM's in it.
    """
    scrapes = [_samples(path) for path in paths]
    first, last = scrapes[0] if len(scrapes) > 1 else {}, scrapes[-1]
    summed = {}
    for measure, names in HISTOGRAMS.items():
        for name in names:
            found = _histogram(last, first, name)
            if found:
                summed[measure] = found
                break
    series: dict[str, Any] = {}
    for gauge, names in GAUGES.items():
        values = [next((_total(scrape, name) for name in names if name in scrape), np.nan) for scrape in scrapes]
        if not np.all(np.isnan(values)):
            series[gauge] = np.array(values)
    if not summed and not series:
        raise InputError("holds none of vLLM's metrics", field="--observed", source=str(paths[-1]))
    series["t_s"] = _moments(paths)
    counters = {}
    for ours, theirs in (("preemptions", "vllm:num_preemptions_total"),):
        if theirs in last:
            counters[ours] = _total(last, theirs) - (_total(first, theirs) if theirs in first else 0.0)
    return Observed(
        source=str(paths[-1]),
        format="/metrics",
        summed=summed,
        series=series,
        counters=counters,
        settings=_settings(last),
        notes=("percentiles are interpolated in the histogram's buckets",) if summed else (),
    )


def _samples(path: Path) -> Samples:
    found: Samples = {}
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        match = LINE.match(line)
        try:
            value = float(match["value"]) if match else None
        except ValueError:
            value = None
        if match is None or value is None:
            raise InputError("not a sample of the text format", value=line, source=str(path), line=number)
        found.setdefault(match["name"], []).append((dict(LABEL.findall(match["labels"] or "")), value))
    return found


def _total(samples: Samples, name: str) -> float:
    """The sum over engines and models."""
    return sum(value for _, value in samples[name])


def _moments(paths: Sequence[Path]) -> np.ndarray:
    """Seconds from the first scrape, by the numbers their names end with, else one a second."""
    ends = [re.search(r"(\d+(?:\.\d+)?)$", path.stem) for path in paths]
    if all(ends):
        moments = np.array([float(end[1]) for end in ends if end])
        return moments - moments[0]
    return np.arange(len(paths), dtype=float)


def _histogram(last: Samples, first: Samples, name: str) -> Statistics | None:
    buckets = _cumulative(last, name)
    if not buckets:
        return None
    before = _cumulative(first, name)
    edges = np.array(sorted(buckets))
    counts = np.array([buckets[edge] - before.get(edge, 0.0) for edge in edges])
    total = counts[-1]
    if total <= 0:
        return None
    seconds = _total(last, f"{name}_sum") - (_total(first, f"{name}_sum") if f"{name}_sum" in first else 0.0)
    finite = np.where(np.isfinite(edges), edges, edges[-2] if len(edges) > 1 else 0.0)
    at = np.concatenate([[0.0], finite])
    below = np.concatenate([[0.0], counts])
    found: Statistics = {"mean": seconds / total}
    for rank in (50, 90, 95, 99):
        found[f"p{rank}"] = float(np.interp(rank / 100 * total, below, at))
    return found


def _cumulative(samples: Samples, name: str) -> dict[float, float]:
    buckets: dict[float, float] = {}
    for labels, value in samples.get(f"{name}_bucket", []):
        edge = float(labels.get("le", "nan").replace("+Inf", "inf"))
        buckets[edge] = buckets.get(edge, 0.0) + value
    return buckets


def _settings(samples: Samples) -> dict[str, Any]:
    """The pool that ``vllm:cache_config_info`` names in its labels."""
    info = samples.get("vllm:cache_config_info")
    if not info:
        return {}
    labels = info[0][0]
    settings: dict[str, Any] = {}
    for name, key in (("block_size", "cache.block_size"), ("num_gpu_blocks", "cache.num_gpu_blocks_override")):
        if labels.get(name, "").isdigit():
            settings[key] = int(labels[name])
    if labels.get("enable_prefix_caching") in ("True", "False"):
        settings["cache.enable_prefix_caching"] = labels["enable_prefix_caching"] == "True"
    return settings
