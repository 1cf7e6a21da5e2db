"""Words for people: a number with its noun, and the names that one could have meant."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def counted(count: int, noun: str) -> str:
    """``1 request``, ``12,031 requests``."""
    return f"{count:,} {noun}" + ("" if count == 1 else "s")


def names(word: str, known: Iterable[str]) -> str:
    """All that are known, after the one that ``word`` was likely meant to be."""
    known = list(known)
    near = difflib.get_close_matches(word, known, 1)
    return (f"did you mean {near[0]!r}? " if near else "") + "known are " + ", ".join(known)
