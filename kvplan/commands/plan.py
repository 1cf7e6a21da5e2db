"""``kvplan plan``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from kvplan.commands.options import scenario_options
from kvplan.commands.targets import Overwrite, check_folder, files_of
from kvplan.commands.written import PLAN
from kvplan.errors import InputError
from kvplan.terminal.console import standard_error, standard_output


@scenario_options(without=("gpu",))
def plan(
    path: Annotated[
        str,
        typer.Argument(
            metavar="TRACE", help="What `kvplan simulate` takes: a trace or a scenario.", show_default=False
        ),
    ],
    overrides: dict[str, Any],
    gpu: Annotated[
        list[str] | None,
        typer.Option("--gpu", metavar="NAME", help="A GPU to choose among; may be given several times."),
    ] = None,
    rate: Annotated[
        float | None, typer.Option(help="Requests per second [the trace's own].", show_default=False)
    ] = None,
    growth: Annotated[float, typer.Option(help="Factor on the rate, for what is to come.")] = 1.0,
    survive: Annotated[int, typer.Option(help="Replicas that may fail while the rest keeps the SLO.")] = 0,
    windows: Annotated[int, typer.Option(help="Cut the trace into so many parts; each must be carried.")] = 1,
    seeds: Annotated[int, typer.Option(help="Draw a generated workload so often; each must be carried.")] = 1,
    max_gpus: Annotated[int, typer.Option(help="The most GPUs to consider.")] = 64,
    router: Annotated[
        str, typer.Option(help="round_robin, random, prefix_aware, least_outstanding, least_kv or power_of_two.")
    ] = "round_robin",
    price: Annotated[
        list[str] | None,
        typer.Option(metavar="GPU=PRICE", help="Price of a GPU hour, one for each GPU; without, GPUs are counted."),
    ] = None,
    tries: Annotated[
        list[str] | None,
        typer.Option(
            "--try", metavar="KEY=A,B", help="Values to try: cache.kv_cache_dtype=auto,fp8 (first preferred)."
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="DIR", help="Write plan.json, compose.yaml and kubernetes.yaml there."),
    ] = None,
    overwrite: Overwrite = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the plan as JSON and nothing else.")] = False,
) -> None:
    """Find the least hardware, and its settings, that carries a traffic within the SLO.

    A setting that is given is kept; what is not given is searched: tensor parallel size, step limits, memory
    utilization, and whatever --try names. Everything proposed has passed the memory check.
    """
    from kvplan.planning.search_plan import Wish
    from kvplan.planning.search_plan import plan as find
    from kvplan.scenario import load_scenario

    given = {**overrides, "gpu": gpu[0]} if gpu else overrides
    scenario = load_scenario(path, given)
    if not gpu and not isinstance(scenario.gpu, str):
        raise InputError("name the GPUs to choose among", field="--gpu")
    if output is not None:
        check_folder(output, "--output", PLAN, read=files_of(path, scenario), overwrite=overwrite)
    names = gpu or [str(scenario.gpu)]
    wish = Wish(
        names, rate, growth, survive, windows, seeds, max_gpus, router, _axes(tries or []), _prices(price or [], names)
    )
    error = standard_error()
    with error.status("planning") as status:
        found = find(scenario, wish, progress=lambda line: status.update(f"simulation {line}"))
    if output is not None:
        from kvplan.files import make_folder, signed, write_json, write_text

        folder = make_folder(output)
        write_text(folder / "compose.yaml", signed(found["best"]["compose"]))
        write_text(folder / "kubernetes.yaml", signed(found["best"]["kubernetes"]))
        write_json(folder / "plan.json", found)
    if as_json:
        typer.echo(json.dumps(found, indent=2, ensure_ascii=False))
        return
    from kvplan.terminal.plan import print_plan

    print_plan(standard_output(), found)


def _axes(words: list[str]) -> dict[str, tuple[Any, ...]]:
    from kvplan.scenario import Scenario
    from kvplan.scenario.leaves import sweepable_keys
    from kvplan.scenario.scalars import plain_scalar

    known = sweepable_keys(Scenario)
    axes = {}
    for word in words:
        key, equals, values = word.partition("=")
        if not equals or key not in known or key in ("model", "gpu"):
            raise InputError("must be KEY=A,B with a key of the deployment", field="--try", value=word)
        axes[key] = tuple(plain_scalar(value) for value in values.split(","))
    return axes


def _prices(words: list[str], gpus: list[str]) -> dict[str, float]:
    prices = {}
    for word in words:
        name, equals, number = word.rpartition("=")
        try:
            value = float(number)
        except ValueError as error:
            raise InputError("must be GPU=PRICE or PRICE", field="--price", value=word) from error
        for gpu in [name] if equals else gpus:
            prices[gpu] = value
    return prices
