"""``kvplan validate``."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from kvplan.commands.options import scenario_options
from kvplan.errors import InputError, ToleranceError
from kvplan.terminal.console import standard_error, standard_output


@scenario_options(without={"seed"})
def validate(
    observed: Annotated[
        Path | None,
        typer.Option(
            "--observed",
            metavar="DIR|FILE",
            help="A run that was measured: LLMServingSim's folder, vLLM's `bench serve --save-detailed` JSON, SGLang's "
            "JSONL, GuideLLM's JSON, /metrics scrapes (a .prom file or a folder of them).",
            show_default=False,
        ),
    ] = None,
    trace: Annotated[
        Path | None,
        typer.Option(
            "--trace", metavar="FILE", help="The run's input: shared prefixes, or all of it.", show_default=False
        ),
    ] = None,
    profile: Annotated[
        Path | None,
        typer.Option("--profile", metavar="FILE", help="Short for --timing profile=FILE.", show_default=False),
    ] = None,
    tolerance: Annotated[
        float | None,
        typer.Option(
            "--tolerance", min=0.0, help="Exit 4 when an error is larger, e.g. 0.05 for 5%.", show_default=False
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="DIR", help="Write validation.json and overlay.html there."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print validation.json and nothing else.")] = False,
    *,
    overrides: dict[str, Any],
) -> None:
    """Compare the simulator with a run that was measured, figure by figure.

    The run's own files say with which settings it was served, as far as they do; the options below win over
    them.
    """
    from kvplan.calibration.read_observed import read_observed
    from kvplan.calibration.validate import validate_observed
    from kvplan.terminal.validation import print_validation

    if observed is None:
        raise InputError("give the run to compare with", field="--observed", hint="kvplan validate --observed DIR")
    if profile is not None:
        if "timing" in overrides:
            raise InputError("give --profile or --timing, not both", field="--profile", value=str(profile))
        overrides = {**overrides, "timing": {"profile": str(profile)}}
    found = validate_observed(read_observed(observed), trace, overrides)
    document = found.as_json()
    if output is not None:
        from kvplan.calibration.overlay import write_overlay
        from kvplan.files import make_folder, write_json

        folder = make_folder(output)
        write_overlay(found, folder / "overlay.html")
        write_json(folder / "validation.json", document)
        standard_error().print(f"wrote {folder / 'overlay.html'} and validation.json", markup=False, soft_wrap=True)
    if as_json:
        json.dump(document, sys.stdout, indent=2, allow_nan=False)
        sys.stdout.write("\n")
    else:
        print_validation(standard_output(), found.comparison)
    worst = found.comparison.worst
    if tolerance is not None and worst is not None and worst.error is not None and abs(worst.error) > tolerance:
        raise ToleranceError(
            f"{worst.measure} {worst.rank} is off by {worst.error:+.1%}, more than {tolerance:.1%}".replace("  ", " "),
            field="--tolerance",
            value=tolerance,
        )
