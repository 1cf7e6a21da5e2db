"""The tables: the comparison of runs, and the numbers behind every figure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from markupsafe import Markup

from kvplan.report import memory_map
from kvplan.report.block_size import LengthPoint
from kvplan.report.kernel_time import PATH, KernelTimes
from kvplan.report.runs import PART_WORDS, PARTS, Run, plain
from kvplan.report.shown import at, grouped, is_number, percent, shares, shown, significant
from kvplan.report.thin import merge_buckets

if TYPE_CHECKING:
    import pandas as pd

TIMELINE_ROWS = 24


@dataclass(frozen=True)
class Table:
    """Cells are text (escaped by the template) or Markup. The first column is the row's header."""

    caption: str
    head: Sequence[str]
    rows: Sequence[Sequence[str | Markup]]


COMPARED = (
    ("concurrency.mean", "running, mean", "number"),
    ("concurrency.peak", "running, peak", "count"),
    ("memory.mean.used", "live tokens", "percent"),
    ("latency.ttft_s.p50", "TTFT p50", "seconds"),
    ("latency.ttft_s.p99", "TTFT p99", "seconds"),
    ("latency.tpot_s.p95", "TPOT p95", "seconds"),
    ("throughput.output_tokens_per_s", "output tokens", "rate"),
    ("throughput.goodput_requests_per_s", "goodput", "rate"),
    ("requests.preemptions", "preempted", "count"),
    ("requests.refused", "refused", "count"),
)


def bdi(text: str) -> Markup:
    return Markup("<bdi>{}</bdi>").format(text)


def comparison(runs: Sequence[Run]) -> Table:
    head = ["run", *(words for _, words, _ in COMPARED)]
    rows = [
        [bdi(run.label), *(shown(run.get(path), run.path(path), kind) for path, _, kind in COMPARED)] for run in runs
    ]
    return Table("Runs side by side", head, rows)


def pool_average(runs: Sequence[Run], moment: str) -> Table:
    """``moment`` is ``mean`` or ``peak``; the shown shares of a row sum to 100%."""
    rows = []
    for run in runs:
        values = [run.get(f"memory.{moment}.{part}") for part in PARTS]
        if all(is_number(value) for value in values):
            texts = shares(values)
            cells = [
                shown(value, run.path(f"memory.{moment}.{part}"), "percent", text)
                for part, value, text in zip(PARTS, values, texts, strict=True)
            ]
            rows.append([bdi(run.label), *cells])
    when = "time-weighted mean while anything ran" if moment == "mean" else "at the peak of allocation"
    return Table(f"Where the pool went, {when}", ["run", *PARTS], rows)


def _moments(frame: pd.DataFrame, columns: list[str]) -> list[tuple[float, np.ndarray]]:
    weight = frame["dt_s"].to_numpy(float)
    starts, means = merge_buckets(weight, frame[columns].to_numpy(float), TIMELINE_ROWS)
    return list(zip(frame["t_s"].to_numpy(float)[starts], means, strict=True))


def pool_over_time(runs: Sequence[Run], timeline: pd.DataFrame) -> Table:
    rows: list[list[str | Markup]] = []
    for run in runs:
        for t, means in _moments(timeline[timeline["run"] == run.key], list(PARTS)):
            texts = shares(means.tolist()) if np.isfinite(means).all() else [percent(value) for value in means]
            rows.append([bdi(run.label), f"{t:.1f}", *texts])
    return Table("Share of the pool over time (means of neighbouring buckets)", ["run", "from, s", *PARTS], rows)


def load_over_time(runs: Sequence[Run], timeline: pd.DataFrame) -> Table:
    rows: list[list[str | Markup]] = []
    for run in runs:
        frame = timeline[timeline["run"] == run.key]
        starts, means = merge_buckets(
            frame["dt_s"].to_numpy(float), frame[["running", "waiting"]].to_numpy(float), TIMELINE_ROWS
        )
        if not len(starts):
            continue
        peaks = np.maximum.reduceat(frame[["running_max", "waiting_max"]].to_numpy(float), starts)
        evicted = np.add.reduceat(frame["preemptions"].to_numpy(float), starts)
        for place, t in enumerate(frame["t_s"].to_numpy(float)[starts]):
            rows.append(
                [
                    bdi(run.label),
                    f"{t:.1f}",
                    f"{means[place, 0]:.1f}",
                    f"{peaks[place, 0]:.0f}",
                    f"{means[place, 1]:.1f}",
                    f"{peaks[place, 1]:.0f}",
                    f"{evicted[place]:.0f}",
                ]
            )
    head = ["run", "from, s", "running, mean", "peak", "waiting, mean", "peak", "preemptions"]
    return Table("Concurrency, queue and preemptions over time", head, rows)


def maps(runs: Sequence[Run], frame: pd.DataFrame) -> Table:
    rows: list[list[str | Markup]] = []
    for run in runs:
        for moment in memory_map.moments(frame[frame["run"] == run.key]):
            rows.append(
                [
                    bdi(run.label),
                    f"{moment['t_s']:.1f}",
                    grouped(moment["requests"], 0),
                    percent(moment["held"]),
                    percent(moment["cached"]),
                    percent(moment["free"]),
                    grouped(moment["holes"], 0),
                    percent(moment["largest_hole"]),
                ]
            )
    head = ["run", "at, s", "requests", "held", "cached", "free", "free pieces", "largest piece"]
    return Table("The map at twelve moments, at the map's own resolution", head, rows)


LATENCY_WORDS = {
    "queue_s": "queue",
    "ttft_s": "TTFT",
    "itl_s": "ITL",
    "tpot_s": "TPOT",
    "e2e_s": "end to end",
    "normalized_s_per_token": "normalized, per token",
}


def latencies(runs: Sequence[Run]) -> Table:
    columns = ("mean", "p50", "p90", "p95", "p99", "max")
    rows: list[list[str | Markup]] = []
    for run in runs:
        for key, words in LATENCY_WORDS.items():
            cells = [
                shown(run.get(f"latency.{key}.{column}"), run.path(f"latency.{key}.{column}"), "seconds")
                for column in columns
            ]
            rows.append([bdi(run.label), words, *cells])
    return Table("Latency percentiles", ["run", "latency", *columns], rows)


def block_sizes(points: Sequence[tuple[int, Run]]) -> Table:
    paths = (
        ("memory.mean.internal", "internal waste", "percent"),
        ("concurrency.mean", "running, mean", "number"),
        ("throughput.output_tokens_per_s", "output tokens", "rate"),
        ("latency.ttft_s.p99", "TTFT p99", "seconds"),
        ("memory.num_gpu_blocks", "blocks", "count"),
        ("prefix_cache.hit_rate", "prefix hit rate", "percent"),
        ("requests.preemptions", "preemptions", "count"),
    )
    rows = [
        [str(size), *(shown(run.get(path), run.path(path), kind) for path, _, kind in paths)] for size, run in points
    ]
    return Table("Block size, as simulated", ["block size", *(words for _, words, _ in paths)], rows)


def block_size_lengths(points: Sequence[LengthPoint]) -> Table:
    rows = [
        [
            str(point.block_size),
            f"{point.empty_fraction * 100:.2f}%",
            significant(point.blocks_per_sequence),
            f"{significant(point.allocations_per_s)}/s" if point.allocations_per_s is not None else "–",
        ]
        for point in points
    ]
    head = ["block size", "slots empty at the end", "table entries a sequence", "blocks allocated"]
    return Table("Block size, from the trace's lengths alone", head, rows)


def kernel_times(run: Run, kernel: KernelTimes) -> Table:
    """Measured attention by block size, and how much longer than at the best one."""
    best = min(kernel.seconds.values())
    rows: list[list[str | Markup]] = [
        [
            str(size),
            shown(seconds, run.path(f"{PATH}.{kernel.places[size]}.seconds"), "seconds"),
            f"{seconds / best - 1:+.1%}" if seconds > best else "the shortest",
        ]
        for size, seconds in kernel.seconds.items()
    ]
    return Table(f"Decode attention of a step, {kernel.words}", ["block size", "measured", "beyond the shortest"], rows)


def changes(diagnosis: Mapping[str, Any]) -> Table:
    """What each counterfactual gave, as numbers."""
    measures = (("concurrency", "number"), ("output_tokens_per_s", "rate"), ("ttft_p99_s", "seconds"))
    rows: list[list[str | Markup]] = []
    for index, item in enumerate(at(diagnosis, "changes") or ()):
        cells = [shown(at(item, measure), f"diagnosis.changes.{index}.{measure}", kind) for measure, kind in measures]
        rows.append([str(item.get("label", "")), str(item.get("status", "")), *cells])
    return Table("Every change simulated", ["change", "outcome", "running, mean", "output tokens", "TTFT p99"], rows)


def timing_terms(run: Run) -> Table | None:
    """What the step times are made of; None where the run did not say."""
    terms = run.get("timing.terms") or ()
    rows: list[list[str | Markup]] = [
        [
            plain(term.get("name", "")),
            shown(term.get("value"), run.path(f"timing.terms.{place}.value"), "scientific"),
            plain(term.get("unit", "")),
            plain(term.get("source", ""), 160),
        ]
        for place, term in enumerate(terms)
    ]
    return Table("Step-time coefficients", ["term", "value", "unit", "from"], rows) if rows else None


def parts_key() -> list[tuple[str, str]]:
    return [(part, PART_WORDS[part]) for part in PARTS]
