"""Two pictures of a sweep: a figure over two of its keys, and cost against latency with the front of the best."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvplan.errors import InputError
from kvplan.files import GENERATOR, write_text

if TYPE_CHECKING:
    import pandas as pd


def write_figures(path: Path, table: pd.DataFrame, keys: list[str], metric: str, cost: str, latency: str) -> None:
    """One HTML page with both; it needs no network.

    Args:
        keys: one or two swept keys, for the axes. Over the other keys the smallest value is shown.
        metric: the column to show over them.
        cost, latency: the columns of the front.

    Raises:
        InputError: a column that the table does not have.
    """
    for field, name in (*(("--figure", key) for key in keys), ("--metric", metric), ("--cost", cost)):
        if name not in table.columns:
            raise InputError("is no column of the sweep", field=field, value=name)
    done = table[table["status"] == "done"]
    parts = [_over_keys(done, keys, metric), _front(done, keys, cost, latency)]
    body = "".join(
        part.to_html(full_html=False, include_plotlyjs=number == 0, default_height="600px")
        for number, part in enumerate(parts)
    )
    write_text(path, f'<!doctype html><meta charset=utf-8>{GENERATOR}"><title>kvplan sweep</title>{body}')


def _over_keys(done: pd.DataFrame, keys: list[str], metric: str) -> Any:
    import plotly.graph_objects as go

    smallest = done.groupby(keys, sort=True)[metric].min()
    note = "" if len(smallest) == len(done) else ", the smallest over the other keys"
    if len(keys) == 1:
        figure = go.Figure(go.Scatter(x=[str(x) for x in smallest.index], y=smallest.to_numpy(), mode="lines+markers"))
        figure.update_layout(xaxis_title=keys[0], yaxis_title=metric)
    else:
        grid = smallest.unstack(keys[1])
        figure = go.Figure(
            go.Heatmap(
                x=[str(x) for x in grid.columns],
                y=[str(y) for y in grid.index],
                z=grid.to_numpy(),
                text=[[f"{value:.3g}" for value in row] for row in grid.to_numpy()],
                texttemplate="%{text}",
                colorbar_title=metric,
            )
        )
        figure.update_layout(xaxis_title=keys[1], yaxis_title=keys[0])
    figure.update_layout(title=f"{metric}{note}", xaxis_type="category")
    return figure


def _front(done: pd.DataFrame, keys: list[str], cost: str, latency: str) -> Any:
    import plotly.graph_objects as go

    swept = list(done.columns[1 : done.columns.get_loc("status")])
    labels = ["<br>".join(f"{key} {row[key]}" for key in swept) for _, row in done.iterrows()]
    figure = go.Figure(
        go.Scatter(x=done[cost], y=done[latency], mode="markers", text=labels, name="all points", opacity=0.5)
    )
    front = done[done["pareto"]].sort_values(cost)
    figure.add_trace(go.Scatter(x=front[cost], y=front[latency], mode="lines+markers", name="Pareto front"))
    figure.update_layout(title="Cost against latency", xaxis_title=cost, yaxis_title=latency)
    return figure
