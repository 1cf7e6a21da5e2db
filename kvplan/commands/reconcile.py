"""``kvplan reconcile``."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from kvplan.catalog import load_gpu, load_model
from kvplan.commands.targets import Overwrite, check_file
from kvplan.commands.written import signed
from kvplan.errors import InputError
from kvplan.memory.checks import Check
from kvplan.memory.logs import read_servers
from kvplan.memory.overrides import save_overrides
from kvplan.memory.reconcile import Reconciliation, reconcile
from kvplan.memory.reports import check_report, model_named
from kvplan.memory.server_facts import ServerFacts
from kvplan.terminal.console import standard_error, standard_output
from kvplan.terminal.reconcile import print_reconciliation


def _option(*flags: str, help: str, metavar: str | None = None) -> Any:
    return typer.Option(*flags, help=help, metavar=metavar, show_default=False)


def reconcile_log(
    log: Annotated[
        str, typer.Argument(metavar="LOG", help="A start-up log, a /metrics page, a report's .json, or - to read one.")
    ],
    model: Annotated[str | None, _option("--model", help="where the log does not name a known model")] = None,
    gpu: Annotated[str | None, _option("--gpu", help="to lay kvplan's own prediction beside the log")] = None,
    engine_version: Annotated[str | None, _option("--engine-version", help="where the log does not say")] = None,
    tensor_parallel_size: Annotated[int | None, _option("--tensor-parallel-size", "-tp", help="as above")] = None,
    pipeline_parallel_size: Annotated[int | None, _option("--pipeline-parallel-size", "-pp", help="as above")] = None,
    block_size: Annotated[int | None, _option("--block-size", help="as above")] = None,
    kv_cache_dtype: Annotated[str | None, _option("--kv-cache-dtype", help="as above")] = None,
    gpu_memory_utilization: Annotated[float | None, _option("--gpu-memory-utilization", help="as above")] = None,
    max_model_len: Annotated[int | None, _option("--max-model-len", help="as above")] = None,
    max_num_batched_tokens: Annotated[int | None, _option("--max-num-batched-tokens", help="as above")] = None,
    max_num_seqs: Annotated[int | None, _option("--max-num-seqs", help="as above")] = None,
    async_scheduling: Annotated[
        bool | None, _option("--async-scheduling/--no-async-scheduling", help="as above")
    ] = None,
    save: Annotated[
        Path | None,
        _option(
            "--save",
            metavar="FILE",
            help="keep the measured terms for `kvplan memory --overrides` and `kvplan simulate --memory-overrides`",
        ),
    ] = None,
    overwrite: Overwrite = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")] = False,
) -> None:
    """Explain a server's own memory figures: do they add up, and what do its token and block lines count?"""
    stated = {
        "model": model,
        "version": engine_version,
        "tensor_parallel_size": tensor_parallel_size,
        "pipeline_parallel_size": pipeline_parallel_size,
        "block_size": block_size,
        "kv_cache_dtype": kv_cache_dtype,
        "gpu_memory_utilization": gpu_memory_utilization,
        "max_model_len": max_model_len,
        "max_num_batched_tokens": max_num_batched_tokens,
        "max_num_seqs": max_num_seqs,
        "async_scheduling": async_scheduling,
    }
    if save is not None:
        check_file(save, "--save", signed, read=[log, model, gpu], overwrite=overwrite)
    text = _read(log)
    if reports := _reports(log, text):
        _print_reports(reports, as_json)
        return
    given = {name: value for name, value in stated.items() if value is not None}
    servers = [facts.with_values(**given) for facts in read_servers(text.splitlines(), source=log)]
    card = load_gpu(gpu) if gpu else None
    results = [reconcile(facts, load_model(model) if model else model_named(facts.model), card) for facts in servers]
    if as_json:
        rows = [_summary(result) for result in results]
        typer.echo(json.dumps(rows[0] if len(rows) == 1 else rows, indent=2))
    else:
        _print(results, card is not None)
    if save is not None:
        save_overrides(results[-1].overrides, save, header=_header(servers[-1]))


def _print(results: list[Reconciliation], predicted: bool) -> None:
    console = standard_output()
    for number, result in enumerate(results, start=1):
        if len(results) > 1:
            console.rule(f"server {number}", align="left")
        print_reconciliation(console, result)
    error, last = standard_error(), results[-1]
    if last.model is None:
        named = f"the catalogue does not know {last.facts.model!r}" if last.facts.model else "the log names no model"
        error.print(f"{named}: --model lets its blocks be computed", markup=False, soft_wrap=True)
    elif not predicted:
        error.print("--gpu lays kvplan's own prediction beside the log", markup=False, soft_wrap=True)


def _read(log: str) -> str:
    if log == "-":
        return sys.stdin.read()
    try:
        return Path(log).read_text(encoding="utf-8-sig", errors="replace")
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", field="LOG", source=log) from None


def _reports(log: str, text: str) -> list[dict[str, Any]]:
    """The structured reports in a .json file; an empty list for anything else."""
    if not log.endswith(".json"):
        return []
    try:
        document = json.loads(text)
    except json.JSONDecodeError as error:
        raise InputError(f"not JSON: {error.msg}", source=log, line=error.lineno, column=error.colno) from None
    entries = document if isinstance(document, list) else [document]
    if not entries or not all(isinstance(entry, dict) for entry in entries):
        raise InputError("a report is a mapping with `reported` figures, or a list of such", source=log)
    return entries


def _print_reports(reports: list[dict[str, Any]], as_json: bool) -> None:
    checked = [check_report(report) for report in reports]
    if as_json:
        rows = [{"id": one.report_id, "reason": one.reason, **_summary(one.reconciliation)} for one in checked]
        typer.echo(json.dumps(rows, indent=2))
        return
    console = standard_output()
    for one in checked:
        if one.report_id:
            console.rule(one.report_id, align="left")
        print_reconciliation(console, one.reconciliation, one.reason)


def _summary(result: Reconciliation) -> dict[str, Any]:
    return {
        "verdict": result.verdict,
        "facts": result.facts.known(),
        "terms": [
            {"name": line.name, "logged_gib": line.logged_gib, "predicted_gib": line.predicted_gib, "error": line.error}
            for line in result.lines
        ],
        "checks": [_check(check) for check in result.checks],
        "findings": list(result.findings),
    }


def _check(check: Check) -> dict[str, Any]:
    error = check.error
    return {
        "name": check.name,
        "logged": check.logged,
        "computed": check.computed,
        "unit": check.unit,
        "error": error if abs(error) != float("inf") else None,
        "agrees": check.agrees,
        "definition": check.words,
    }


def _header(facts: ServerFacts) -> dict[str, Any]:
    named = ("engine", "version", "model", "tensor_parallel_size", "pipeline_parallel_size", "max_num_batched_tokens")
    return {name: value for name, value in facts.known().items() if name in named}
