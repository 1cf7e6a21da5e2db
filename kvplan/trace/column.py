"""A column that grows row by row: four bytes a row where they hold it, none while every row has the default."""

from __future__ import annotations

from array import array
from typing import Any, overload

import numpy as np

from kvplan.trace.trace import Longs, Wholes


class Column:
    """Whole numbers of 64 bits.

    Args:
        default: what most files say in every row, by never naming the column; None: there is none.
    """

    def __init__(self, default: int | None = None) -> None:
        self.default = default
        self._rows = 0  # that have the default, as long as all have
        self._values = array("i") if default is None else None

    def __len__(self) -> int:
        return self._rows if self._values is None else len(self._values)

    def append(self, value: int) -> None:
        """The next row's."""
        values = self._values
        if values is None:
            if value == self.default:
                self._rows += 1
                return
            values = self._begin()
        try:
            values.append(value)
        except OverflowError:
            self._widened().append(value)

    def extend(self, values: Wholes | None, rows: int) -> None:
        """The next ``rows`` rows'; None: the default."""
        if self._values is None and values is None:
            self._rows += rows
            return
        kept = self._begin() if self._values is None else self._values
        told = np.full(rows, self.default) if values is None else values
        if kept.typecode == "i":
            narrow = told.astype(np.intc)
            if np.array_equal(narrow, told):
                kept.frombytes(narrow.tobytes())
                return
            kept = self._widened()
        kept.frombytes(told.astype(np.int64).tobytes())

    def __getitem__(self, row: int) -> int:
        if self._values is not None:
            return self._values[row]
        assert self.default is not None
        return self.default

    def __setitem__(self, row: int, value: int) -> None:
        assert self._values is not None
        try:
            self._values[row] = value
        except OverflowError:
            self._widened()[row] = value

    @overload
    def taken(self) -> Longs | None: ...

    @overload
    def taken(self, *, narrow: bool) -> Wholes | None: ...

    def taken(self, *, narrow: bool = False) -> Wholes | None:
        """The column, int64 (``narrow``: int32 where that holds it); nothing is kept here any more.

        None where no row has anything but the default.
        """
        values, self._values, self._rows = self._values, None, 0
        if values is None:
            return None
        kind: type[np.signedinteger[Any]] = np.intc if values.typecode == "i" else np.int64
        column: Wholes = np.frombuffer(values, kind) if values else np.zeros(0, kind)  # no copy
        if self.default is not None and (column == self.default).all():
            return None
        return column if narrow else column.astype(np.int64, copy=False)

    def _begin(self) -> array[int]:
        assert self.default is not None
        self._values = array("i", [self.default]) * self._rows
        return self._values

    def _widened(self) -> array[int]:
        assert self._values is not None
        self._values = array("q", self._values)
        return self._values
