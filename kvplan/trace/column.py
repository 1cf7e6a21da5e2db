"""A column that grows row by row and takes no room while every row has the default."""

from __future__ import annotations

from array import array

import numpy as np

from kvplan.trace.trace import Longs


class Column:
    """Whole numbers, ``default`` where nothing else is said. Most files never name most columns."""

    def __init__(self, default: int) -> None:
        self.default = default
        self._rows = 0
        self._values: array[int] | None = None

    def append(self, value: int) -> None:
        """The next row's."""
        if self._values is not None:
            self._values.append(value)
        elif value == self.default:
            self._rows += 1
        else:
            self._values = array("q", [self.default]) * self._rows
            self._values.append(value)

    def extend(self, values: Longs | None, rows: int) -> None:
        """The next ``rows`` rows'; None: the default."""
        if values is None and self._values is None:
            self._rows += rows
            return
        if self._values is None:
            self._values = array("q", [self.default]) * self._rows
        told = np.full(rows, self.default) if values is None else values
        self._values.frombytes(told.astype("q").tobytes())

    def taken(self) -> Longs | None:
        """The column, None where no row has anything but the default; nothing is kept here any more."""
        values, self._values = self._values, None
        if values is None:
            return None
        column = np.frombuffer(values, np.int64)  # no copy
        return None if (column == self.default).all() else column
