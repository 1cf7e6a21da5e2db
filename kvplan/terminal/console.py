"""Standard output for results, standard error for everything said about them."""

from __future__ import annotations

from rich.console import Console


def standard_output() -> Console:
    return Console(highlight=False)


def standard_error() -> Console:
    return Console(stderr=True, highlight=False)
