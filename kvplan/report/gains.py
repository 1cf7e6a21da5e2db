"""What each simulated change gave, ready for the page."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from kvplan.report.runs import plain
from kvplan.report.shown import at, is_number, shown

GAINS = (
    ("concurrency_gain", "concurrency", 1),
    ("output_tokens_per_s_gain", "throughput", 1),
    ("ttft_p99_s_gain", "TTFT p99", -1),
)
FULL_SCALE = math.log(8)
"""A meter is full at a factor of 8 either way; the middle is no change."""


def meter(gain: float) -> str:
    """CSS of a bar from the middle: logarithmic, so that doubling and halving are equally long."""
    length = min(1.0, abs(math.log(max(1 + gain, 1e-9))) / FULL_SCALE) * 50
    return f"left:50%;width:{length:.1f}%" if gain >= 0 else f"right:50%;width:{length:.1f}%"


def rows(diagnosis: Mapping[str, Any]) -> list[dict[str, Any]]:
    """One entry a change, in the diagnosis' own order. One that did not run shows why instead."""
    out = []
    for index, item in enumerate(at(diagnosis, "changes") or ()):
        cells = []
        for key, label, good in GAINS:
            gain = item.get(key)
            if is_number(gain):
                matters = abs(gain) >= 0.01
                tone = ("better" if gain * good > 0 else "worse") if matters else ""
                path = f"diagnosis.changes.{index}.{key}"
                cells.append({"label": label, "shown": shown(gain, path, "change"), "style": meter(gain), "tone": tone})
        out.append(
            {
                "label": plain(item.get("label", ""), 80),
                "flags": plain(item.get("flags") or "", 160),
                "outcome": plain(item.get("outcome") or "", 200),
                "gains": cells,
                "best": bool(item.get("best")),
                "words": plain(item.get("what") or "", 400),
                "unchanged": plain(item.get("unchanged") or "", 400),
                "risk": plain(item.get("risk") or "", 400),
            }
        )
    return out
