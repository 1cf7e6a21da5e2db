"""The picture of a profile: what each operation costs, and attention over its axes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from kvplan.files import with_generator, write_text
from kvplan.timing.attention_tables import attention_kinds, spread
from kvplan.timing.profile import Profile, RankProfile

MICROSECONDS = 1e6
MOST_LINES = 9


def figure(profile: Profile, tensor_parallel_size: int) -> Any:
    """A plotly figure: operations by tokens and by samples, decode by context, prefill by tokens, all per call."""
    from plotly.graph_objects import Scatter
    from plotly.subplots import make_subplots

    rank = profile.rank(tensor_parallel_size)
    titles = [
        "operations, by tokens in the step",
        "operations, by sampling rows",
        *("attention of decode, by context", "attention of prefill, by tokens"),
    ]
    drawn = make_subplots(rows=2, cols=2, subplot_titles=titles, vertical_spacing=0.12)
    for op in rank.operations:
        column = {"tokens": 1, "samples": 2}.get(op.axis)
        if column is not None:
            drawn.add_trace(
                Scatter(x=op.at, y=op.seconds * MICROSECONDS, name=op.name, mode="lines+markers", marker={"size": 3}),
                row=1,
                col=column,
            )
    for column, (name, x, y) in enumerate_lines(rank):
        drawn.add_trace(Scatter(x=x, y=y, name=name, mode="lines+markers", marker={"size": 3}), row=2, col=column)
    drawn.update_xaxes(type="log")
    drawn.update_yaxes(type="log", title_text="µs")
    drawn.update_layout(
        template="plotly_white", height=900, title=f"{profile.name}, tensor_parallel_size {tensor_parallel_size}"
    )
    return drawn


def enumerate_lines(rank: RankProfile) -> list[tuple[int, tuple[str, Any, Any]]]:
    """(column, (name, x, microseconds)): one line for each number of decode rows, and for each prior."""
    kinds = attention_kinds(rank.attention)
    lines: list[tuple[int, tuple[str, Any, Any]]] = []
    for kind, column, by, along, word in (("decode", 1, 0, 1, "rows"), ("prefill", 2, 1, 0, "before")):
        rows = kinds[kind]
        for value in spread(np.unique(rows[:, by]), MOST_LINES):
            chosen = rows[rows[:, by] == value]
            chosen = chosen[np.argsort(chosen[:, along])]
            if len(chosen) > 1:
                name = f"{kind}, {value:,.0f} {word}"
                lines.append((column, (name, chosen[:, along], chosen[:, 2] * MICROSECONDS)))
    return lines


def write_figure(profile: Profile, tensor_parallel_size: int, path: Path) -> None:
    """The picture as one page that opens offline."""
    drawn = figure(profile, tensor_parallel_size)
    write_text(path, with_generator(drawn.to_html(include_plotlyjs=True, full_html=True)))
