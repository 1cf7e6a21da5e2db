"""64-bit values become numbers, 0, 1, ... as they appear, in about 16 bytes each: a dictionary takes 100 and more."""

from __future__ import annotations

from array import array
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from kvplan.trace.trace import Longs

LEAST_PLACES = 1 << 12


class HashNumbers:
    """Numbers for values that are spread evenly over 64 bits, signed, as Python's hashes of texts and tuples are.

    Args:
        values: the first ones, different from one another.
    """

    def __init__(self, values: Iterable[int] = ()) -> None:
        self._values = array("q", values)
        # Open addressing: a value's number + 1 stands at its place, or at the next that was free; 0 is free.
        self._places: NDArray[np.int32] = np.zeros(0, np.int32)
        self._at = self._places.data  # an element of a NumPy array takes three times as long to fetch
        self._grow()

    def __len__(self) -> int:
        return len(self._values)

    def find(self, value: int) -> int:
        """The value's number, -1 where it has not appeared."""
        return self._at[self._place(value)] - 1

    def number(self, value: int) -> int:
        """The value's number, a new one where it has not appeared."""
        place = self._place(value)
        found = self._at[place]
        if not found:
            self._values.append(value)
            found = self._at[place] = len(self._values)
            if 3 * found > 2 * len(self._places):
                self._grow()
        return found - 1

    def _place(self, value: int) -> int:
        """Where the value stands, or where it belongs."""
        at, values, last = self._at, self._values, len(self._places) - 1
        place = value & last
        while (found := at[place]) and values[found - 1] != value:
            place = (place + 1) & last
        return place

    def _grow(self) -> None:
        places = max(LEAST_PLACES, 2 * len(self._places))
        while 3 * len(self._values) > 2 * places:
            places *= 2
        self._at.release()
        self._places = np.zeros(places, np.int32)  # the old ones are given back first
        self._at = self._places.data
        if self._values:
            _settle(np.frombuffer(self._values, np.int64), self._places)


def _settle(values: Longs, places: NDArray[np.int32]) -> None:
    """Give every value its place among free ones."""
    last = len(places) - 1
    for begin in range(0, len(values), 1 << 16):
        number = np.arange(begin + 1, min(begin + (1 << 16), len(values)) + 1, dtype=np.int32)
        place = values[number - 1] & last
        while len(number):
            free = places[place] == 0
            places[place[free]] = number[free]  # of several that want one place the last gets it
            homeless = places[place] != number
            number, place = number[homeless], (place[homeless] + 1) & last
