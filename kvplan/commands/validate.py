"""``kvplan validate``."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kvplan.commands.options import scenario_options
from kvplan.commands.targets import Overwrite, check_folder, files_of
from kvplan.commands.torch_ready import require_torch
from kvplan.commands.written import VALIDATION
from kvplan.errors import InputError, KvplanError, ToleranceError
from kvplan.scenario import load_scenario
from kvplan.terminal.console import standard_error, standard_output
from kvplan.terminal.progress import progress_bar

if TYPE_CHECKING:
    from kvplan.calibration.replay import ReplayValidation
    from kvplan.calibration.validate import Validation
    from kvplan.scenario import Scenario


@scenario_options()
def validate(
    path: Annotated[
        str | None,
        typer.Argument(
            metavar="[PATH]",
            help="A scenario, the name of a shipped workload, or a raw trace with --model and --gpu: it is replayed on "
            "the engine, here and now. Not with --observed.",
            show_default=False,
        ),
    ] = None,
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
    device: Annotated[str, typer.Option("--device", metavar="DEVICE", help="cpu, cuda or cuda:N.")] = "cpu",
    attention: Annotated[
        str, typer.Option("--attention", metavar="NAME", help="triton, torch, or auto: triton on a GPU.")
    ] = "auto",
    time_scale: Annotated[
        float,
        typer.Option("--time-scale", metavar="X", help="Multiplies the arrivals: 0.1 replays ten times as fast."),
    ] = 1.0,
    threads: Annotated[
        int | None, typer.Option("--threads", min=1, help="CPU threads that torch uses.", show_default=False)
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
    overwrite: Overwrite = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print validation.json and nothing else.")] = False,
    *,
    overrides: dict[str, Any],
) -> None:
    """Compare the simulator with a real run, figure by figure.

    With a trace and --profile the run is made here: on the engine, with the same scheduler. Given the measured step
    times the plans must be equal, step for step; the errors are then the profile's.

    With --observed it is a run that somebody else measured. Its own files say with which settings it was served, as far
    as they do; the options below win over them.
    """
    from kvplan.calibration.validate import validate_observed

    if (path is None) == (observed is None):
        hint = "kvplan validate trace.yaml --profile profile.json, or kvplan validate --observed DIR"
        raise InputError("give a trace to replay, or a run to compare with, one of the two", field="PATH", hint=hint)
    if profile is not None:
        if "timing" in overrides:
            raise InputError("give --profile or --timing, not both", field="--profile", value=str(profile))
        overrides = {**overrides, "timing": {"profile": str(profile)}}
    scenario = None if path is None else load_scenario(path, overrides)
    if output is not None:
        read = [observed, trace, profile, *(() if scenario is None else files_of(path, scenario))]
        check_folder(output, "--output", VALIDATION, read=read, overwrite=overwrite)
    found: Validation
    differing: tuple[str, ...] = ()
    if scenario is not None:
        if not 0 < time_scale < float("inf"):
            raise InputError("must be a finite number above 0", field="--time-scale", value=time_scale)
        replayed = _replayed(scenario, device, attention, time_scale, threads)
        found, differing = replayed, replayed.plans
    else:
        from kvplan.calibration.read_observed import read_observed

        assert observed is not None
        found = validate_observed(read_observed(observed), trace, overrides)
    _give_out(found, output, as_json)
    if differing:
        raise KvplanError(
            "given the measured step times the simulator plans other steps than the engine ran: this is a bug, please "
            "report it\n" + "\n".join(differing)
        )
    _judge(found, tolerance)


def _replayed(
    scenario: Scenario, device: str, attention: str, time_scale: float, threads: int | None
) -> ReplayValidation:
    require_torch(threads)
    from kvplan.calibration.replay import validate_replay
    from kvplan.engine.engine import EngineOptions

    with progress_bar(standard_error()) as progress:
        return validate_replay(
            scenario,
            EngineOptions(device, attention, seed=scenario.seed),
            time_scale=time_scale,
            progress=lambda done, total: progress("engine", done, total),
        )


def _give_out(found: Validation, output: Path | None, as_json: bool) -> None:
    """Writes and prints the comparison."""
    from kvplan.terminal.validation import print_replay, print_validation

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
        if isinstance(document.get("step_times"), dict):
            print_replay(standard_output(), document)


def _judge(found: Validation, tolerance: float | None) -> None:
    """Raises ToleranceError where a judged figure is off by more."""
    worst = found.comparison.worst
    if tolerance is not None and worst is not None and worst.error is not None and abs(worst.error) > tolerance:
        raise ToleranceError(
            f"{worst.measure} {worst.rank} is off by {worst.error:+.1%}, more than {tolerance:.1%}".replace("  ", " "),
            field="--tolerance",
            value=tolerance,
        )
