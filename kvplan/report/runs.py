"""Which runs a page compares, and how each is called and coloured."""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kvplan.report.shown import at

MAX_COMPARED = 6
"""More lines than this in one figure cannot be told apart; the rest stay in the tables."""

PARTS = ("used", "cached", "reserved", "internal", "external", "free")
"""The order in which the pool is stacked: useful at the bottom, waste above it, nothing on top."""

PART_WORDS = {
    "used": "holds live tokens",
    "cached": "reusable prefixes",
    "reserved": "will be filled later",
    "internal": "allocated, never filled",
    "external": "free, but in no usable piece",
    "free": "free",
}

_UNPRINTABLE = {"Cc", "Cf", "Cs", "Co", "Zl", "Zp"}


def plain(name: object, limit: int = 60) -> str:
    """A name that came from outside, safe to set in running text: one line, no control or direction
    characters.

    Longer than ``limit`` is cut with an ellipsis. (Escaping for HTML is the template's job, not this one's.)
    """
    text = "".join(
        char if unicodedata.category(char) not in _UNPRINTABLE or char == "\u200d" else "\ufffd"
        for char in str(name)[: 4 * limit]
    )
    return text if len(text) <= limit else text[: limit - 1] + "…"


def plotly_text(name: object, limit: int = 60) -> str:
    """``plain``, with the characters escaped that plotly would read as markup."""
    text = plain(name, limit)
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


@dataclass(frozen=True)
class Run:
    """One entry of ``summary["runs"]`` and where it stands there."""

    index: int
    key: str
    """The name as it stands in the data frames' ``run`` column."""
    values: Mapping[str, Any]
    tone: int
    """Number of its colour and dash, -1 when it is not drawn."""

    @property
    def label(self) -> str:
        return plain(self.key, 48)

    def path(self, inside: str) -> str:
        return f"summary.runs.{self.index}.{inside}"

    def get(self, inside: str) -> Any:
        return at(self.values, inside)


def is_sweep_point(run: Mapping[str, Any]) -> bool:
    """Sweep points are named ``key=value`` by the scenario; variants are named by people."""
    return bool(run.get("sweep")) or ("=" in str(run.get("name", "")) and "." in str(run["name"]).split("=")[0])


def read_runs(summary: Mapping[str, Any]) -> list[Run]:
    """Every run, base first; the first ``MAX_COMPARED`` that are no sweep points get a colour."""
    runs, tone = [], 0
    for index, values in enumerate(summary.get("runs") or ()):
        drawn = tone < MAX_COMPARED and (index == 0 or not is_sweep_point(values))
        runs.append(Run(index, str(values.get("name", index)), values, tone if drawn else -1))
        tone += drawn
    return runs
