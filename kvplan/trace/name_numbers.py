"""Names become numbers, 0, 1, ... as they appear: sessions, prefixes and block ids that are texts.

A dictionary takes 150 bytes and more a name. A file of a million sessions, each named in four characters, would take
thirty times its size; here a name takes about 20 bytes once there are many, as what is kept of it is a hash.
"""

from __future__ import annotations

from array import array
from collections.abc import Hashable, Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvplan.trace.trace import Longs

FEW = 1 << 14
"""So many names stand in a dictionary, which is faster."""

_LEAST_PLACES = 4 * FEW


class NameNumbers:
    """Numbers for names, equal for equal ones (as dictionaries have it: 1 is 1.0).

    Beyond ``FEW`` names two are taken for equal when Python's 64-bit hashes of their texts are: among ten million
    names that happens by chance once in 300,000 files, and the hash is seeded, so that no file can make it happen.
    """

    def __init__(self) -> None:
        self._few: dict[Hashable, int] | None = {}
        self._hashes = array("q")  # of name 0, 1, ...
        # Open addressing: a name's number + 1 stands at its hash, or at the next place that was free; 0 is free.
        self._places: NDArray[np.int32] = np.zeros(0, np.int32)
        self._at = self._places.data  # an element of a NumPy array takes three times as long to fetch

    def __len__(self) -> int:
        return len(self._hashes) if self._few is None else len(self._few)

    def find(self, name: Hashable) -> int:
        """The name's number, -1 where it has not appeared."""
        if self._few is not None:
            return self._few.get(name, -1)
        return self._at[self._place(_hash(name))] - 1

    def number(self, name: Hashable) -> int:
        """The name's number, a new one where it has not appeared."""
        if self._few is not None:
            number = self._few.setdefault(name, len(self._few))
            if number >= FEW:
                self._become_many()
            return number
        value = _hash(name)
        place = self._place(value)
        found = self._at[place]
        if not found:
            self._hashes.append(value)
            found = self._at[place] = len(self._hashes)
            if 3 * found > 2 * len(self._places):
                self._grow()
        return found - 1

    def numbers(self, names: Iterable[Hashable]) -> Longs:
        """``number`` of each, int64[names]."""
        return np.fromiter(map(self.number, names), np.int64)

    def _place(self, value: int) -> int:
        """Where the hash stands, or where it belongs."""
        at, hashes, last = self._at, self._hashes, len(self._places) - 1
        place = value & last
        while (found := at[place]) and hashes[found - 1] != value:
            place = (place + 1) & last
        return place

    def _become_many(self) -> None:
        assert self._few is not None
        self._hashes = array("q", map(_hash, self._few))
        self._few = None
        self._grow()

    def _grow(self) -> None:
        places = max(_LEAST_PLACES, 2 * len(self._places))
        while 3 * len(self._hashes) > 2 * places:
            places *= 2
        self._at.release()
        self._places = np.zeros(places, np.int32)  # the old ones are given back first
        self._at = self._places.data
        _settle(np.frombuffer(self._hashes, np.int64), self._places)


def _settle(hashes: Longs, places: NDArray[np.int32]) -> None:
    """Give every hash its place among free ones."""
    last = len(places) - 1
    for begin in range(0, len(hashes), 1 << 16):
        number = np.arange(begin + 1, min(begin + (1 << 16), len(hashes)) + 1, dtype=np.int32)
        place = hashes[number - 1] & last
        while len(number):
            free = places[place] == 0
            places[place[free]] = number[free]  # of several that want one place the last gets it
            homeless = places[place] != number
            number, place = number[homeless], (place[homeless] + 1) & last


def _hash(name: Hashable) -> int:
    """64 bits of the name's text: the hash of a number is the number itself, modulo 2^61 - 1."""
    if isinstance(name, str):
        return hash(name)
    if isinstance(name, float) and name.is_integer():
        name = int(name)
    plain: Any = int(name) if isinstance(name, bool) else name
    return hash(("name", repr(plain)))
