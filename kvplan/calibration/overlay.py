"""The picture of a validation: the pool, the queue and the latencies, predicted over observed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from kvplan.calibration.compare import allocated
from kvplan.calibration.validate import Validation
from kvplan.files import with_generator, write_text

OBSERVED, PREDICTED = "#444444", "#d95f02"
LATENCIES = {"ttft_s": "time to first token, s", "tpot_s": "time per output token, s", "e2e_s": "end to end, s"}


def overlay(validation: Validation) -> Any:
    """A plotly figure: KV usage, running and waiting over time; below them the latencies' distributions."""
    from plotly.graph_objects import Figure, Scatter
    from plotly.subplots import make_subplots

    observed, timeline = validation.comparison.observed, validation.timeline
    titles = ["KV cache in live allocations", "requests running", "requests waiting", *LATENCIES.values()]
    figure: Figure = make_subplots(rows=2, cols=3, subplot_titles=titles, vertical_spacing=0.16)
    middle = timeline["t_s"] + timeline["dt_s"] / 2
    curves = {"kv_used": allocated(timeline), "running": timeline["running"], "waiting": timeline["waiting"]}
    shown: set[str] = set()

    def draw(column: int, row: int, x: Any, y: Any, name: str) -> None:
        colour = OBSERVED if name == "observed" else PREDICTED
        line = {"color": colour, "width": 1.5, "dash": "solid" if name == "observed" else "dash"}
        figure.add_trace(
            Scatter(x=x, y=y, name=name, mode="lines", line=line, showlegend=name not in shown, legendgroup=name),
            row=row,
            col=column,
        )
        shown.add(name)

    for column, (gauge, ours) in enumerate(curves.items(), 1):
        if gauge in observed.series:
            draw(column, 1, observed.series["t_s"], observed.series[gauge], "observed")
        draw(column, 1, middle, ours, "predicted")
        figure.update_xaxes(title_text="s", row=1, col=column)
    finished = validation.requests[validation.requests["status"] == "finished"]
    for column, measure in enumerate(LATENCIES, 1):
        if measure in observed.measured:
            draw(column, 2, *_distribution(observed.measured[measure]), "observed")
        draw(column, 2, *_distribution(finished[measure].to_numpy(float)), "predicted")
        figure.update_yaxes(title_text="share of requests", tickformat=".0%", row=2, col=column)
    figure.update_yaxes(tickformat=".0%", row=1, col=1)
    figure.update_layout(
        template="plotly_white",
        title=f"{observed.format}: {Path(observed.source).name}",
        height=760,
        legend={"orientation": "h", "y": 1.08, "x": 1, "xanchor": "right"},
    )
    return figure


def write_overlay(validation: Validation, path: Path) -> None:
    """The picture as one page that opens offline."""
    drawn = overlay(validation)
    write_text(path, with_generator(drawn.to_html(include_plotlyjs=True, full_html=True)))


def _distribution(values: Any) -> tuple[Any, Any]:
    values = np.sort(values[np.isfinite(values)])
    return values, np.arange(1, len(values) + 1) / max(len(values), 1)
