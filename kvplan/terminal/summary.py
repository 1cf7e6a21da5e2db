"""A summary as a table: one column a run, with the shape of the run below its numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from kvplan.terminal.formats import count, counted, decimal, gib, kib, percent, seconds
from kvplan.terminal.sparkline import sparkline
from kvplan.terminal.verdict import verdict

if TYPE_CHECKING:
    import pandas

Run = Mapping[str, Any]
Shown = Callable[[Run], str]

RUNS_BESIDE = 5
"""Columns in one table; more runs get further tables."""

_WHERE = ("used", "reserved", "internal", "external", "cached", "free")
_PERCENTILES = ("p50", "p99")


def print_summary(console: Console, summary: Mapping[str, Any], timeline: pandas.DataFrame) -> None:
    """The table, the curves and the verdict of a result."""
    runs = summary["runs"]
    console.print(Text(_headline(summary), style="bold"))
    for start in range(0, len(runs), RUNS_BESIDE):
        console.print(_table(runs[start : start + RUNS_BESIDE], timeline))
    console.print(Text(verdict(summary), style="bold"))


def _headline(summary: Mapping[str, Any]) -> str:
    scenario, first = summary["scenario"], summary["runs"][0]
    names = [_name(scenario[key]) for key in ("model", "gpu")]
    engine = f"{scenario['engine']['name']} {scenario['engine']['version']}"
    return f"{names[0]} on {names[1]}, {engine}: {counted(first['requests']['total'], 'request')}"


def _name(reference: Any) -> str:
    return str(reference.get("name", "a custom one")) if isinstance(reference, Mapping) else str(reference)


def _table(runs: list[Run], timeline: pandas.DataFrame) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("")
    for run in runs:
        table.add_column(Text(str(run["name"])), justify="right")
    for label, shown in _rows():
        cells = [shown(run) for run in runs]
        table.add_row(label, *(Text(cell) for cell in cells))
    for label, curve in _curves(runs, timeline):
        table.add_row(label, *(Text(curve(run), style="cyan", justify="left") for run in runs))
    return table


def _rows() -> Iterator[tuple[str, Shown]]:
    yield "KV pool", lambda run: gib(run["memory"]["pool_gib"])
    yield "blocks", lambda run: count(run["memory"]["num_gpu_blocks"])
    yield "KV per token", lambda run: kib(run["memory"]["kv_bytes_per_token"])
    for word in _WHERE:
        yield f"pool: {word}, mean", lambda run, word=word: percent(run["memory"]["mean"][word])  # type: ignore[misc]
    yield "pool: used at the peak", lambda run: percent(run["memory"]["peak"]["used"])
    yield "running at once, mean", lambda run: decimal(run["concurrency"]["mean"])
    yield "running at once, peak", lambda run: count(run["concurrency"]["peak"])
    yield "finished", lambda run: count(run["requests"]["finished"])
    yield "refused", lambda run: count(run["requests"]["refused"])
    yield "preemptions", lambda run: count(run["requests"]["preemptions"])
    for label, metric in (
        ("queue", "queue_s"),
        ("TTFT", "ttft_s"),
        ("TPOT", "tpot_s"),
        ("end to end", "e2e_s"),
    ):
        for rank in _PERCENTILES:
            yield f"{label} {rank}", lambda run, m=metric, r=rank: seconds(run["latency"][m][r])  # type: ignore[misc]
    yield "output tokens/s", lambda run: count(run["throughput"]["output_tokens_per_s"])
    yield "requests/s", lambda run: decimal(run["throughput"]["requests_per_s"])
    yield "requests/s in the SLO", lambda run: decimal(run["throughput"]["goodput_requests_per_s"])
    yield "prefix hits", lambda run: percent(run["prefix_cache"]["hit_rate"])


def _curves(runs: list[Run], timeline: pandas.DataFrame) -> Iterator[tuple[str, Shown]]:
    """Peaks over time. The pool against its size, counts against the largest of all runs."""
    for label, column in (
        ("pool in use, over time", "allocated_max"),
        ("running, over time", "running_max"),
        ("waiting, over time", "waiting_max"),
    ):
        top = 1.0 if column == "allocated_max" else float(timeline[column].max()) if len(timeline) else 0.0

        def curve(run: Run, column: str = column, top: float = top) -> str:
            values = timeline.loc[timeline["run"] == run["name"], column].to_numpy(dtype=float)
            return sparkline(values.tolist(), top=top)

        yield label, curve
