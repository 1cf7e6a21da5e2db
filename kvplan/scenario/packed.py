"""A long list of plain values in a few bytes each: a dict of Python's takes ten times its text."""

from __future__ import annotations

import json
from array import array
from collections.abc import Sequence
from typing import Any, overload

_ENCODER = json.JSONEncoder(separators=(",", ":"))


class PackedList(Sequence[Any]):
    """Values that JSON knows, each packed as such and unpacked when it is asked for.

    ``lines``: where each stands, from 1.
    """

    def __init__(self) -> None:
        self.lines = array("I")
        self._texts = bytearray()
        self._ends = array("I", [0])

    def append(self, value: Any, line: int) -> None:
        """Add a value at the end."""
        self._texts += _ENCODER.encode(value).encode()
        self._ends.append(len(self._texts))
        self.lines.append(line)

    def __len__(self) -> int:
        return len(self.lines)

    @overload
    def __getitem__(self, place: int) -> Any: ...

    @overload
    def __getitem__(self, place: slice) -> list[Any]: ...

    def __getitem__(self, place: int | slice) -> Any:
        if isinstance(place, slice):
            return [self[at] for at in range(*place.indices(len(self)))]
        at = range(len(self))[place]
        return json.loads(self._texts[self._ends[at] : self._ends[at + 1]])
