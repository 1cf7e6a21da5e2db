"""``kvplan engine``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from kvplan.commands.endings import check_targets, present
from kvplan.commands.options import scenario_options
from kvplan.commands.targets import Overwrite, files_of
from kvplan.errors import InputError, KvplanError
from kvplan.scenario import load_scenario
from kvplan.terminal.console import standard_error
from kvplan.terminal.progress import progress_bar
from kvplan.terminal.trace import print_trace


@scenario_options(without={"timing"})
def engine(
    path: Annotated[
        str,
        typer.Argument(
            metavar="PATH",
            help="A scenario (.yaml, .json), the name of a shipped workload, or a raw trace (.csv, .jsonl, .json, "
            ".parquet, also .gz and .zst) with --model and --gpu.",
            show_default=False,
        ),
    ],
    overrides: dict[str, Any],
    device: Annotated[str, typer.Option("--device", metavar="DEVICE", help="cpu, cuda or cuda:N.")] = "cpu",
    attention: Annotated[
        str, typer.Option("--attention", metavar="NAME", help="triton, torch, or auto: triton on a GPU.")
    ] = "auto",
    weights: Annotated[
        Path | None,
        typer.Option(
            "--weights",
            metavar="DIR",
            help="Safetensors of the model; drawn from the seed otherwise.",
            show_default=False,
        ),
    ] = None,
    time_scale: Annotated[
        float,
        typer.Option("--time-scale", metavar="X", help="Multiplies the arrivals: 0.1 replays ten times as fast."),
    ] = 1.0,
    cuda_graphs: Annotated[
        bool, typer.Option("--cuda-graphs", help="Replay decode steps from CUDA graphs (GPU, triton).")
    ] = False,
    threads: Annotated[
        int | None, typer.Option("--threads", min=1, help="CPU threads that torch uses.", show_default=False)
    ] = None,
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
    """Run a trace on a real paged-attention engine.

    The scheduler and the cache are the simulator's own; a torch decoder computes every step that they plan, in a KV
    pool of the size that they plan. Times are this machine's. Stretches in which nothing could run are skipped.
    """
    if not time_scale > 0 or time_scale == float("inf"):
        raise InputError("must be a finite number above 0", field="--time-scale", value=time_scale)
    scenario = load_scenario(path, overrides)
    check_targets(output, steps, read=files_of(path, scenario), overwrite=overwrite)
    try:
        import torch
    except ImportError:
        raise KvplanError("the engine needs torch", hint="pip install 'kvplan[engine]'") from None
    from kvplan.engine.engine import EngineOptions
    from kvplan.engine.run import run_scenario

    if threads is not None:
        torch.set_num_threads(threads)
    options = EngineOptions(device, attention, weights, scenario.seed, cuda_graphs)
    error = standard_error()
    print_trace(error, scenario.trace())
    with progress_bar(error) as progress:
        result = run_scenario(scenario, options, time_scale=time_scale, progress=progress, steps=steps)
    present(result, output, as_json=as_json)
