"""``kvplan profile``: step times that somebody measured, read in and shown."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from kvplan.commands.options import whole_numbers
from kvplan.commands.targets import Overwrite, check_file
from kvplan.commands.written import PROFILE, page
from kvplan.errors import InputError
from kvplan.terminal.console import standard_error, standard_output

app = typer.Typer(
    help="Measured step times: import what others measured, show a profile.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
)


@app.command("import")
def import_(
    path: Annotated[
        Path | None,
        typer.Argument(
            metavar="[PATH]",
            help="LLMServingSim's folder (one model, with or without tp1, tp2, ... in it) or Vidur's. Without it: "
            "aiconfigurator's tables of --system for --model.",
            show_default=False,
        ),
    ] = None,
    output: Annotated[Path, typer.Option("--output", "-o", metavar="FILE", help="The profile to write.")] = Path(
        "profile.json"
    ),
    overwrite: Overwrite = False,
    system: Annotated[
        str | None,
        typer.Option("--system", metavar="NAME", help="h100_sxm, h200_sxm, b200_sxm, ...", show_default=False),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option("--model", metavar="NAME|PATH", help="Whose matrices to look up.", show_default=False),
    ] = None,
    tensor_parallel_size: Annotated[
        str, typer.Option("--tensor-parallel-size", metavar="N,N,...", help="The ranks to look up.")
    ] = "1",
    framework: Annotated[str, typer.Option("--framework", metavar="NAME", help="vllm, sglang, trtllm.")] = "vllm",
    kv_cache_dtype: Annotated[str, typer.Option("--kv-cache-dtype", metavar="auto|fp8")] = "auto",
) -> None:
    """Read measured kernel times into one profile file: timing: {profile: FILE} then uses it."""
    from kvplan.calibration.imports import import_folder, import_system
    from kvplan.catalog import load_model
    from kvplan.terminal.profile import print_profile
    from kvplan.timing import write_profile

    if (path is None) == (system is None):
        raise InputError("give a folder or --system, one of the two", field="PATH", hint="kvplan profile import PATH")
    check_file(output, "--output", PROFILE, read=[path, model], overwrite=overwrite)
    if path is not None:
        profile = import_folder(path)
    else:
        assert system is not None
        if model is None:
            raise InputError("aiconfigurator's tables need a model", field="--model")
        sizes = whole_numbers(tensor_parallel_size, "--tensor-parallel-size")
        profile = import_system(system, load_model(model), sizes, framework, kv_cache_dtype)
    write_profile(profile, output)
    print_profile(standard_output(), profile)
    standard_error().print(f"wrote {output}", markup=False, soft_wrap=True)


@app.command()
def show(
    path: Annotated[Path, typer.Argument(metavar="FILE", help="A profile.", show_default=False)],
    tensor_parallel_size: Annotated[
        int | None, typer.Option("--tensor-parallel-size", metavar="N", help="The rank to draw.", show_default=False)
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="Write the curves as a page there.")
    ] = None,
    overwrite: Overwrite = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print its head and errors as JSON, nothing else.")] = False,
) -> None:
    """Say what a profile holds, how far its interpolation errs, and draw it."""
    from kvplan.terminal.profile import print_profile
    from kvplan.timing import read_profile

    if output is not None:
        check_file(output, "--output", page, read=[path], overwrite=overwrite)
    profile = read_profile(path)
    size = min(profile.ranks) if tensor_parallel_size is None else tensor_parallel_size
    profile.rank(size)
    if output is not None:
        from kvplan.calibration.draw import write_figure

        write_figure(profile, size, output)
    if as_json:
        json.dump(profile.head(), sys.stdout, indent=2)
        sys.stdout.write("\n")
    else:
        print_profile(standard_output(), profile)
