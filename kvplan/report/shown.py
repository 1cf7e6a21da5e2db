"""Numbers as the page shows them: rounded for the eye, exact underneath, and traceable to their source.

Every number on the page is an HTML ``<data>`` element that carries its exact value and the path in
``summary.json`` (or ``diagnosis``) it was read from, so that a test, or a doubtful reader, can hold the two
against each other::

    <data value="0.0216501" data-path="summary.runs.0.latency.ttft_s.p99">21.7 ms</data>
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from markupsafe import Markup

MISSING = "–"


def at(root: Any, path: str) -> Any:
    """The value at a dotted ``path``; None where any part of it is missing.

    A key that itself contains dots cannot be addressed; list indices are written as numbers.
    """
    for part in path.split("."):
        if isinstance(root, Mapping):
            root = root.get(part)
        elif isinstance(root, Sequence) and not isinstance(root, str):
            root = root[int(part)] if part.isdigit() and int(part) < len(root) else None
        else:
            return None
    return root


def is_number(value: Any) -> bool:
    """A finite int or float, and not a bool."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def grouped(value: float, digits: int) -> str:
    """Thousands parted by a narrow no-break space, as 12 345.6."""
    return f"{value:,.{digits}f}".replace(",", "\u202f")


def significant(value: float, digits: int = 3) -> str:
    """``digits`` significant figures, never in exponent form: 0.0123, 1.23, 123, 12 345."""
    if value == 0:
        return "0"
    magnitude = math.floor(math.log10(abs(float(f"{value:.{digits - 1}e}"))))
    return grouped(value, max(0, digits - 1 - magnitude))


def duration(seconds: float) -> str:
    """Three significant figures in the unit that reads best: 870 µs, 21.7 ms, 3.20 s, 2 h 05 min."""
    size = abs(seconds)
    if size == 0:
        return "0 s"
    if size < 0.9995e-3:
        return f"{significant(seconds * 1e6)} µs"
    if size < 0.9995:
        return f"{significant(seconds * 1e3)} ms"
    if size < 999.5:
        return f"{significant(seconds)} s"
    minutes = round(seconds / 60)
    return f"{grouped(minutes, 0)} min" if minutes < 100 else f"{grouped(minutes // 60, 0)} h {minutes % 60:02d} min"


def size(value: float) -> str:
    """Bytes in binary units: 16 B, 128 KiB, 39.2 GiB."""
    for unit, scale in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if abs(value) >= scale:
            return f"{significant(value / scale)} {unit}"
    return f"{significant(value)} B"


def percent(fraction: float, digits: int = 1) -> str:
    return f"{fraction * 100:.{digits}f}%"


def times(ratio: float) -> str:
    """A factor: ×1.62."""
    return f"×{significant(ratio)}"


def change(fraction: float) -> str:
    """A signed relative change: +62%, −0.4%, ±0."""
    points = fraction * 100
    if abs(points) < 0.05:
        return "±0"
    digits = 1 if abs(points) < 10 or -100 < points < -99 else 0
    return f"{'+' if points > 0 else '−'}{grouped(abs(points), digits)}%"


def scientific(value: float) -> str:
    """Four figures, in exponent form only where it is shorter: 3.35e+12, 0.0042."""
    return f"{value:.4g}"


FORMATS = {
    "scientific": scientific,
    "count": lambda value: grouped(value, 0),
    "number": significant,
    "seconds": duration,
    "bytes": size,
    "gib": lambda value: f"{significant(value)} GiB",
    "percent": percent,
    "times": times,
    "change": change,
    "rate": lambda value: f"{significant(value)}/s",
}


def shown(value: Any, path: str, kind: str, text: str | None = None) -> Markup:
    """The ``<data>`` element for ``value`` read from ``path``; an en dash where there is no value."""
    if not is_number(value):
        return Markup('<span class="none">{}</span>').format(MISSING)
    return Markup('<data value="{}" data-path="{}" data-kind="{}">{}</data>').format(
        repr(value), path, kind, text if text is not None else FORMATS[kind](value)
    )


def shares(fractions: Sequence[float], digits: int = 1) -> list[str]:
    """Fractions that sum to 1 as percentages that, as shown, sum to 100 (largest remainders round up)."""
    unit = 100 * 10**digits
    exact = [fraction * unit for fraction in fractions]
    floors = [math.floor(value) for value in exact]
    short = round(sum(exact)) - sum(floors)
    by_remainder = sorted(range(len(exact)), key=lambda index: floors[index] - exact[index])
    for index in by_remainder[:short]:
        floors[index] += 1
    return [f"{value / 10**digits:.{digits}f}%" for value in floors]
