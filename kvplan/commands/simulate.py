"""``kvplan simulate``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

import kvplan
from kvplan.commands.endings import check_targets, present
from kvplan.commands.options import scenario_options
from kvplan.commands.targets import Overwrite, files_of
from kvplan.scenario import load_scenario
from kvplan.terminal.console import standard_error
from kvplan.terminal.progress import progress_bar
from kvplan.terminal.trace import print_trace


@scenario_options()
def simulate(
    path: Annotated[
        str,
        typer.Argument(
            metavar="PATH",
            help="A scenario (.yaml, .json), a summary.json to run again, the name of a shipped workload, or "
            "a raw trace (.csv, .jsonl, .json, .parquet, also .gz and .zst) with --model and --gpu.",
            show_default=False,
        ),
    ],
    overrides: dict[str, Any],
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="DIR", help="Write summary, tables and report there."),
    ] = None,
    overwrite: Overwrite = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the summary as JSON and nothing else.")] = False,
    steps: Annotated[
        Path | None, typer.Option("--steps", metavar="FILE", help="Write one JSON line for every step.")
    ] = None,
) -> None:
    """Replay a trace and say where the KV memory went.

    The base and every variant of the scenario run on the same requests. Each option below stands for the
    key of the same name and wins over the file; null gives a key back to the engine's default.
    """
    scenario = load_scenario(path, overrides)
    check_targets(output, steps, read=files_of(path, scenario), overwrite=overwrite)
    scenario.runs()  # what cannot be simulated is said before a long trace is read
    error = standard_error()
    print_trace(error, scenario.trace())
    with progress_bar(error) as progress:
        result = kvplan.simulate(scenario, progress=progress, steps=steps)
    present(result, output, as_json=as_json)
