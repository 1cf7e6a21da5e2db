"""A profile as a person reads it: where it comes from, what it holds, how far interpolation errs."""

from __future__ import annotations

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from kvplan.timing.profile import Profile


def print_profile(console: Console, profile: Profile) -> None:
    """The head, then for each TP a line an operation with its leave-one-out errors."""
    console.print(Text(profile.name, style="bold"))
    facts = {**profile.machine, **{f"{name}": version for name, version in profile.versions.items()}, **profile.source}
    shown = ", ".join(f"{name} {value}" for name, value in facts.items() if value not in ("", None))
    console.print(Text(shown))
    for note in profile.notes:
        console.print(Text(note))
    for tp, errors in profile.errors.items():
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False, title=f"tensor_parallel_size {tp}: leave-one-out errors")
        for name in ("", "points", "median", "p90", "worst", "bias"):
            table.add_column(name, justify="right" if name else "left")
        for operation, error in errors.items():
            cells = [f"{error[name]:.1%}" for name in ("median", "p90", "worst")]
            few = not error["points"]
            table.add_row(
                operation,
                f"{error['points']:,}",
                *(["–"] * 4 if few else [*cells, f"{error['bias']:+.1%}"]),
            )
        console.print(table)
