"""``kvplan simulate``."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

import kvplan
from kvplan.commands.options import scenario_options
from kvplan.errors import InputError
from kvplan.scenario import load_scenario
from kvplan.terminal.console import standard_error, standard_output
from kvplan.terminal.progress import progress_bar
from kvplan.terminal.summary import print_summary
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
    as_json: Annotated[bool, typer.Option("--json", help="Print the summary as JSON and nothing else.")] = False,
    steps: Annotated[
        Path | None, typer.Option("--steps", metavar="FILE", help="Write one JSON line for every step.")
    ] = None,
) -> None:
    """Replay a trace and say where the KV memory went.

    The base and every variant of the scenario run on the same requests. Each option below stands for the
    key of the same name and wins over the file; null gives a key back to the engine's default.
    """
    _check_targets(output, steps)
    scenario = load_scenario(path, overrides)
    scenario.runs()  # what cannot be simulated is said before a long trace is read
    error = standard_error()
    print_trace(error, scenario.trace())
    with progress_bar(error) as progress:
        result = kvplan.simulate(scenario, progress=progress, steps=steps)
    for run in result.summary["runs"]:
        for note in run["notes"]:
            error.print(f"{run['name']}: {note}", markup=False, soft_wrap=True)
    if output is not None:
        result.save(output)
    if as_json:
        json.dump(result.summary, sys.stdout, indent=2, allow_nan=False)
        sys.stdout.write("\n")
    else:
        print_summary(standard_output(), result.summary, result.timeline)
    if output is not None:
        page = output / "report.html"
        (error if as_json else standard_output()).print(
            f"results: {output}" + (f"   report: {page}" if page.exists() else ""),
            markup=False,
            soft_wrap=True,
        )


def _check_targets(output: Path | None, steps: Path | None) -> None:
    """Before a long run, not after it."""
    if output is not None and output.exists() and not output.is_dir():
        raise InputError("is a file, not a folder", field="--output", value=str(output))
    if steps is not None and (steps.is_dir() or not steps.parent.is_dir()):
        raise InputError("is no file in an existing folder", field="--steps", value=str(steps))
