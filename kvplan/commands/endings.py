"""How the commands that make a `Result` begin and end: where it may be written, and how it is shown."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from kvplan.errors import InputError
from kvplan.terminal.console import standard_error, standard_output
from kvplan.terminal.summary import print_summary

if TYPE_CHECKING:
    from kvplan.result import Result


def check_targets(output: Path | None, steps: Path | None) -> None:
    """Before a long run, not after it.

    Raises:
        InputError: ``output`` is a file, or ``steps`` is no file in an existing folder.
    """
    if output is not None and output.exists() and not output.is_dir():
        raise InputError("is a file, not a folder", field="--output", value=str(output))
    if steps is not None and (steps.is_dir() or not steps.parent.is_dir()):
        raise InputError("is no file in an existing folder", field="--steps", value=str(steps))


def present(result: Result, output: Path | None, *, as_json: bool) -> None:
    """Notes to standard error, files to ``output``, and the table (or the JSON and nothing else) to standard output."""
    error = standard_error()
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
