"""What kind of file this is, by its content; never by its name."""

from __future__ import annotations

from enum import Enum

from kvplan.trace.source import Source


class Kind(Enum):
    """How the bytes are to be parsed; which format they hold is told by the parsed names."""

    JSON = "json"
    CSV = "csv"


def detect_kind(source: Source) -> Kind:
    """The kind of ``source``."""
    text = source.head.removeprefix(b"\xef\xbb\xbf").lstrip()
    if text[:1] in (b"{", b"["):
        return Kind.JSON
    return Kind.CSV
