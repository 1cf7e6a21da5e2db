"""``kvplan trace``: what a file of requests holds, and files made from it."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kvplan.commands.targets import Overwrite, check_file
from kvplan.commands.written import trace_table
from kvplan.errors import InputError

if TYPE_CHECKING:  # the readers need numpy; `kvplan trace --help` does not
    from kvplan.trace.trace import Trace

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    help="Read, convert, cut, scale, merge and imitate traces of requests.",
)

_READING = "Reading"
File = Annotated[str, typer.Argument(help="A trace of any known format; - reads standard input.", metavar="FILE")]
Files = Annotated[list[str], typer.Argument(help="Traces of any known formats.", metavar="FILE...")]
Output = Annotated[
    str, typer.Option("-o", "--output-file", help="Where to write; - is standard output.", metavar="OUT")
]
Format = Annotated[
    str | None,
    typer.Option("--format", help="The file's format, instead of detection.", rich_help_panel=_READING),
]
TimeUnit = Annotated[
    str | None,
    typer.Option("--time-unit", help="The file's unit of time: s, ms, us, ns.", rich_help_panel=_READING),
]
Columns = Annotated[
    str | None,
    typer.Option(
        "--columns",
        help="arrival=NAME,prompt=NAME,output=NAME for a table of your own.",
        rich_help_panel=_READING,
    ),
]
OnBadRow = Annotated[
    str,
    typer.Option("--on-bad-row", help="error, skip, or report (skip and show).", rich_help_panel=_READING),
]
Limit = Annotated[int | None, typer.Option("--limit", help="Read only so many requests.", rich_help_panel=_READING)]
OutputTokens = Annotated[
    int | None,
    typer.Option("--output-tokens", help="Output length where the file has none (256).", rich_help_panel=_READING),
]
HashBlock = Annotated[
    int | None,
    typer.Option("--hash-block-size", help="Tokens in a block of the file's hash ids.", rich_help_panel=_READING),
]
Tokenizer = Annotated[
    str | None,
    typer.Option("--tokenizer", help="tokenizer.json or its folder, for files of text.", rich_help_panel=_READING),
]
Seed = Annotated[int | None, typer.Option("--seed", help="Seed of whatever is drawn (0).")]
To = Annotated[str | None, typer.Option("--to", help="The format to write; by default what OUT's suffix suggests.")]
BlockSize = Annotated[int | None, typer.Option("--block-size", help="Tokens in a block of the hash ids written.")]


def parse_columns(text: str | None) -> dict[str, str]:
    """``a=B,c=D`` as a mapping.

    Raises:
        InputError: a part without ``=``.
    """
    columns = {}
    for part in (text or "").split(",") if text else []:
        role, equals, name = part.partition("=")
        if not equals:
            raise InputError("must be role=NAME", field="columns", value=part)
        columns[role.strip()] = name.strip()
    return columns


def _say(lines: Iterable[str]) -> None:
    for line in lines:
        print(line, file=sys.stderr)


def _read(path: str, on_bad_row: str, **options: Any) -> Trace:
    """Read, and tell on standard error what was inferred and which rows were left out."""
    from kvplan.trace.read import read_trace

    trace = read_trace(path, on_bad_row=on_bad_row, **options)  # type: ignore[arg-type]
    _say(f"{trace.origin.path}: {note}" for note in trace.origin.notes)
    _say_bad_rows(trace, on_bad_row)
    return trace


def _say_bad_rows(trace: Trace, on_bad_row: str) -> None:
    origin = trace.origin
    if origin.bad_rows:
        from kvplan.trace.words import counted

        _say([f"{origin.path}: {counted(origin.bad_rows, 'bad row')} left out"])
        if on_bad_row == "report":
            _say(f"{origin.path}: {example}" for example in origin.bad_row_examples)


def _check_output(
    output: str, to: str | None, files: Iterable[str], overwrite: bool, block_size: int | None = None
) -> None:
    """Refuse what cannot be written before a long file is read, and what would be written over a file that is there.

    Of what a trace is written as only Parquet bears kvplan's mark: other programs write the rest, and people edit it.

    Raises:
        InputError: no such format, no such block size, or as `kvplan.commands.targets`.
    """
    from kvplan.trace.writers import writer_for

    if output.strip() == "":
        raise InputError("is empty", field="output", hint="name a file, or - for standard output")
    kind = trace_table if writer_for(output, to, block_size).name == "parquet" else None
    check_file(output, "--output-file", kind, read=files, overwrite=overwrite)


def _write(trace: Trace, output: str, to: str | None, told: Iterable[str] = (), block_size: int | None = None) -> None:
    """Write, and tell on standard error what was done to the trace and what the format cannot keep."""
    from kvplan.trace.words import counted
    from kvplan.trace.writers import write_trace

    written = write_trace(trace, output, to=to, block_size=block_size)
    done = [note for note in trace.origin.notes if note not in told]
    _say([*done, *written.notes, f"{output}: {counted(len(trace), 'request')}, {written.format}"])


@app.command()
def info(
    file: File,
    as_json: Annotated[bool, typer.Option("--json", help="The figures as JSON, nothing else.")] = False,
    format: Format = None,
    time_unit: TimeUnit = None,
    columns: Columns = None,
    on_bad_row: OnBadRow = "error",
    limit: Limit = None,
    output_tokens: OutputTokens = None,
    hash_block_size: HashBlock = None,
    tokenizer: Tokenizer = None,
    seed: Seed = None,
) -> None:
    """What the file holds: counts, rate, burstiness, lengths, what prompts share, and what was inferred."""
    from kvplan.trace.describe import (
        describe,
        fact_lines,
        histogram_lines,
        info_lines,
        no_requests,
        note_lines,
    )
    from kvplan.trace.facts import NoRequestsError
    from kvplan.trace.read import read_trace

    try:
        trace = read_trace(
            file,
            format=format,
            time_unit=time_unit,
            columns=parse_columns(columns),
            on_bad_row=on_bad_row,  # type: ignore[arg-type]
            limit=limit,
            output_tokens=output_tokens,
            block_size=hash_block_size,
            tokenizer=tokenizer,
            seed=seed,
        )
    except NoRequestsError as told:
        if as_json:
            print(json.dumps(no_requests(told), indent=2))
        else:
            print("\n".join([f"{file}: {told.format}: {told.message}", *fact_lines(told.facts)]))
        return
    figures = describe(trace)
    if as_json:
        print(json.dumps(figures, indent=2, allow_nan=False))
        return
    lines = (
        [*info_lines(figures), "understood as:", *note_lines(trace.origin.notes)]
        if trace.origin.notes
        else info_lines(figures)
    )
    print("\n".join(lines))
    for name, values in (("prompt tokens", trace.prompt_tokens), ("output tokens", trace.output_tokens)):
        print("\n".join(histogram_lines(values, name)))
    _say_bad_rows(trace, on_bad_row)


@app.command()
def convert(
    file: File,
    output: Output,
    overwrite: Overwrite = False,
    to: To = None,
    block_size: BlockSize = None,
    format: Format = None,
    time_unit: TimeUnit = None,
    columns: Columns = None,
    on_bad_row: OnBadRow = "error",
    limit: Limit = None,
    output_tokens: OutputTokens = None,
    hash_block_size: HashBlock = None,
    tokenizer: Tokenizer = None,
    seed: Seed = None,
) -> None:
    """Write the trace as mooncake, vllm-timed-trace, aiperf, guidellm, vidur, parquet or yaml."""
    _check_output(output, to, [file], overwrite, block_size)
    trace = _read(
        file,
        on_bad_row,
        format=format,
        time_unit=time_unit,
        columns=parse_columns(columns),
        limit=limit,
        output_tokens=output_tokens,
        block_size=hash_block_size,
        tokenizer=tokenizer,
        seed=seed,
    )
    _write(trace, output, to, trace.origin.notes, block_size)


@app.command("slice")
def slice_(
    file: File,
    output: Output,
    overwrite: Overwrite = False,
    start: Annotated[float | None, typer.Option("--start", help="First second, included.")] = None,
    end: Annotated[float | None, typer.Option("--end", help="Last second, excluded.")] = None,
    first: Annotated[int, typer.Option("--first", help="Skip so many of these requests.")] = 0,
    count: Annotated[int | None, typer.Option("--count", help="Take at most so many.")] = None,
    keep_clock: Annotated[bool, typer.Option("--keep-clock", help="Do not put the first request at 0.")] = False,
    to: To = None,
    format: Format = None,
    time_unit: TimeUnit = None,
    columns: Columns = None,
    on_bad_row: OnBadRow = "error",
) -> None:
    """Write the requests of a stretch of time, or some of them by number."""
    from kvplan.trace.edit import cut

    _check_output(output, to, [file], overwrite)
    trace = _read(file, on_bad_row, format=format, time_unit=time_unit, columns=parse_columns(columns))
    part = cut(trace, start_s=start, end_s=end, first=first, count=count, rebase=not keep_clock)
    _write(part, output, to, trace.origin.notes)


@app.command("scale")
def scale_(
    file: File,
    output: Output,
    overwrite: Overwrite = False,
    rate: Annotated[float | None, typer.Option("--rate", help="Requests per second.")] = None,
    speed: Annotated[float | None, typer.Option("--speed", help="Times as fast.")] = None,
    prompt: Annotated[float | None, typer.Option("--prompt", help="Factor of the prompts' lengths.")] = None,
    output_factor: Annotated[float | None, typer.Option("--output", help="Factor of the outputs' lengths.")] = None,
    seed: Seed = None,
    to: To = None,
    format: Format = None,
    time_unit: TimeUnit = None,
    columns: Columns = None,
    on_bad_row: OnBadRow = "error",
) -> None:
    """Write the same requests at another rate or of other lengths."""
    from kvplan.trace.edit import scale

    _check_output(output, to, [file], overwrite)
    trace = _read(file, on_bad_row, format=format, time_unit=time_unit, columns=parse_columns(columns))
    scaled = scale(trace, rate=rate, speed=speed, prompt=prompt, output=output_factor, seed=seed or 0)
    _write(scaled, output, to, trace.origin.notes)


@app.command("merge")
def merge_(
    files: Files,
    output: Output,
    overwrite: Overwrite = False,
    share: Annotated[
        bool, typer.Option("--share", help="Equal ids of two files are the same text (parts of one trace).")
    ] = False,
    to: To = None,
    on_bad_row: OnBadRow = "error",
) -> None:
    """Write all requests of several traces in order of arrival, each on its own clock."""
    from kvplan.trace.edit import merge

    if files.count("-") > 1:
        raise InputError("standard input can be read once", field="merge", value="-")
    _check_output(output, to, files, overwrite)
    _write(merge([_read(file, on_bad_row) for file in files], share=share), output, to)


@app.command()
def synthesize(
    file: File,
    output: Output = "-",
    overwrite: Overwrite = False,
    requests: Annotated[int | None, typer.Option("--requests", help="How many it draws; default: as many.")] = None,
    seed: Seed = None,
    model: Annotated[str | None, typer.Option("--model", help="Put into the scenario written.")] = None,
    gpu: Annotated[str | None, typer.Option("--gpu", help="Put into the scenario written.")] = None,
    to: To = None,
    format: Format = None,
    time_unit: TimeUnit = None,
    columns: Columns = None,
    on_bad_row: OnBadRow = "error",
) -> None:
    """Fit a generator to the trace and say how close it is.

    OUT.yaml (or -) receives the generator, which tells no single request; any other suffix the requests
    drawn.
    """
    from kvplan.files import write_text
    from kvplan.trace.fit import closeness, fit
    from kvplan.trace.generator_yaml import closeness_lines, generator_yaml
    from kvplan.trace.synthetic import synthesize as draw

    if requests is not None and requests < 1:
        raise InputError("must be at least 1", field="requests", value=requests)
    as_generator = to is None and (output == "-" or output.endswith((".yaml", ".yml")))
    _check_output(output, "yaml" if as_generator else to, [file], overwrite)
    trace = _read(file, on_bad_row, format=format, time_unit=time_unit, columns=parse_columns(columns))
    spec = fit(trace, requests=requests)
    if seed is not None:
        spec["seed"] = seed
    drawn = draw(spec)
    table = closeness_lines(closeness(trace, drawn))
    _say(table)
    if as_generator:
        scenario = {key: value for key, value in (("model", model), ("gpu", gpu)) if value is not None}
        comment = [
            "A generator fitted by `kvplan trace synthesize`; how far it lies from the trace:",
            "",
            *table,
        ]
        text = generator_yaml(spec, comment=comment, scenario=scenario)
        if output == "-":
            print(text, end="")
        else:
            write_text(output, text)
        return
    _write(drawn, output, to)


@app.command()
def formats() -> None:
    """The formats that are read (--format) and written (--to)."""
    from kvplan.trace.read import format_names
    from kvplan.trace.writers import WRITERS

    print("read:    " + ", ".join(format_names()))
    print("written: " + ", ".join(WRITERS))
