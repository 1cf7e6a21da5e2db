"""How long requests waited: cumulative distributions against the objectives."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from kvplan.report.figures import DASHES, axis, compact, panel_title, ref, rows
from kvplan.report.runs import Run, plotly_text

if TYPE_CHECKING:
    import pandas as pd

QUANTILES = np.unique(np.concatenate([np.linspace(0, 0.9, 91), np.linspace(0.9, 0.99, 37), np.linspace(0.99, 1, 21)]))


FINE = (1.0, 1.2, 1.5, 2.0, 2.5, 3.0, 3.5, 4.0, 5.0, 6.0, 8.0)


def log_ticks(low: float, high: float, most: int = 8) -> list[float]:
    """Round numbers between ``low`` and ``high`` for a logarithmic axis, at most ``most`` where it can."""
    decades = range(int(np.floor(np.log10(low))), int(np.ceil(np.log10(high))) + 1)
    ticks: list[float] = []
    for steps in ((1.0,), (1.0, 3.0), (1.0, 2.0, 5.0), (1.0, 1.5, 2.0, 3.0, 5.0, 7.0), FINE):
        found = [float(f"{step}e{decade}") for decade in decades for step in steps]
        inside = [tick for tick in found if low * 0.98 <= tick <= high * 1.02]
        if len(inside) <= most or not ticks:
            ticks = inside
    return ticks


def duration_tick(seconds: float) -> str:
    return f"{seconds * 1e3:g} ms" if seconds < 0.9995 else f"{seconds:g} s"


LATENCIES = (
    ("ttft_s", "time to first token"),
    ("tpot_s", "time per output token"),
    ("e2e_s", "end to end"),
)


def latency_distributions(runs: list[Run], requests: pd.DataFrame, slo: dict[str, dict[str, float]]) -> dict[str, Any]:
    """Share of requests at least this fast, one panel a latency, the objective as a line to stay left of."""
    data: list[dict[str, Any]] = []
    layout: dict[str, Any] = {"height": 620, "annotations": [], "shapes": [], "hovermode": "closest"}
    for place, ((column, title), (bottom, top)) in enumerate(zip(LATENCIES, rows(3, 0.13), strict=True)):
        for run in runs:
            values = requests.loc[requests["run"] == run.key, column].dropna().to_numpy(float)
            if not len(values):
                continue
            data.append(
                {
                    "type": "scatter",
                    "mode": "lines",
                    "name": plotly_text(run.key),
                    "legendgroup": run.index,
                    "showlegend": place == 0,
                    "xaxis": ref(place, "x"),
                    "yaxis": ref(place, "y"),
                    "x": compact(np.maximum(np.quantile(values, QUANTILES), 1e-4)),
                    "y": compact(QUANTILES, 5),
                    "line": {"color": f"$run{run.tone}", "width": 1.8, "dash": DASHES[run.tone]},
                    "meta": plotly_text(run.key),
                    "hovertemplate": "%{meta}: %{y:.1%} within %{x:.4~g} s<extra></extra>",
                }
            )
        # Names of objectives are ours (p99, mean, ...), refused by the scenario's schema otherwise.
        for name, bound in (slo.get(column) or {}).items():
            layout["shapes"].append(
                {
                    "type": "line",
                    "xref": ref(place, "x"),
                    "yref": ref(place, "y") + " domain",
                    "x0": bound,
                    "x1": bound,
                    "y0": 0,
                    "y1": 1,
                    "line": {"color": "$ink", "width": 1, "dash": "dot"},
                }
            )
            layout["annotations"].append(
                {
                    "xref": ref(place, "x"),
                    "yref": ref(place, "y") + " domain",
                    "x": float(np.log10(bound)),
                    "y": 0.04,
                    "text": f"objective: {plotly_text(name)} ≤ {bound:g} s",
                    "showarrow": False,
                    "xanchor": "right",
                    "xshift": -4,
                    "yanchor": "bottom",
                    "font": {"size": 12, "color": "$ink"},
                    "bgcolor": "$surface",
                }
            )
        drawn = [np.array(trace["x"], float) for trace in data if trace["xaxis"] == ref(place, "x")]
        seen = np.concatenate([*drawn, list((slo.get(column) or {}).values())]) if drawn else np.ones(1)
        low, high = float(seen.min()) / 1.05, float(seen.max()) * 1.05
        ticks = log_ticks(low, high)
        layout[axis(place, "x")] = {
            "type": "log",
            "anchor": ref(place, "y"),
            "tickmode": "array",
            "tickvals": ticks,
            "range": [float(np.log10(low)), float(np.log10(high))],
            "ticktext": [duration_tick(tick) for tick in ticks],
            "tickangle": 0,
        }
        layout[axis(place, "y")] = {
            "domain": [bottom, top],
            "range": [0, 1.02],
            "tickformat": ".0%",
            "nticks": 5,
            "anchor": ref(place, "x"),
        }
        layout["annotations"].append(panel_title(title, top))
    return {"data": data, "layout": layout}
