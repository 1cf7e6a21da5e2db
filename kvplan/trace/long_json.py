"""Lists and objects that stay text: what is asked for is decoded, an element or an entry at a time."""

from __future__ import annotations

import itertools
from array import array
from collections.abc import ItemsView, Iterator, KeysView, Sequence, ValuesView
from typing import Any, TypeGuard, overload

import numpy as np

from kvplan.trace.json_text import JsonText

_SHOWN = 100
"""Elements that a message shows; it has room for fewer."""


class LongList(Sequence[Any]):
    """A list in a checked text, for reading from the front: an element is decoded each time it is asked for.

    Slices are lists; those that follow one another do not walk over what is before them.

    Args:
        text: its ``end_of`` was asked for this list or for what holds it.
        at: where its bracket stands.
    """

    def __init__(self, text: JsonText, at: int) -> None:
        self._text = text
        self._length = text.containers[at].entries
        self._first = (0, text.after_blank(at + 1))
        self._reached = self._first  # (an element's index, where it begins)

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[Any]:
        return itertools.chain.from_iterable(batch for _, _, batch in self._batches(*self._first))

    @overload
    def __getitem__(self, index: int) -> Any: ...
    @overload
    def __getitem__(self, index: slice) -> list[Any]: ...
    def __getitem__(self, index: int | slice) -> Any:
        if not isinstance(index, slice):
            index = range(self._length)[index]
            return next(self._from(index))
        asked = range(self._length)[index]
        if not asked:
            return []
        first, last = min(asked[0], asked[-1]), max(asked[0], asked[-1])
        values = [*itertools.islice(self._from(first), 0, last - first + 1, abs(asked.step))]
        return values if asked.step > 0 else values[::-1]

    def __repr__(self) -> str:
        shown = ", ".join(map(repr, self[:_SHOWN]))
        return f"[{shown}, ...]" if len(self) > _SHOWN else f"[{shown}]"

    def _from(self, index: int) -> Iterator[Any]:
        reached = self._reached if self._reached[0] <= index else self._first
        for begin, at, batch in self._batches(*reached):
            self._reached = begin, at
            yield from batch[max(0, index - begin) :]

    def _batches(self, index: int, at: int) -> Iterator[tuple[int, int, list[Any]]]:
        """(index, place, elements) of each window's elements, or of one that is longer."""
        while index < self._length:
            begin = at
            batch, at, _ = self._text.elements(begin)
            if not batch:
                value, end = value_at(self._text, begin)
                batch = [value]
                at, _ = self._text.after(end, b"[")
            count = len(batch)
            yield index, begin, batch
            index += count


class LongObject(dict[str, Any]):
    """An object in a checked text: a value is decoded each time it is asked for. Of equal keys the last counts.

    It is a ``dict`` for those who ask what it is, whose own table stays empty.

    Args: as of ``LongList``.
    """

    def __init__(self, text: JsonText, at: int) -> None:
        super().__init__()
        self._text = text
        hashes, places = array("q"), array("q")  # 16 bytes an entry, of which the text has five and more
        closed = not text.containers[at].entries
        at = text.after_blank(at + 1)
        while not closed:
            found, begin, closed = text.entries(at)
            if not found:
                key, value = text.key(at)
                found = [(key, at)]
                begin, closed = text.after(text.skip(value), b"{")
            hashes.extend(hash(key) for key, _ in found)
            places.extend(place for _, place in found)
            at = begin
        self._places = places
        self._hashes = np.frombuffer(hashes, np.int64) if hashes else np.zeros(0, np.int64)

    def __contains__(self, key: object) -> bool:
        return self._find(key) is not None

    def __getitem__(self, key: str) -> Any:
        at = self._find(key)
        if at is None:
            raise KeyError(key)
        return value_at(self._text, at)[0]

    def get(self, key: str, default: Any = None) -> Any:
        at = self._find(key)
        return default if at is None else value_at(self._text, at)[0]

    def __iter__(self) -> Iterator[str]:
        return (key for key, _ in self._entries())

    def __len__(self) -> int:
        return len(np.unique(self._hashes))

    def __bool__(self) -> bool:
        return len(self._hashes) > 0

    def __eq__(self, other: object) -> bool:
        return self is other  # a dictionary's own would compare two empty tables

    __hash__ = None

    def keys(self) -> KeysView[str]:  # type: ignore[override]
        return KeysView(self)

    def values(self) -> ValuesView[Any]:  # type: ignore[override]
        return ValuesView(self)

    def items(self) -> ItemsView[str, Any]:  # type: ignore[override]
        return _Items(self)

    def __repr__(self) -> str:
        shown = ", ".join(f"{key!r}: {value!r}" for key, value in itertools.islice(self.items(), _SHOWN))
        return f"{{{shown}, ...}}" if len(self._hashes) > _SHOWN else f"{{{shown}}}"

    def _find(self, key: object) -> int | None:
        """Where the value of that key begins."""
        for index in np.flatnonzero(self._hashes == hash(key))[::-1]:
            found, at = self._text.key(self._places[index])
            if found == key:
                return at
        return None

    def _entries(self) -> Iterator[tuple[str, int]]:
        """(key, where the value begins), each key once, where it stood first."""
        repeated = len(self) < len(self._hashes)
        seen = set()
        for place in self._places:
            key, at = self._text.key(place)
            if repeated:
                if key in seen:
                    continue
                seen.add(key)
                at = self._find(key) or at
            yield key, at


class _Items(ItemsView[str, Any]):
    """Without a search for each key."""

    _mapping: LongObject

    def __iter__(self) -> Iterator[tuple[str, Any]]:
        return ((key, value_at(self._mapping._text, at)[0]) for key, at in self._mapping._entries())


def value_at(text: JsonText, at: int) -> tuple[Any, int]:
    """(value, end) of a checked value at ``at``; lists and objects that no window holds stay text.

    Raises:
        InputError: there are too many calls open to decode it.
    """
    sign = text.data[at : at + 1]
    if sign == b'"':
        return text.string(at)
    if sign not in (b"[", b"{"):
        return text.scalar(at)
    container = text.containers.get(at)
    if container is None:
        return text.held(at)
    return LongList(text, at) if sign == b"[" else LongObject(text, at), container.end


def checked_value(text: JsonText, at: int) -> tuple[Any, int]:
    """(value, end) of the value at ``at``, once it is checked.

    Raises:
        InputError: it is not JSON, or nested too deeply.
    """
    text.end_of(at)
    return value_at(text, at)


def is_list(value: Any) -> TypeGuard[Sequence[Any]]:
    """Whether it is a JSON list."""
    return isinstance(value, (list, LongList))
