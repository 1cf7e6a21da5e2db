"""``kvplan calibrate``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from kvplan.commands.options import scenario_options, whole_numbers
from kvplan.commands.targets import Overwrite, check_file
from kvplan.commands.torch_ready import require_torch
from kvplan.commands.written import PROFILE
from kvplan.errors import InputError
from kvplan.terminal.console import standard_error, standard_output
from kvplan.terminal.progress import progress_bar

UNUSED = {
    "name", "timing", "slo", "workload.file", "workload.synthetic", "workload.format", "workload.time_unit",
    "workload.columns", "workload.on_bad_row", "workload.limit", "workload.output_tokens", "workload.block_size",
    "workload.tokenizer", "parallel.tensor_parallel_size", "parallel.pipeline_parallel_size",
    "parallel.data_parallel_size",
}  # fmt: skip
"""Keys of a scenario that no measurement depends on: no trace is read, and the engine runs on one device."""


@scenario_options(without=UNUSED)
def calibrate(
    overrides: dict[str, Any],
    output: Annotated[Path, typer.Option("--output", "-o", metavar="FILE", help="The profile to write.")] = Path(
        "profile.json"
    ),
    overwrite: Overwrite = False,
    device: Annotated[str, typer.Option("--device", metavar="DEVICE", help="cpu, cuda or cuda:N.")] = "cpu",
    budget: Annotated[
        float, typer.Option("--budget", metavar="S", help="Seconds to measure for; more of them, more points.")
    ] = 60.0,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with what an interrupted run left in FILE.partial.")
    ] = False,
    attention: Annotated[
        str, typer.Option("--attention", metavar="NAME", help="triton, torch, or auto: triton on a GPU.")
    ] = "auto",
    threads: Annotated[
        int | None, typer.Option("--threads", min=1, help="CPU threads that torch uses.", show_default=False)
    ] = None,
    block_sizes: Annotated[
        str | None,
        typer.Option(
            "--block-sizes",
            metavar="N,N...",
            help="Measure attention in blocks of these sizes too; by default the budget chooses.",
            show_default=False,
        ),
    ] = None,
    kv_cache_dtypes: Annotated[
        str,
        typer.Option(
            "--kv-cache-dtypes",
            metavar="NAME,...",
            help="And with K and V of these types, fp8 for one.",
            show_default=False,
        ),
    ] = "",
    clock: Annotated[
        str,
        typer.Option(
            "--clock",
            metavar="wall|cpu",
            help="cpu: seconds that this process computes, on a machine that others share.",
        ),
    ] = "wall",
) -> None:
    """Measure this machine: what each part of a step takes on the real engine, into one profile.

    `timing: {profile: FILE}` then uses it. The options of cache and scheduler say what is to be covered: contexts up to
    max_model_len, batches up to max_num_seqs, prefills up to max_num_batched_tokens.
    """
    if not 0 < budget < float("inf"):
        raise InputError("must be a number of seconds above 0", field="--budget", value=budget)
    read = [word for word in overrides.values() if isinstance(word, str)]  # a model's config.json
    check_file(output, "--output", PROFILE, read=read, overwrite=overwrite)
    sizes: tuple[int, ...] | None = None if block_sizes is None else ()
    if block_sizes:
        sizes = whole_numbers(block_sizes, "--block-sizes")
    require_torch(threads)
    from kvplan.calibration.calibrate import calibrate as measured
    from kvplan.calibration.samples import partial_path
    from kvplan.engine.engine import EngineOptions
    from kvplan.terminal.profile import print_profile

    partial = partial_path(output)
    if partial.exists() and not resume:
        raise InputError(
            "an interrupted run has left its measurements here",
            field="--output",
            value=str(partial),
            hint="--resume goes on with them; delete the file to begin anew",
        )
    error = standard_error()
    options = EngineOptions(device, attention, seed=int(overrides.get("seed") or 0))
    try:
        with progress_bar(error) as progress:
            profile = measured(
                output,
                overrides,
                options,
                budget_s=budget,
                clock=clock,
                resume=resume,
                block_sizes=sizes,
                kv_cache_dtypes=[name.strip() for name in kv_cache_dtypes.split(",") if name.strip()],
                progress=progress,
            )
    finally:
        if partial.exists():
            error.print(f"what was measured is kept: {partial}; --resume goes on with it", markup=False, soft_wrap=True)
    print_profile(standard_output(), profile)
    error.print(f"wrote {output}", markup=False, soft_wrap=True)
