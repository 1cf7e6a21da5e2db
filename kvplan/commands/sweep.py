"""``kvplan sweep``."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any

import typer

from kvplan.commands.options import scenario_options
from kvplan.commands.targets import Overwrite, check_folder, files_of
from kvplan.commands.written import SWEEP
from kvplan.errors import InputError
from kvplan.terminal.console import standard_error, standard_output
from kvplan.terminal.progress import progress_bar


@scenario_options()
def sweep(
    path: Annotated[
        str,
        typer.Argument(metavar="PATH", help="A scenario with the key sweep, or what --set adds.", show_default=False),
    ],
    overrides: dict[str, Any],
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="DIR", help="Where the rows go; a sweep that was stopped goes on.")
    ],
    overwrite: Overwrite = False,
    values: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=A,B", help="Sweep this key too, over these values: cache.block_size=16,32."),
    ] = None,
    engine: Annotated[str, typer.Option(help="processes, or ray (pip install 'kvplan[ray]').")] = "processes",
    workers: Annotated[int | None, typer.Option(help="Processes [one a core].", show_default=False)] = None,
    address: Annotated[str | None, typer.Option(help="An existing Ray cluster.", show_default=False)] = None,
    figure: Annotated[
        list[str] | None, typer.Option("--figure", metavar="KEY", help="Draw over this key; give it once or twice.")
    ] = None,
    metric: Annotated[str, typer.Option(help="Column to draw.")] = "output_tokens_per_s",
    cost: Annotated[str, typer.Option(help="Column of the Pareto front.")] = "gpu_hours_per_million_tokens",
    latency: Annotated[str, typer.Option(help="Column of the Pareto front.")] = "ttft_s.p99",
) -> None:
    """Simulate every combination of the swept values on the same requests.

    DIR receives sweep.parquet (a row a point, in order; the column pareto marks those that no other beats in both
    cost and latency) and sweep.html. A row is on disk as soon as its point is done.
    """
    from kvplan.files import atomic_path
    from kvplan.planning.sweep import pareto, points
    from kvplan.planning.sweep import sweep as run
    from kvplan.planning.sweep_engines import Processes, Ray
    from kvplan.planning.sweep_figure import write_figures
    from kvplan.scenario import load_scenario

    if engine not in ("processes", "ray"):
        raise InputError("must be processes or ray", field="--engine", value=engine)
    if address is not None and engine != "ray":
        raise InputError("goes with --engine ray", field="--address", value=address)
    if workers is not None and workers < 1:
        raise InputError("must be at least 1", field="--workers", value=workers)
    scenario = _with_values(load_scenario(path, overrides), values or [])
    swept = list(scenario.sweep)
    keys = figure or swept[:2]
    points(scenario)
    if not set(keys) <= set(swept) or len(keys) > 2:
        raise InputError("takes one or two of the swept keys", field="--figure", value=", ".join(keys))
    check_folder(output, "--output", SWEEP, read=files_of(path, scenario), overwrite=overwrite)
    chosen = Ray(address) if engine == "ray" else Processes(workers or _cores())
    with progress_bar(standard_error()) as progress:
        table = run(scenario, output, chosen, progress=lambda done, total: progress("points", done, total))
    if not {metric, cost, latency} <= set(table.columns):
        if (table["status"] != "done").all():
            raise InputError("no point can run", field="sweep", hint=str(table["reason"].iloc[0]))
        wrong = next(name for name in (metric, cost, latency) if name not in table.columns)
        raise InputError("is no column of sweep.parquet", field="--metric, --cost, --latency", value=wrong)
    table["pareto"] = pareto(table, cost, latency)
    with atomic_path(output / "sweep.parquet") as file:
        table.to_parquet(file, index=False)
    write_figures(output / "sweep.html", table, keys, metric, cost, latency)
    _print(table, swept, cost, latency)
    standard_output().print(f"{len(table)} points: {output / 'sweep.parquet'}", markup=False, soft_wrap=True)


def _with_values(scenario: Any, words: list[str]) -> Any:
    """The scenario with what --set sweeps, checked as if it stood in the file."""
    if not words:
        return scenario
    from kvplan.scenario.rules import check_rules
    from kvplan.scenario.scalars import plain_scalar

    more = {}
    for word in words:
        key, equals, values = word.partition("=")
        if not equals:
            raise InputError("must be KEY=A,B", field="--set", value=word)
        more[key] = [plain_scalar(value) for value in values.split(",")]
    swept = scenario.model_copy(update={"sweep": {**scenario.sweep, **more}})
    check_rules(swept)
    return swept


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _print(table: Any, swept: list[str], cost: str, latency: str) -> None:
    from rich.table import Table

    from kvplan.terminal.formats import decimal

    shown = Table(box=None, pad_edge=False, title="Pareto front", title_justify="left")
    for key in swept:
        shown.add_column(key.rpartition(".")[2])
    for name in (cost, latency, "output_tokens_per_s"):
        shown.add_column(name, justify="right")
    for _, row in table[table["pareto"]].sort_values(cost).iterrows():
        figures = [decimal(float(row[name])) for name in (cost, latency, "output_tokens_per_s")]
        shown.add_row(*(str(row[key]) for key in swept), *figures)
    standard_output().print(shown)
    for reason, count in table.loc[table["status"] != "done", "reason"].value_counts().items():
        standard_error().print(f"{count} points cannot run: {reason}", markup=False, soft_wrap=True)
