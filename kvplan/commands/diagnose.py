"""``kvplan diagnose``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from kvplan.commands.options import scenario_options
from kvplan.commands.targets import Overwrite, check_folder, files_of
from kvplan.commands.written import DIAGNOSIS
from kvplan.terminal.console import standard_error, standard_output


@scenario_options()
def diagnose(
    path: Annotated[
        str,
        typer.Argument(metavar="PATH", help="What `kvplan simulate` takes: a scenario or a trace.", show_default=False),
    ],
    overrides: dict[str, Any],
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="DIR", help="Write diagnosis.json there, and the report."),
    ] = None,
    overwrite: Overwrite = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the diagnosis as JSON and nothing else.")] = False,
) -> None:
    """Say what holds a deployment back, by simulating the changes that could help.

    Each change runs alone on the same requests; what binds is what, once loosened, shortens the time that
    requests spend in the system.
    """
    import kvplan
    from kvplan.planning.diagnosis import diagnose as find
    from kvplan.scenario import load_scenario

    scenario = load_scenario(path, overrides)
    scenario.runs()
    if output is not None:
        check_folder(output, "--output", DIAGNOSIS, read=files_of(path, scenario), overwrite=overwrite)
    with standard_error().status("simulating the changes"):
        found = find(scenario)
    if output is not None:
        from kvplan.files import write_json
        from kvplan.report.stored import Stored

        result = kvplan.simulate(scenario)
        result.save(output)
        write_json(output / "diagnosis.json", found)
        stored = Stored(result.summary, result.requests, result.timeline, result.memory_map, found)
        stored.report(output / "report.html")
        standard_error().print(f"wrote {output / 'report.html'}", markup=False)
    if as_json:
        typer.echo(json.dumps(found, indent=2, ensure_ascii=False))
        return
    _print(found)


def _print(found: dict[str, Any]) -> None:
    from rich.table import Table
    from rich.text import Text

    from kvplan.report.shown import change

    console = standard_output()
    console.print(Text(found["verdict"], style="bold"))
    table = Table(box=None, pad_edge=False)
    table.add_column("change", no_wrap=True)
    for name in ("running", "tokens/s", "TTFT p99"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in found["changes"]:
        if row["status"] == "cannot run":
            continue
        gains = [row.get(f"{key}_gain") for key in ("concurrency", "output_tokens_per_s", "ttft_p99_s")]
        shown = [change(gain) if gain is not None else "" for gain in gains]
        table.add_row(Text(("→ " if row["best"] else "  ") + row["label"]), *shown)
    console.print(table)
    for row in found["changes"]:
        if row["status"] == "cannot run":
            console.print(Text(f"  {row['label']}: {row['outcome']}"), style="dim")
    console.print(Text(found["flags"]))
    for risk in dict.fromkeys(row["risk"] for row in found["changes"] if row["best"] and row["risk"]):
        console.print(Text(risk), style="yellow")
