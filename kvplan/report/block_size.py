"""What a block size costs and saves: from the trace's lengths alone, and as simulated where a sweep did."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from kvplan.report.figures import axis, compact, panel_title, ref, rows
from kvplan.report.kernel_time import KernelTimes
from kvplan.report.runs import Run
from kvplan.report.shown import is_number

if TYPE_CHECKING:
    import pandas as pd

SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
KNEE_LOSS = 0.01


@dataclass(frozen=True)
class LengthPoint:
    """One block size, from lengths alone (a sequence at its longest: prompt + output - 1 tokens)."""

    block_size: int
    empty_fraction: float
    """Slots of the allocation that stay empty at the sequence's end, over all finished requests."""
    blocks_per_sequence: float
    """Entries of its block table."""
    allocations_per_s: float | None
    """Blocks taken from the pool a second, without preemptions and prefix hits."""


def from_lengths(requests: pd.DataFrame, requests_per_s: float | None) -> list[LengthPoint]:
    """One point for each of ``SIZES``; empty where nothing finished."""
    done = requests[requests["status"] == "finished"]
    tokens = (done["prompt_tokens"] + done["output_tokens"] - 1).to_numpy(np.int64)
    if not len(tokens):
        return []
    points = []
    for size in SIZES:
        blocks = -(-tokens // size)
        points.append(
            LengthPoint(
                size,
                1 - float(tokens.sum()) / float(blocks.sum() * size),
                float(blocks.mean()),
                float(blocks.mean()) * requests_per_s if requests_per_s is not None else None,
            )
        )
    return points


FOLLOWS = ("block_size", "max_model_len")
"""Settings that may differ in a block-size comparison: the size, and what the engine derives from the pool."""


def sweep_points(runs: list[Run]) -> list[tuple[int, Run]]:
    """(block size, run) ascending, of the paged runs whose settings are the base's but for it; empty under two."""
    points: dict[int, Run] = {}
    base = _compared(runs[0])
    for run in runs:
        size = run.get("settings.block_size")
        if is_number(size) and run.get("settings.layout") == "paged" and _compared(run) == base:
            points.setdefault(int(size), run)
    return sorted(points.items()) if len(points) > 1 else []


def _compared(run: Run) -> dict[str, Any]:
    settings = run.get("settings") or {}
    return {key: value for key, value in settings.items() if key not in FOLLOWS}


def knee(points: list[tuple[int, Run]]) -> int | None:
    """The largest block size that costs under 1% of the best concurrency and of the best throughput."""
    marks = [(size, run.get("concurrency.mean"), run.get("throughput.output_tokens_per_s")) for size, run in points]
    if not marks or not all(is_number(value) for mark in marks for value in mark):
        return None
    most, fastest = max(mark[1] for mark in marks), max(mark[2] for mark in marks)
    keep = 1 - KNEE_LOSS
    return max((mark[0] for mark in marks if mark[1] >= keep * most and mark[2] >= keep * fastest), default=None)


PANELS = (
    ("memory.mean.internal", "internal waste, share of the pool", ".2~%"),
    ("concurrency.mean", "sequences running, mean", ".3~g"),
    ("throughput.output_tokens_per_s", "output tokens/s", ".3~s"),
    ("prefix_cache.hit_rate", "prefix hit rate", ".3~%"),
)


Series = tuple[str, list[int], list[Any], str]
"""Title, block sizes, values, format of the values."""


def figure(
    points: list[tuple[int, Run]], lengths: list[LengthPoint], kernel: KernelTimes | None = None
) -> dict[str, Any]:
    """Small multiples over block size: simulated where there is a sweep, else from the lengths; and what attention was
    measured to take."""
    mark = knee(points) if points else None
    series = _simulated(points) if points else _told_by_lengths(lengths)
    if kernel is not None:
        title = f"decode attention of a step, {kernel.words}, seconds"
        series.append((title, list(kernel.seconds), list(kernel.seconds.values()), ".3~s"))
    sizes = sorted({size for _, at, _, _ in series for size in at})
    data: list[dict[str, Any]] = []
    layout: dict[str, Any] = {
        "height": 70 + 130 * len(series),
        "annotations": [],
        "shapes": [],
        "hovermode": "x",
    }
    for place, ((title, at, values, form), (bottom, top)) in enumerate(
        zip(series, rows(len(series), 0.11), strict=True)
    ):
        data.append(
            {
                "type": "scatter",
                "mode": "lines+markers",
                "x": at,
                "y": compact(np.array(values, float)),
                "xaxis": ref(place, "x"),
                "yaxis": ref(place, "y"),
                "showlegend": False,
                "name": title,
                "line": {"color": "$run0", "width": 1.8},
                "marker": {"size": 7, "color": "$run0"},
                "hovertemplate": f"block size %{{x}}: %{{y:{form}}}<extra></extra>",
            }
        )
        layout[axis(place, "x")] = {
            "type": "log",
            "anchor": ref(place, "y"),
            "tickvals": sizes,
            "ticktext": [str(size) for size in sizes],
            "showticklabels": place == len(series) - 1,
            "matches": "x" if place else None,
            "title": {"text": "block size, tokens"} if place == len(series) - 1 else None,
        }
        layout[axis(place, "y")] = {
            "domain": [bottom, top],
            "rangemode": "tozero",
            "tickformat": form,
            "nticks": 4,
            "anchor": ref(place, "x"),
        }
        layout["annotations"].append(panel_title(title, top))
        if mark:
            layout["shapes"].append(
                {
                    "type": "line",
                    "xref": ref(place, "x"),
                    "yref": ref(place, "y") + " domain",
                    "x0": mark,
                    "x1": mark,
                    "y0": 0,
                    "y1": 1,
                    "line": {"color": "$ink", "width": 1, "dash": "dot"},
                }
            )
    if mark:
        layout["annotations"].append(
            {
                "xref": "x",
                "yref": "y domain",
                "x": float(np.log10(mark)),
                "y": 1,
                "text": f"knee: {mark}",
                "showarrow": False,
                "xanchor": "left",
                "xshift": 5,
                "yanchor": "top",
                "font": {"size": 12, "color": "$ink"},
                "bgcolor": "$surface",
            }
        )
    return {"data": data, "layout": layout}


def _simulated(points: list[tuple[int, Run]]) -> list[Series]:
    sizes = [size for size, _ in points]
    series = [(title, sizes, [run.get(path) for _, run in points], form) for path, title, form in PANELS]
    return series if any(series[-1][2]) else series[:-1]


def _told_by_lengths(lengths: list[LengthPoint]) -> list[Series]:
    sizes = [point.block_size for point in lengths]
    return [
        ("slots left empty at a sequence's end", sizes, [point.empty_fraction for point in lengths], ".2~%"),
        ("block-table entries a sequence", sizes, [point.blocks_per_sequence for point in lengths], ".3~s"),
    ]
