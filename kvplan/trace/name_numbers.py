"""Names become numbers, 0, 1, ... as they appear: sessions, prefixes and block ids that are texts.

A dictionary takes 150 bytes and more a name. A file of a million sessions, each named in four characters, would take
thirty times its size; here a name takes about 20 bytes once there are many, as what is kept of it is a hash.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

from kvplan.trace.hash_numbers import HashNumbers

FEW = 1 << 14
"""So many names stand in a dictionary, which is faster."""


class NameNumbers:
    """Numbers for names, equal for equal ones (as dictionaries have it: 1 is 1.0).

    Beyond ``FEW`` names two are taken for equal when Python's 64-bit hashes of their texts are: among ten million
    names that happens by chance once in 300,000 files, and the hash is seeded, so that no file can make it happen.
    """

    def __init__(self) -> None:
        self._few: dict[Hashable, int] = {}
        self._many: HashNumbers | None = None

    def __len__(self) -> int:
        return len(self._few) if self._many is None else len(self._many)

    def find(self, name: Hashable) -> int:
        """The name's number, -1 where it has not appeared."""
        return self._few.get(name, -1) if self._many is None else self._many.find(_hash(name))

    def number(self, name: Hashable) -> int:
        """The name's number, a new one where it has not appeared."""
        if self._many is not None:
            return self._many.number(_hash(name))
        number = self._few.setdefault(name, len(self._few))
        if number >= FEW:
            self._many = HashNumbers(map(_hash, self._few))
            self._few.clear()
        return number


def _hash(name: Hashable) -> int:
    """64 bits of the name's text: the hash of a number is the number itself, modulo 2^61 - 1."""
    if isinstance(name, str):
        return hash(name)
    if isinstance(name, float) and name.is_integer():
        name = int(name)
    plain: Any = int(name) if isinstance(name, bool) else name
    return hash(("name", repr(plain)))
