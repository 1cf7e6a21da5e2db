"""``kvplan report``."""

from __future__ import annotations

import enum
import json
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from kvplan.commands import written
from kvplan.commands.options import scenario_options
from kvplan.commands.targets import Overwrite, check_file, files_of, same
from kvplan.errors import InputError
from kvplan.terminal.console import standard_error


class Format(enum.StrEnum):
    """What a report is written as."""

    html = "html"
    json = "json"
    csv = "csv"
    md = "md"
    png = "png"


TO_FILE = {Format.html: "report.html", Format.png: "report.png"}
"""Written beside the results where no ``-o`` says otherwise; the rest goes to standard output."""


@scenario_options(renamed={"workload.format": "--trace-format"})
def report(
    path: Annotated[
        str,
        typer.Argument(
            metavar="PATH",
            help="A results folder (of `kvplan simulate -o`), or what `kvplan simulate` takes: it is simulated first.",
            show_default=False,
        ),
    ],
    overrides: dict[str, Any],
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FILE", help="Where the report goes; - is standard output."),
    ] = None,
    overwrite: Overwrite = False,
    form: Annotated[
        Format, typer.Option("--format", help="A page, the summary, a row a run, Markdown, or a picture.")
    ] = Format.html,
    diagnose: Annotated[bool, typer.Option("--diagnose", help="Simulate the changes too, and say what binds.")] = False,
    perfetto: Annotated[
        Path | None,
        typer.Option("--perfetto", metavar="FILE", help="Also write a trace that Perfetto opens."),
    ] = None,
    steps: Annotated[
        Path | None,
        typer.Option("--steps", metavar="FILE", help="A --steps file, whose steps go into --perfetto."),
    ] = None,
) -> None:
    """Make the capacity report: one page that opens offline, or the same as JSON, CSV, Markdown or PNG."""
    from kvplan.report import forms  # needs jinja2
    from kvplan.report import perfetto as traces

    target = output
    if output is None and form in TO_FILE:
        target = (Path(path) if Path(path).is_dir() else Path()) / TO_FILE[form]
    if form is Format.png and str(target) == "-":
        raise InputError("a picture needs a file", field="--output", value="-")
    targets = {flag: file for flag, file in (("--output", target), ("--perfetto", perfetto)) if file is not None}
    kinds = {"--output": _KINDS[form], "--perfetto": written.begins(traces.BEGINNING)}
    if perfetto is not None and target is not None and same(perfetto, target):
        raise InputError("is --output too", field="--perfetto", value=str(perfetto), hint="name another file")

    def check(read: Iterable[Any]) -> None:
        inputs = [steps, *read]
        for flag, file in targets.items():
            check_file(file, flag, kinds[flag], read=inputs, overwrite=overwrite)

    results = _results(path, overrides, diagnose, check)
    if perfetto is not None:
        traces.write_perfetto(perfetto, results.requests, results.timeline, _steps(steps))
        standard_error().print(f"wrote {perfetto}", markup=False)
    elif steps is not None:
        raise InputError("is only of use with --perfetto", field="--steps", value=str(steps))
    text = ""
    if form is Format.json:
        whole = dict(results.summary) | ({"diagnosis": results.diagnosis} if results.diagnosis else {})
        text = json.dumps(whole, indent=2, ensure_ascii=False) + "\n"
    elif form is Format.csv:
        text = forms.runs_csv(results.summary)
    elif form is Format.md:
        text = forms.markdown(results.summary, results.diagnosis)
    else:
        text = results.page()
    _deliver(text, form, target)


_KINDS = {
    Format.html: written.page,
    Format.json: written.SUMMARY,
    Format.csv: written.runs_csv,
    Format.md: written.signed,
    Format.png: written.picture,
}


def _results(path: str, overrides: dict[str, Any], diagnose: bool, check: Callable[[Iterable[Any]], None]) -> Any:
    """``check`` is called with the files that are read, before anything takes long."""
    from kvplan.report.stored import Stored, is_results_folder, read_results

    if is_results_folder(path):
        if overrides:
            key = next(iter(overrides))
            raise InputError(
                "cannot change results that are done",
                field=key,
                source=path,
                hint=f"simulate again with it: kvplan report {path}/summary.json ...",
            )
        check(Path(path) / name for name in written.DIAGNOSIS if name != "report.html")
        if not diagnose:
            return read_results(path)
        path = str(Path(path) / "summary.json")
    import kvplan
    from kvplan.scenario import load_scenario
    from kvplan.terminal.progress import progress_bar

    scenario = load_scenario(path, overrides)
    scenario.runs()
    check(files_of(path, scenario))
    with progress_bar(standard_error()) as progress:
        result = kvplan.simulate(scenario, progress=progress)
    found = None
    if diagnose:
        from kvplan.planning.diagnosis import diagnose as find

        found = find(scenario)
    return Stored(result.summary, result.requests, result.timeline, result.memory_map, found)


def _steps(path: Path | None) -> Iterator[dict[str, Any]]:
    """The records of a ``--steps`` file."""
    if path is None:
        return
    with path.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, 1):
            try:
                yield json.loads(line)
            except ValueError as error:
                raise InputError(f"is not JSON: {error}", source=str(path), line=number) from error


def _deliver(text: str, form: Format, output: Path | None) -> None:
    from kvplan.files import signed
    from kvplan.report.forms import picture
    from kvplan.report.page import put

    if form is Format.png:
        assert output is not None
        picture(text, output)
    elif output is None or str(output) == "-":
        typer.echo(text, nl=False)
        return
    else:
        if form is Format.md:
            text = signed(text, "<!-- ")
        put(output, text.encode("utf-8", "replace"))
    standard_error().print(f"wrote {output}", markup=False)
