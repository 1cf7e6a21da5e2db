"""What ``kvplan trace info`` tells of a trace, as plain values and as text for a terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from kvplan.trace.facts import NoRequestsError
from kvplan.trace.fit import dispersion
from kvplan.trace.sharing import hit_blocks, prefix_hits
from kvplan.trace.trace import Longs, Trace
from kvplan.trace.words import counted

_BARS = " ▏▎▍▌▋▊▉█"
_BAR_WIDTH = 40


def describe(trace: Trace) -> dict[str, Any]:
    """The figures of a trace; JSON-ready.

    ``rows``, ``span_s``, ``prompt`` and ``output`` are those of the file as recorded, failed and empty
    requests included; ``requests`` is how many are replayed. ``prefix_hit_rate`` is what an unlimited cache
    could
    serve: in the file's own blocks where it has block ids (a partial last block counted as one), else in
    tokens.
    """
    origin = trace.origin
    arrival, prompt, output = trace.arrival_s, trace.prompt_tokens, trace.output_tokens
    if origin.recorded is not None:
        recorded = origin.recorded
        arrival, prompt, output = recorded.arrival_s, recorded.prompt_tokens, recorded.output_tokens
    return {
        "path": origin.path,
        "format": origin.format,
        "rows": len(arrival),
        "requests": len(trace),
        "bad_rows": origin.bad_rows,
        "bad_row_examples": list(origin.bad_row_examples),
        "span_s": float(arrival[-1] - arrival[0]) if len(arrival) else 0.0,
        **_rate(arrival),
        "prompt": _lengths(prompt),
        "output": _lengths(output),
        "sessions": _sessions(trace),
        "parallel_samples": None if trace.n is None else float(trace.n.mean()),
        **_sharing(trace),
        "facts": dict(origin.facts),
        "notes": list(origin.notes),
    }


def no_requests(told: NoRequestsError) -> dict[str, Any]:
    """``describe`` for a file that was understood and holds no request."""
    return {
        "path": told.source,
        "format": told.format,
        "rows": 0,
        "requests": 0,
        "bad_rows": 0,
        "span_s": 0.0,
        "prompt": None,
        "output": None,
        "prefix_hit_rate": None,
        "facts": told.facts,
        "notes": [told.message],
    }


def _lengths(values: Longs) -> dict[str, float | int]:
    at = np.percentile(values, [50, 90, 95, 99])
    return {
        "mean": float(values.mean()),
        "p50": float(at[0]),
        "p90": float(at[1]),
        "p95": float(at[2]),
        "p99": float(at[3]),
        "min": int(values.min()),
        "max": int(values.max()),
        "total": int(values.sum()),
    }


def _rate(arrival: Any) -> dict[str, Any]:
    """Requests per second, and how bursty they come: 1 for Poisson arrivals in both measures."""
    span = float(arrival[-1] - arrival[0]) if len(arrival) else 0.0
    if span == 0:
        return {"rate_per_s": None, "burstiness": {"cv_of_gaps": None, "dispersion": {}}}
    gaps = np.diff(arrival)
    windows = {f"{window}s": dispersion(arrival, window) for window in (1, 10, 60) if span > 10 * window}
    return {
        "rate_per_s": (len(arrival) - 1) / span,
        "burstiness": {"cv_of_gaps": float(gaps.std() / gaps.mean()), "dispersion": windows},
    }


def _sessions(trace: Trace) -> dict[str, Any] | None:
    if trace.session is None:
        return None
    turns = np.unique(trace.session[trace.session >= 0], return_counts=True)[1]
    if not len(turns):
        return None
    return {
        "count": len(turns),
        "requests": int(turns.sum()),
        "mean_turns": float(turns.mean()),
        "max_turns": int(turns.max()),
    }


def _sharing(trace: Trace) -> dict[str, Any]:
    if trace.content is None:
        return {
            "prefix_hit_rate": None,
            "prefix_hit_unit": None,
            "prefix_hit_token_rate": None,
            "block_size": None,
        }
    hits = prefix_hits(trace)
    by_token = float(hits.tokens.sum() / trace.prompt_tokens.sum())
    size = trace.origin.block_size
    found: dict[str, Any] = {"prefix_hit_rate": by_token, "prefix_hit_unit": "tokens"}
    if size is not None:
        seen, blocks = hit_blocks(trace, hits, size)
        if blocks:
            found = {
                "prefix_hit_rate": seen / blocks,
                "prefix_hit_unit": "blocks",
                "blocks": blocks,
                "blocks_seen_before": seen,
            }
    return found | {"prefix_hit_token_rate": by_token, "block_size": size}


def histogram_lines(values: Longs, title: str, bins: int = 12) -> list[str]:
    """A histogram for the terminal: bins of equal ratio, since lengths spread over decades."""
    low, high = max(1, int(values.min())), int(values.max()) + 1
    edges = np.unique(np.geomspace(low, high, bins + 1).round().astype(np.int64))
    if len(edges) < 2:
        edges = np.array([low, high + 1])
    edges[-1] = max(edges[-1], high)
    counts = np.histogram(np.maximum(values, low), bins=edges)[0]
    lines = [title]
    for begin, end, count in zip(edges[:-1], edges[1:], counts, strict=True):
        eighths = round(8 * _BAR_WIDTH * count / max(counts.max(), 1))
        bar = _BARS[8] * (eighths // 8) + _BARS[eighths % 8]
        lines.append(f"  {begin:>8,} - {end - 1:>9,}  {count:>9,}  {bar}".rstrip())
    return lines


def info_lines(told: Mapping[str, Any]) -> list[str]:
    """``describe``'s figures for a person."""
    lines = [f"{told['path']}: {told['format']}, {counted(told['rows'], 'row')}"]
    if told["requests"] != told["rows"]:
        lines.append(f"  requests replayed   {told['requests']:,}")
    if told["bad_rows"]:
        lines.append(f"  bad rows left out   {told['bad_rows']:,}")
    lines.append(f"  span                {told['span_s']:,.3f} s")
    if told["rate_per_s"] is not None:
        burst = told["burstiness"]
        lines.append(f"  rate                {told['rate_per_s']:.4g} requests/s")
        over = ", ".join(f"{name} {value:.3g}" for name, value in burst["dispersion"].items())
        lines.append(
            f"  burstiness          cv of gaps {burst['cv_of_gaps']:.3g}" + (f"; dispersion {over}" if over else "")
        )
        lines[-1] += " (1: Poisson)"
    lines.append(f"  {'tokens':<18}{'mean':>11}{'p50':>10}{'p90':>10}{'p99':>10}{'max':>10}")
    for name in ("prompt", "output"):
        row = told[name]
        figures = f"{row['mean']:>11,.1f}" + "".join(
            f"{row[key]:>10,.4g}" if row[key] < 1e4 else f"{row[key]:>10,.0f}" for key in ("p50", "p90", "p99", "max")
        )
        lines.append(f"  {name:<18}{figures}")
    if told["sessions"]:
        sessions = told["sessions"]
        turns = f"{sessions['mean_turns']:.3g} turns each, at most {sessions['max_turns']}"
        lines.append(f"  sessions            {sessions['count']:,}, {turns}")
    if told["prefix_hit_rate"] is not None:
        what = (
            f"of {told['blocks']:,} blocks of {told['block_size']}"
            if told["prefix_hit_unit"] == "blocks"
            else "of prompt tokens"
        )
        lines.append(f"  seen before         {told['prefix_hit_rate']:.1%} {what} (unlimited cache)")
        if told["prefix_hit_unit"] == "blocks":
            lines[-1] += f", {told['prefix_hit_token_rate']:.1%} of prompt tokens"
    lines += fact_lines(told["facts"])
    return lines


def fact_lines(facts: Mapping[str, Any]) -> list[str]:
    """What else a file tells, one line each."""
    return [f"  {name.replace('_', ' ')}: {value}" for name, value in facts.items()]


def note_lines(notes: Sequence[str]) -> list[str]:
    """What the reader inferred, one line each."""
    return [f"  - {note}" for note in notes]
