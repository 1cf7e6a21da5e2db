"""A scrape of ``/metrics`` (vLLM, SGLang): its length histograms become a generator."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Any

import numpy as np

from kvplan.errors import InputError
from kvplan.trace.builder import TraceBuilder
from kvplan.trace.distribution import Distribution
from kvplan.trace.facts import NoRequestsError
from kvplan.trace.source import Source
from kvplan.trace.trace import Doubles, Longs

# name, labels, value; a timestamp and OpenMetrics' exemplar may follow.
_SAMPLE = re.compile(r"([a-zA-Z_:][a-zA-Z0-9_:]*)(\{[^#]*\})?\s+([^\s]+)(?:\s+-?[\d.]+)?(?:\s+# \{.*)?")
# Possessive, and from the beginning of a word only: a long word that is no label is gone through once.
_LABEL = re.compile(r'(?<![a-zA-Z0-9_])([a-zA-Z_][a-zA-Z0-9_]*+)="((?:[^"\\]++|\\.)*+)"')

PROMPT = ("vllm:request_prompt_tokens", "sglang:prompt_tokens_histogram")
OUTPUT = ("vllm:request_generation_tokens", "sglang:generation_tokens_histogram")
PARALLEL = ("vllm:request_params_n",)
_GAUGES = {
    "vllm:num_requests_running": "running",
    "vllm:num_requests_waiting": "waiting",
    "vllm:kv_cache_usage_perc": "kv_cache_usage",
    "vllm:gpu_cache_usage_perc": "kv_cache_usage",
    "vllm:num_preemptions_total": "preemptions",
    "vllm:prefix_cache_queries_total": "prefix_cache_query_tokens",
    "vllm:prefix_cache_hits_total": "prefix_cache_hit_tokens",
    "sglang:token_usage": "kv_cache_usage",
    "sglang:cache_hit_rate": "prefix_cache_hit_rate",
    "sglang:num_running_reqs": "running",
    "sglang:num_queue_reqs": "waiting",
}
_CONFIG = (
    "block_size",
    "num_gpu_blocks",
    "kv_cache_size_tokens",
    "enable_prefix_caching",
    "gpu_memory_utilization",
)
_MOST_TOKENS = float(2**31 - 1)
_LONGEST_NUMBER = 400
_MANY_BUCKETS = 1 << 12
"""Of so many, a straight line through each is close enough: an engine has thirty."""


def looks_like_metrics(head: str) -> bool:
    """Whether ``head`` is Prometheus text: comments and samples, at least one of them an engine's."""
    lines = [line for line in head.splitlines()[:-1] or head.splitlines() if line.strip()]
    known = any(line.removeprefix("# TYPE ").removeprefix("# HELP ").startswith(("vllm:", "sglang:")) for line in lines)
    return known and all(line.startswith("#") or _SAMPLE.fullmatch(line.strip()) for line in lines[:20])


@dataclass(frozen=True, eq=False)
class Histogram:
    """A cumulative histogram: float64 upper edges (finite), counts up to each, count and sum of all."""

    edges: Doubles
    up_to: Doubles
    count: float
    total: float | None

    @property
    def beyond(self) -> float:
        """How many lie above the last finite edge."""
        return self.count - (float(self.up_to[-1]) if len(self.up_to) else 0.0)

    def distribution(self) -> Distribution:
        """A quantile function with this histogram's counts, and its mean where that can be met.

        Within a bucket values follow a power of their rank, the same for all buckets, chosen so that the mean
        is sum / count. Above the last edge lies what the sum leaves for it, evenly from the edge to twice the
        mean excess.
        """
        top = self._top()
        edges = np.concatenate([[min(1.0, self.edges[0] if len(self.edges) else top)], self.edges, [top]])
        counts = np.diff(np.concatenate([[0.0], self.up_to, [self.count]]))
        low, high = -6.0, 6.0
        # Whole tokens come from rounding up, which adds a half.
        target = None if self.total is None else self.total / self.count - 0.5
        best = _power_quantiles(edges, counts, 1.0)
        if target is None:
            return best
        for _ in range(60):
            middle = (low + high) / 2
            best = _power_quantiles(edges, counts, math.exp(middle))
            low, high = (middle, high) if best.mean > target else (low, middle)
        return best

    def _top(self) -> float:
        last = float(self.edges[-1]) if len(self.edges) else 1.0
        if self.beyond <= 0 or self.total is None:
            return last
        below = np.concatenate([[0.0], self.edges])
        counts = np.diff(np.concatenate([[0.0], self.up_to]))
        known = float(np.sum(counts * (below[1:] + below[:-1]) / 2))
        excess = max(0.0, (self.total - known) / self.beyond - last)
        return min(last + 2 * excess, _MOST_TOKENS)


def _power_quantiles(edges: Doubles, counts: Doubles, power: float) -> Distribution:
    held = np.flatnonzero(counts > 0)
    inside = np.linspace(0, 1, 9 if len(held) < _MANY_BUCKETS else 2)
    count, low, width = counts[held, None], edges[held, None], np.diff(edges)[held, None]
    done = np.cumsum(count)[:, None] - count
    ranks = (done + inside * count) / counts.sum()
    values = low + width * inside**power
    first = float(edges[held[0]])
    return Distribution(
        np.concatenate([[0.0], ranks.ravel()]), np.maximum.accumulate(np.concatenate([[first], values.ravel()]))
    )


def read_prometheus(source: Source, builder: TraceBuilder, seed: int) -> None:
    """Draw as many requests as the scrape counted, with its length histograms.

    Raises:
        NoRequestsError: there is no histogram of prompt lengths with a request in it.
        InputError: a histogram that is none.
    """
    facts, tallies = _read(source)
    builder.facts.update(facts)
    prompt = _histogram(tallies, PROMPT, source)
    if prompt is None:
        raise NoRequestsError(
            "is a scrape of /metrics without a histogram of prompt lengths that counted a request",
            format="prometheus",
            facts=builder.facts,
            source=source.name,
        )
    count = builder.drawn(prompt.count)
    random = np.random.default_rng(seed)
    builder.note(f"drawn from the length histograms of /metrics with seed {seed}: prompt and output independent")
    output, parallel = (_histogram(tallies, names, source) for names in (OUTPUT, PARALLEL))
    extra = {} if parallel is None else {"n": _drawn(parallel, "n", count, random, builder, exact=True)}
    builder.extend(
        None,
        _drawn(prompt, "prompt", count, random, builder),
        None if output is None else _drawn(output, "output", count, random, builder),
        **extra,
    )


def _drawn(
    histogram: Histogram,
    what: str,
    count: int,
    random: np.random.Generator,
    builder: TraceBuilder,
    exact: bool = False,
) -> Longs:
    if histogram.beyond > 0:
        edge = f"{histogram.edges[-1]:g}" if len(histogram.edges) else "no edge"
        builder.note(f"{what}: last bucket cut off: {histogram.beyond:g} of {histogram.count:g} lie above {edge}")
    ranks = random.permutation((np.arange(count) + random.random(count)) / count)
    if exact:  # n is counted in buckets whose edges are its likely values
        edges = np.append(histogram.edges, histogram.edges[-1:] if len(histogram.edges) else [1.0])
        share = np.append(histogram.up_to, histogram.count) / histogram.count
        values = edges[np.minimum(np.searchsorted(share, ranks), len(edges) - 1)]
    else:
        values = np.ceil(histogram.distribution().at(ranks))
    return np.clip(values, 1, _MOST_TOKENS).astype(np.int64)


class _Tally:
    """What the samples of one histogram add up to over engines and models. A wrong one counts once it is asked for."""

    def __init__(self) -> None:
        self.buckets: dict[float, float] = {}
        self.count = self.total = 0.0
        self.line = 1
        """Of the last sample."""
        self.error: InputError | None = None

    def add(self, part: str, le: str | None, value: float) -> None:
        """Raises InputError, without a place, for what is no ``part`` (bucket, sum, count) of a histogram."""
        if not 0 <= value < 1e18:
            raise InputError("is no count", value=value)
        if part == "bucket":
            edge = _edge(le)
            self.buckets[edge] = self.buckets.get(edge, 0.0) + value
        elif part == "sum":
            self.total += value
        else:
            self.count += value


def _read(source: Source) -> tuple[dict[str, Any], dict[str, _Tally]]:
    """(facts, histogram of each name that tells of lengths): no sample is kept, a scrape may have millions."""
    facts: dict[str, Any] = {}
    tallies = {name: _Tally() for name in (*PROMPT, *OUTPUT, *PARALLEL)}
    parts = {f"{name}_{part}": (tally, part) for name, tally in tallies.items() for part in ("bucket", "sum", "count")}
    for line, text in source.lines():
        text = text.strip()
        if not text or text.startswith("#"):
            continue
        match = _SAMPLE.fullmatch(text)
        try:
            if match is None:
                raise ValueError
            value = _value(match)
        except ValueError:
            raise InputError("is no Prometheus sample", value=text[:80], source=source.name, line=line) from None
        name = match[1]
        if name in parts:
            _tally(*parts[name], match, value, source, line)
        elif name in _GAUGES and math.isfinite(value):
            facts[_GAUGES[name]] = facts.get(_GAUGES[name], 0.0) + value
        elif name == "vllm:cache_config_info":
            labels = _labels(match, _CONFIG)
            facts |= {key: labels[key] for key in _CONFIG if labels.get(key) not in (None, "None")}
    if facts.get("prefix_cache_query_tokens"):
        facts["prefix_cache_hit_rate"] = facts.get("prefix_cache_hit_tokens", 0.0) / facts["prefix_cache_query_tokens"]
    return facts, tallies


def _value(match: re.Match[str]) -> float:
    """A sample's value; ValueError where it is none. One that is longer than any number is not even looked at."""
    begin, end = match.span(3)
    if end - begin > _LONGEST_NUMBER:
        raise ValueError
    return float(match[3])


def _tally(tally: _Tally, part: str, match: re.Match[str], value: float, source: Source, line: int) -> None:
    if tally.error is not None:
        return
    tally.line = line
    try:
        tally.add(part, _labels(match, ("le",)).get("le"), value)
    except InputError as error:
        tally.error = InputError(
            error.message, field=error.field or match[1], value=error.value, source=source.name, line=line
        )


def _labels(match: re.Match[str], wanted: tuple[str, ...]) -> dict[str, str]:
    """Those labels of a sample that are ``wanted``."""
    if match[2] is None:
        return {}
    labels = _LABEL.finditer(match.string, *match.span(2))
    return {label[1]: _start(label) for label in labels if label[1] in wanted}


def _start(label: re.Match[str]) -> str:
    """A label's value: no more of it than a number has, as no longer one is understood."""
    begin, end = label.span(2)
    return label.string[begin : min(end, begin + _LONGEST_NUMBER)]


def _histogram(tallies: dict[str, _Tally], names: tuple[str, ...], source: Source) -> Histogram | None:
    """The first of ``names`` that counted something, summed over engines and models."""
    for name in names:
        tally = tallies[name]
        if tally.error is not None:
            raise tally.error
        buckets = tally.buckets
        count = max(tally.count, max(buckets.values())) if buckets else 0.0
        if count < 1:
            continue
        edges = sorted(edge for edge in buckets if math.isfinite(edge))
        up_to = np.array([buckets[edge] for edge in edges])
        if (np.diff(up_to) < 0).any():
            raise InputError("buckets are not cumulative", field=name, source=source.name, line=tally.line)
        return Histogram(np.array(edges), up_to, count, tally.total or None)
    return None


def _edge(text: str | None) -> float:
    try:
        edge = float(text or "")
    except ValueError:
        edge = math.nan
    if math.isnan(edge) or edge < 0 or (math.isfinite(edge) and edge > _MOST_TOKENS):
        raise InputError("is no bucket's edge", field="le", value=text)
    return edge
