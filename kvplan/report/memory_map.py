"""The physical memory map: address × time, one colour a request, holes left open."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from kvplan.report.runs import Run, plotly_text

if TYPE_CHECKING:
    import pandas as pd

FREE, CACHED = -1, -2
HUES = 10
MAX_COLUMNS = 400
"""Moments in one panel; several panels share twice as many, which keeps the page small."""


def grid(frame: pd.DataFrame, columns: int = MAX_COLUMNS) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """(t_s float64[T], owners int64[T, bins]) of one run, at most ``columns`` moments, evenly picked."""
    times, row = np.unique(frame["t_s"].to_numpy(dtype=np.float64), return_inverse=True)
    addresses, column = np.unique(frame["address"].to_numpy(dtype=np.float64), return_inverse=True)
    owners = np.full((len(times), len(addresses)), FREE, dtype=np.int64)
    owners[row, column] = frame["request"].to_numpy(dtype=np.int64)
    if len(times) > columns:
        picked = np.unique(np.linspace(0, len(times) - 1, columns).astype(np.intp))
        times, owners = times[picked], owners[picked]
    return times, owners


def hues(owners: NDArray[np.int64]) -> dict[int, int]:
    """A colour number in 0..HUES-1 a request, chosen when it first appears: the one least used then."""
    chosen: dict[int, int] = {}
    last = 0
    for moment in owners:
        live = [int(request) for request in np.unique(moment) if request >= 0]
        taken = np.zeros(HUES, dtype=np.int64)
        for request in live:
            if request in chosen:
                taken[chosen[request]] += 1
        for request in live:
            if request not in chosen:
                order = (np.arange(HUES) + last + 1) % HUES
                last = int(order[np.argmin(taken[order])])
                chosen[request] = last
                taken[last] += 1
    return chosen


def run_lengths(values: NDArray[np.int64]) -> list[int]:
    """[value, length, value, length, ...]"""
    starts = np.flatnonzero(np.append(True, values[1:] != values[:-1]))
    lengths = np.diff(np.append(starts, len(values)))
    return np.column_stack([values[starts], lengths]).ravel().tolist()


def panel(
    run: Run, frame: pd.DataFrame, requests: pd.DataFrame, end_s: float, columns: int = MAX_COLUMNS
) -> dict[str, Any] | None:
    """What the page's script needs to draw one run's map; None where none was recorded."""
    if frame.empty:
        return None
    times, owners = grid(frame, columns)
    last = float(times[-1])
    edges = np.append(times, max(end_s, last + (times[1] - times[0] if len(times) > 1 else 1.0)))
    colours = hues(owners)
    ids = requests["id"].to_numpy()
    prompt, output = requests["prompt_tokens"].to_numpy(), requests["output_tokens"].to_numpy()
    names = {
        request: f"<b>{plotly_text(ids[request])}</b><br>prompt {prompt[request]}, output {output[request]} tokens"
        for request in colours
        if request < len(ids)
    }
    return {
        "run": plotly_text(run.key),
        "edges": np.round(edges, 4),
        "bins": owners.shape[1],
        "owners": run_lengths(owners.ravel()),
        "names": names,
        "hues": colours,
        "pool_gib": run.get("memory.pool_gib"),
    }


def moments(frame: pd.DataFrame, rows: int = 12) -> list[dict[str, Any]]:
    """The map as a table: at ``rows`` moments, who held how much and how broken up the free space was."""
    if frame.empty:
        return []
    times, owners = grid(frame)
    picked = np.unique(np.linspace(0, len(times) - 1, rows).astype(np.intp))
    return [_moment(float(times[index]), owners[index]) for index in picked]


def _moment(t_s: float, owners: NDArray[np.int64]) -> dict[str, Any]:
    pieces = run_lengths(owners)
    holes = [length for owner, length in zip(pieces[::2], pieces[1::2], strict=True) if owner == FREE]
    return {
        "t_s": t_s,
        "requests": int(np.count_nonzero(np.unique(owners) >= 0)),
        "held": float((owners >= 0).mean()),
        "cached": float((owners == CACHED).mean()),
        "free": float((owners == FREE).mean()),
        "holes": len(holes),
        "largest_hole": max(holes, default=0) / len(owners),
    }
