"""A sweep: every combination of some settings simulated on the same requests, one row each.

A row is on disk as soon as its point is done: ``points/00017.parquet``, written whole or not at all. A sweep that was
killed goes on where it stopped; what it holds is told apart from another sweep by a fingerprint of the scenario and
of its requests.
"""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import kvplan
from kvplan.errors import InfeasibleError, InputError
from kvplan.files import atomic_path, make_folder, write_json
from kvplan.metrics.percentiles import RANKS
from kvplan.metrics.summary import run_summary
from kvplan.metrics.tables import requests_table
from kvplan.planning.search_space import variant
from kvplan.resolve import resolve
from kvplan.simulation import run_replica, workload_of

if TYPE_CHECKING:
    import pandas as pd

    from kvplan.scenario import Scenario

Row = dict[str, Any]
Engine = Callable[["Scenario", list[int]], Iterable[tuple[int, Row]]]
"""Runs the points of those numbers and yields each row when it is done, in any order."""

_METRICS = ("queue_s", "ttft_s", "itl_s", "tpot_s", "e2e_s")


def points(scenario: Scenario) -> list[dict[str, Any]]:
    """The combinations of ``sweep:``, the last key fastest: dotted key to value.

    Raises:
        InputError: the scenario sweeps nothing.
    """
    if not scenario.sweep:
        raise InputError(
            "the scenario names nothing to sweep", field="sweep", hint="sweep: {cache.block_size: [16, 32]}"
        )
    return [dict(zip(scenario.sweep, values, strict=True)) for values in itertools.product(*scenario.sweep.values())]


def run_point(scenario: Scenario, number: int) -> Row:
    """One point: its settings, then what came of it. A point that cannot run is a row with the reason."""
    changes = points(scenario)[number]
    row: Row = {"point": number, **{key: _plain(value) for key, value in changes.items()}}
    trace = scenario.trace()
    try:
        run = variant(scenario, changes)
        deployment = resolve(run)
        replica, wall_s, warnings = run_replica(deployment, workload_of(trace), trace)
    except (InputError, InfeasibleError) as error:
        return {**row, "status": "cannot run", "reason": error.message}
    requests = requests_table("point", replica.core, trace)
    summary = run_summary("point", run, deployment, replica, requests, wall_s, warnings)
    return {**row, "status": "done", "reason": "", "warnings": "; ".join(warnings), **figures(summary)}


def figures(run: Mapping[str, Any]) -> Row:
    """The columns of a row, of an entry of ``runs``: nothing in them depends on the machine."""
    latency, throughput = run["latency"], run["throughput"]
    settings = run["settings"]
    gpus = settings["tensor_parallel_size"] * settings["pipeline_parallel_size"]
    tokens = throughput["output_tokens_per_s"]
    return {
        "gpus": gpus,
        "gpu_hours_per_million_tokens": gpus / tokens * 1e6 / 3600 if tokens else None,
        "output_tokens_per_s": tokens,
        "requests_per_s": throughput["requests_per_s"],
        "goodput_requests_per_s": throughput["goodput_requests_per_s"],
        **{
            f"{metric}.{rank}": latency[metric][rank]
            for metric in _METRICS
            for rank in ("mean", *(f"p{rank}" for rank in RANKS))
        },
        "concurrency_mean": run["concurrency"]["mean"],
        "concurrency_peak": run["concurrency"]["peak"],
        "pool_gib": run["memory"]["pool_gib"],
        **{f"memory.{part}": share for part, share in run["memory"]["mean"].items()},
        "hit_rate": run["prefix_cache"]["hit_rate"],
        **{name: run["requests"][name] for name in ("total", "finished", "refused", "preemptions")},
        "steps": run["sim"]["steps"],
    }


def sweep(
    scenario: Scenario, folder: str | Path, engine: Engine, *, progress: Callable[[int, int], None] | None = None
) -> pd.DataFrame:
    """Runs the points that ``folder`` does not hold yet. Returns the whole table, and writes it to sweep.parquet.

    Raises:
        InputError: the folder holds another sweep.
    """
    import pandas as pd

    total = len(points(scenario))
    place = make_folder(folder)
    _claim(place, scenario)
    rows = make_folder(place / "points")
    left = [number for number in range(total) if not (rows / f"{number:05d}.parquet").exists()]
    done = total - len(left)
    if progress is not None:
        progress(done, total)
    for number, row in engine(scenario, left) if left else ():
        with atomic_path(rows / f"{number:05d}.parquet") as path:
            pd.DataFrame([row]).to_parquet(path, index=False)
        done += 1
        if progress is not None:
            progress(done, total)
    table = pd.DataFrame([_read(rows / f"{number:05d}.parquet") for number in range(total)])
    with atomic_path(place / "sweep.parquet") as path:
        table.to_parquet(path, index=False)
    return table


def pareto(table: pd.DataFrame, cost: str, latency: str) -> pd.Series:
    """Which rows no other row beats: none is as good in one column and better in the other. Smaller is better."""
    import numpy as np

    wanted = table[[cost, latency]].to_numpy(float)
    complete = ~np.isnan(wanted).any(axis=1) & (table["status"] == "done").to_numpy()
    front = complete.copy()
    for i in np.flatnonzero(complete):
        others = wanted[complete]
        front[i] = not ((others <= wanted[i]).all(axis=1) & (others < wanted[i]).any(axis=1)).any()
    return table["point"].notna() & front


def here(scenario: Scenario, numbers: list[int]) -> Iterator[tuple[int, Row]]:
    """One point after the other, in this process."""
    for number in numbers:
        yield number, run_point(scenario, number)


def _read(path: Path) -> Row:
    import pandas as pd

    row: Row = {str(key): value for key, value in pd.read_parquet(path).iloc[0].to_dict().items()}
    return row


def _claim(folder: Path, scenario: Scenario) -> None:
    """Marks the folder as this sweep's."""
    digest = hashlib.sha256()
    mapping = scenario.to_mapping(relative_to=folder.resolve())
    digest.update(json.dumps([kvplan.__version__, mapping], sort_keys=True).encode())
    trace = scenario.trace()
    for column in (trace.arrival_s, trace.prompt_tokens, trace.output_tokens):
        digest.update(column.tobytes())
    mark = {"fingerprint": digest.hexdigest(), "points": len(points(scenario)), "scenario": mapping}
    path = folder / "sweep.json"
    if path.exists():
        try:
            known = json.loads(path.read_text(encoding="utf-8"))["fingerprint"]
        except (ValueError, KeyError, TypeError) as error:
            raise InputError("is not the mark of a sweep", source=str(path)) from error
        if known != mark["fingerprint"]:
            raise InputError("holds another sweep", field="--output", value=str(folder), hint="choose another folder")
        return
    rows = folder / "points"
    if rows.is_dir() and any(rows.iterdir()):  # they would pass for rows of this sweep
        hint = "choose another folder"
        raise InputError("holds a folder points that is no sweep's", field="--output", value=str(folder), hint=hint)
    write_json(path, mark)


def _plain(value: Any) -> Any:
    return value if isinstance(value, (int, float, str, bool)) else json.dumps(value)
