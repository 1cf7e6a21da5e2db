"""A progress bar on standard error; nothing where that is no terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

ProgressCallback = Callable[[str, int, int], None]
"""Called with the name of the run, the requests done (finished or refused) and their total."""

COMPILING = "compiling the simulator, this once"


@contextmanager
def progress_bar(console: Console) -> Iterator[ProgressCallback]:
    """One bar a run, drawn while the block lasts and then taken away; before the first, what a first start does."""
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        tasks: dict[str, int] = {}
        if console.is_terminal:
            from kvplan.core.first_start import is_compiled  # numba: half a second

            if not is_compiled():
                tasks[COMPILING] = int(progress.add_task(COMPILING, total=None))

        def advance(run: str, done: int, total: int) -> None:
            if COMPILING in tasks:
                progress.remove_task(tasks.pop(COMPILING))  # type: ignore[arg-type]
            if run not in tasks:
                tasks[run] = int(progress.add_task(run, total=total))
            progress.update(tasks[run], completed=done)  # type: ignore[arg-type]

        yield advance
