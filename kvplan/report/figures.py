"""Plotly figures as plain dictionaries.

No plotly import: the page carries plotly.js, and a figure is data and layout. Colours are names such as
``$used`` that the page's script looks up among its CSS variables, so that one palette serves light, dark
and print.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from kvplan.report.runs import PART_WORDS, PARTS, Run, plotly_text
from kvplan.report.thin import merge_buckets, thin_extremes

if TYPE_CHECKING:
    import pandas as pd

POINTS = 480
DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "solid")


def compact(values: NDArray[Any], digits: int = 4) -> list[float | None]:
    """Rounded to ``digits`` significant figures, which no eye can tell on a screen; NaN becomes null."""
    return [float(f"{value:.{digits}g}") if np.isfinite(value) else None for value in np.asarray(values, float)]


def rows(panels: int, gap: float) -> list[tuple[float, float]]:
    """Domains (bottom, top) in [0, 1] of equal panels, first on top."""
    height = (1 - gap * (panels - 1)) / panels
    return [(1 - index * (height + gap) - height, 1 - index * (height + gap)) for index in range(panels)]


def axis(number: int, letter: str) -> str:
    return f"{letter}axis{'' if number == 0 else number + 1}"


def ref(number: int, letter: str) -> str:
    return f"{letter}{'' if number == 0 else number + 1}"


def panel_title(text: str, top: float) -> dict[str, Any]:
    return {
        "text": text,
        "x": 0,
        "y": top,
        "xref": "paper",
        "yref": "paper",
        "xanchor": "left",
        "yanchor": "bottom",
        "showarrow": False,
        "font": {"size": 13, "color": "$ink"},
    }


def pool_over_time(runs: list[Run], timeline: pd.DataFrame) -> dict[str, Any]:
    """Stacked shares of the pool, one panel a run, and the peak allocation, which thinning never lowers."""
    data: list[dict[str, Any]] = []
    layout: dict[str, Any] = {"height": 90 + 190 * len(runs), "annotations": []}
    for place, (run, (bottom, top)) in enumerate(zip(runs, rows(len(runs), 0.14 / max(len(runs), 1)), strict=True)):
        frame = timeline[timeline["run"] == run.key]
        weight = frame["dt_s"].to_numpy(float) * (frame["steps"].to_numpy(float) > 0)
        starts, shares = merge_buckets(weight, frame[list(PARTS)].to_numpy(float), POINTS)
        t = compact(frame["t_s"].to_numpy(float)[starts], 6)
        axes = {"xaxis": ref(place, "x"), "yaxis": ref(place, "y")}
        for column, part in enumerate(PARTS):
            data.append(
                {
                    "type": "scatter",
                    "mode": "lines",
                    "stackgroup": run.index,
                    "name": part,
                    "legendgroup": part,
                    "showlegend": place == 0,
                    "x": t,
                    "y": compact(shares[:, column]),
                    **axes,
                    "line": {"width": 0.4, "color": "$surface", "shape": "hv"},
                    "fillcolor": f"${part}",
                    "hovertemplate": f"%{{y:.1%}} {part}: {PART_WORDS[part]}<extra></extra>",
                }
            )
        peak = frame["allocated_max"].to_numpy(float)
        kept = thin_extremes(frame["t_s"].to_numpy(float), peak, POINTS)
        data.append(
            {
                "type": "scatter",
                "mode": "lines",
                "name": "peak allocated",
                "legendgroup": "peak",
                "showlegend": place == 0,
                "x": compact(frame["t_s"].to_numpy(float)[kept], 6),
                "y": compact(peak[kept]),
                **axes,
                "line": {"width": 1, "color": "$muted", "dash": "dot", "shape": "hv"},
                "hovertemplate": "%{y:.1%} peak allocated<extra></extra>",
            }
        )
        layout[axis(place, "x")] = {
            "matches": "x" if place else None,
            "showticklabels": place == len(runs) - 1,
            "title": {"text": "time, s"} if place == len(runs) - 1 else None,
            "anchor": ref(place, "y"),
        }
        layout[axis(place, "y")] = {
            "domain": [bottom, top],
            "range": [0, 1.0],
            "tickformat": ".0%",
            "nticks": 5,
            "anchor": ref(place, "x"),
        }
        layout["annotations"].append(panel_title(plotly_text(run.key), top))
    layout["hovermode"] = "x unified"
    return {"data": data, "layout": layout}


LOAD = (
    ("running", "sequences running", "running_max"),
    ("waiting", "requests waiting", "waiting_max"),
    ("preemptions", "preemptions", None),
)


def load_over_time(runs: list[Run], timeline: pd.DataFrame) -> dict[str, Any]:
    """Concurrency, queue and preemptions; the line is the mean of a bucket, the shade reaches its maximum."""
    data: list[dict[str, Any]] = []
    layout: dict[str, Any] = {"height": 560, "annotations": [], "hovermode": "x unified"}
    for place, ((column, title, peak), (bottom, top)) in enumerate(zip(LOAD, rows(3, 0.09), strict=True)):
        axes = {"xaxis": ref(place, "x"), "yaxis": ref(place, "y")}
        for run in runs:
            frame = timeline[timeline["run"] == run.key]
            t = frame["t_s"].to_numpy(float)
            look = {
                "name": plotly_text(run.key),
                "legendgroup": run.index,
                "showlegend": place == 0,
                "type": "scatter",
                "mode": "lines",
                **axes,
            }
            values = frame[column].to_numpy(float)
            line = {"color": f"$run{run.tone}", "width": 1.6, "dash": DASHES[run.tone], "shape": "hv"}
            text = plotly_text(run.key)
            if peak:
                starts, mean = merge_buckets(frame["dt_s"].to_numpy(float), values[:, None], POINTS)
                high = np.maximum.reduceat(frame[peak].to_numpy(float), starts) if len(starts) else mean[:, 0]
                x = compact(t[starts], 6)
                data.append(
                    {
                        **look,
                        "x": x,
                        "y": compact(mean[:, 0]),
                        "line": line,
                        "customdata": compact(high),
                        "meta": text,
                        "hovertemplate": "%{meta}: %{y:.1f} mean, %{customdata:.0f} peak<extra></extra>",
                    }
                )
                data.append(
                    {
                        **look,
                        "x": x,
                        "y": compact(high),
                        "line": {"width": 0, "shape": "hv"},
                        "fill": "tonexty",
                        "fillcolor": f"$run{run.tone}@0.16",
                        "showlegend": False,
                        "hoverinfo": "skip",
                    }
                )
            else:
                starts, _ = merge_buckets(np.ones(len(t)), values[:, None], POINTS)
                total = np.add.reduceat(values, starts) if len(starts) else values
                data.append(
                    {
                        **look,
                        "x": compact(t[starts], 6),
                        "y": compact(total),
                        "line": line,
                        "meta": text,
                        "hovertemplate": "%{meta}: %{y:.0f}<extra></extra>",
                    }
                )
        layout[axis(place, "x")] = {
            "matches": "x" if place else None,
            "showticklabels": place == 2,
            "anchor": ref(place, "y"),
            "title": {"text": "time, s"} if place == 2 else None,
        }
        layout[axis(place, "y")] = {
            "domain": [bottom, top],
            "rangemode": "tozero",
            "nticks": 4,
            "anchor": ref(place, "x"),
        }
        layout["annotations"].append(panel_title(title, top))
    return {"data": data, "layout": layout}


def memory_maps(panels: list[dict[str, Any]]) -> dict[str, Any]:
    """Panels for the page's script, which expands the run lengths; see ``memory_map.panel``."""
    layout: dict[str, Any] = {"height": 70 + 280 * len(panels), "annotations": [], "hovermode": "closest"}
    for place, (panel, (bottom, top)) in enumerate(zip(panels, rows(len(panels), 0.12 / len(panels)), strict=True)):
        layout[axis(place, "x")] = {
            "matches": "x" if place else None,
            "showticklabels": place == len(panels) - 1,
            "showgrid": False,
            "title": {"text": "time, s"} if place == len(panels) - 1 else None,
            "anchor": ref(place, "y"),
        }
        layout[axis(place, "y")] = {
            "domain": [bottom, top],
            "range": [0, 1],
            "tickformat": ".0%",
            "nticks": 5,
            "showgrid": False,
            "anchor": ref(place, "x"),
            "title": {"text": "address in the pool"},
        }
        layout["annotations"].append(panel_title(panel["run"], top))
    return {"maps": panels, "layout": layout}
