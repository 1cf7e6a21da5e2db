"""A reconciliation as tables: the terms logged and predicted, the equations, and what they say."""

from __future__ import annotations

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from kvplan.memory.checks import Check
from kvplan.memory.reconcile import Line, Reconciliation
from kvplan.terminal.formats import UNDEFINED

_VERDICTS = {
    "agrees": "the figures agree",
    "differs": "the figures differ from the model's",
    "cannot balance": "the figures cannot all be true",
    "nothing to check": "no two figures can be held against each other",
}


def print_reconciliation(console: Console, result: Reconciliation, reason: str = "") -> None:
    """What the log says, what kvplan computes, and the verdict in words."""
    shown = {name: value for name, value in result.facts.known().items() if not name.endswith(("_gib", "_bytes"))}
    console.print(Text("read: " + ", ".join(f"{name} {value}" for name, value in shown.items())), soft_wrap=True)
    if result.lines:
        console.print(_lines(result.lines))
    if result.checks:
        console.print(_checks(result.checks))
    console.print(Text(f"{_VERDICTS[result.verdict]}{': ' + reason if reason else ''}", style="bold"), soft_wrap=True)
    for finding in result.findings:
        console.print(Text(f"- {finding}"), soft_wrap=True)


def _lines(lines: tuple[Line, ...]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("GiB")
    for title in ("logged", "predicted", "error"):
        table.add_column(title, justify="right")
    for line in lines:
        error = line.error
        table.add_row(
            line.name,
            UNDEFINED if line.logged_gib is None else f"{line.logged_gib:.2f}",
            UNDEFINED if line.predicted_gib is None else f"{line.predicted_gib:.2f}",
            UNDEFINED if error is None else f"{error:+.1%}",
        )
    return table


def _checks(checks: tuple[Check, ...]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("from the log's own figures")
    for title in ("logged", "computed", "error"):
        table.add_column(title, justify="right")
    table.add_column("")
    table.add_column("as")
    for check in checks:
        table.add_row(
            check.name,
            _figure(check.logged, check.unit),
            _figure(check.computed, check.unit),
            f"{check.error:+.2%}",
            "ok" if check.agrees else "differs",
            Text(check.words),
        )
    return table


def _figure(value: float, unit: str) -> str:
    if unit in ("GiB", "x"):
        return f"{value:,.2f} {unit}"
    return f"{value:,.0f} {unit}"
