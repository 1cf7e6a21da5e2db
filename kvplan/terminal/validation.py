"""A comparison as a table: one line a figure, the error in the last column."""

from __future__ import annotations

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from kvplan.calibration.compare import Comparison, Figure
from kvplan.terminal.formats import UNDEFINED

NAMES = {
    "ttft_s": "TTFT, s",
    "tpot_s": "TPOT, ms",
    "e2e_s": "end to end, s",
    "makespan_s": "makespan, s",
    "output_tokens_per_s": "output tokens/s",
    "peak_running": "peak running",
    "preemptions": "preemptions",
}


def print_validation(console: Console, comparison: Comparison) -> None:
    """The figures, then the pool's curve in one line, then what to know about them."""
    observed = comparison.observed
    console.print(Text(f"{observed.format} {observed.source}: {len(observed):,} requests", style="bold"))
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in ("", "", "observed", "predicted", "error"):
        table.add_column(name, justify="left" if not name else "right")
    for figure in comparison.figures:
        table.add_row(*(Text(cell) for cell in _cells(figure)))
    console.print(table)
    kv = comparison.kv_used
    if kv.get("rms_difference") is not None:
        console.print(
            f"KV cache in use, mean over time: observed {kv['observed_mean']:.1%}, predicted "
            f"{kv['predicted_mean']:.1%}, difference {kv['rms_difference']:.1%} (rms)",
            markup=False,
        )
    for note in (*observed.notes, *comparison.warnings):
        console.print(f"note: {note}", markup=False)


def _cells(figure: Figure) -> tuple[str, str, str, str, str]:
    scale = 1e3 if figure.measure == "tpot_s" else 1.0

    def number(value: float | None) -> str:
        return (
            UNDEFINED
            if value is None
            else f"{value * scale:,.4g}"
            if abs(value * scale) < 1e4
            else f"{value * scale:,.0f}"
        )

    error = "" if figure.error is None else f"{figure.error:+.2%}"
    return NAMES[figure.measure], figure.rank, number(figure.observed), number(figure.predicted), error
