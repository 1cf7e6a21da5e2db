"""What requests are called, in 16 bytes a name of up to 15: an object of Python's takes 60."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvplan.trace.rows import written_name
from kvplan.trace.trace import Wholes

_TEXT = np.dtypes.StringDType()
_AT_ONCE = 1 << 12


class Names:
    """The names of a file's rows; a row without one is called by its number."""

    def __init__(self) -> None:
        self._rows = 0
        self._named = False
        self._done: list[NDArray[Any]] = []
        self._open: list[str] = []

    def append(self, name: str | None) -> None:
        """The next row's."""
        if name is None and not self._named:
            self._rows += 1
            return
        self.extend([name], 1)

    def extend(self, names: Iterable[str | None] | None, rows: int) -> None:
        """The next ``rows`` rows'; None: they have none."""
        if names is None and not self._named:
            self._rows += rows
            return
        if not self._named:  # the rows so far
            self._named = True
            before, self._rows = self._rows, 0
            self.extend(None, before)
        for name in [None] * rows if names is None else names:
            self._open.append(str(self._rows) if name is None else written_name(name))
            self._rows += 1
            if len(self._open) >= _AT_ONCE:
                self._pack()

    def taken(self, chosen: Wholes | None) -> NDArray[Any] | None:
        """As ``Trace.request_id`` takes them, those of the ``chosen`` rows (None: all).

        Where no row has a name: the rows' numbers, None where each stands in its place. Nothing is kept here.
        """
        if not self._named:
            return chosen
        self._pack()
        whole, at = np.empty(self._rows, _TEXT), 0
        done, self._done = self._done[::-1], []
        while done:
            part = done.pop()  # it is freed as soon as it is copied
            whole[at : at + len(part)] = part
            at += len(part)
        return whole if chosen is None else whole[chosen]

    def _pack(self) -> None:
        if self._open:
            self._done.append(np.array(self._open, _TEXT))
            self._open = []
