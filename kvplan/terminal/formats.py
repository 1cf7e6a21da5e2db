"""Numbers as people read them: three digits that count, the unit always said, a dash for the undefined."""

from __future__ import annotations

UNDEFINED = "–"


def count(value: float | None) -> str:
    return UNDEFINED if value is None else f"{value:,.0f}"


def counted(number: int, noun: str) -> str:
    """``1 request``, ``20,000 requests``. `kvplan.trace.words` has the same; importing it would import the readers."""
    return f"{number:,} {noun}" + ("" if number == 1 else "s")


def decimal(value: float | None) -> str:
    """``0.0123``, ``1.23``, ``12.3``, ``1,234``."""
    if value is None:
        return UNDEFINED
    size = abs(value)
    if size >= 100:
        return f"{value:,.0f}"
    digits = 1 if size >= 10 else 2 if size >= 1 or size == 0 else 3
    return f"{value:.{digits}f}"


def percent(fraction: float | None) -> str:
    return UNDEFINED if fraction is None else f"{100 * fraction:.1f} %"


def gib(value: float | None) -> str:
    return UNDEFINED if value is None else f"{value:,.2f} GiB"


def kib(value_bytes: float | None) -> str:
    return UNDEFINED if value_bytes is None else f"{value_bytes / 1024:,.4g} KiB"


def seconds(value: float | None) -> str:
    """``12.3 ms``, ``1.23 s``, ``4.56 min``, ``1.23 h``."""
    if value is None:
        return UNDEFINED
    for limit, size, unit in ((1.0, 1e-3, "ms"), (120.0, 1.0, "s"), (7200.0, 60.0, "min")):
        if abs(value) < limit:
            return f"{decimal(value / size)} {unit}"
    return f"{decimal(value / 3600)} h"
