"""How the commands that make a `Result` begin and end: where it may be written, and how it is shown."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from kvplan.commands import written
from kvplan.commands.targets import check_file, check_folder, same
from kvplan.errors import InputError
from kvplan.terminal.console import standard_error, standard_output
from kvplan.terminal.summary import print_summary

if TYPE_CHECKING:
    from kvplan.result import Result


def check_targets(output: Path | None, steps: Path | None, *, read: Iterable[Path], overwrite: bool) -> None:
    """Before a long run, not after it.

    Raises:
        InputError: as `kvplan.commands.targets`; ``output`` is a file, or ``steps`` is no file in an existing folder.
    """
    inputs = list(read)
    if output is not None:
        check_folder(output, "--output", written.RESULTS, read=inputs, overwrite=overwrite)
    if steps is not None:
        if steps.is_dir() or not steps.parent.is_dir():
            raise InputError("is no file in an existing folder", field="--steps", value=str(steps))
        check_file(steps, "--steps", written.steps, read=inputs, overwrite=overwrite)
        if output is not None and any(same(steps, output / name) for name in written.RESULTS):
            raise InputError("is a file of --output", field="--steps", value=str(steps), hint="name another file")


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
