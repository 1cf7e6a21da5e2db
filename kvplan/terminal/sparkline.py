"""A curve in one line of text."""

from __future__ import annotations

from collections.abc import Sequence

_BARS = " ▁▂▃▄▅▆▇█"


def sparkline(values: Sequence[float], *, top: float, width: int = 24) -> str:
    """The largest of each stretch of ``values`` (a peak is never lost), as bars from 0 to ``top``.

    Anything above 0 shows at least the lowest bar.
    """
    cells = min(width, len(values))
    text = ""
    for cell in range(cells):
        peak = max(values[len(values) * cell // cells : len(values) * (cell + 1) // cells])
        height = 0.0 if top <= 0 else min(max(peak / top, 0.0), 1.0) * (len(_BARS) - 1)
        text += _BARS[0] if height == 0 else _BARS[max(1, round(height))]
    return text
