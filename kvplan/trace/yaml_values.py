"""The plain values of YAML, as ``yaml.safe_load`` makes them, straight from its events."""

from __future__ import annotations

import itertools
from functools import lru_cache
from typing import Any

import yaml
from yaml.constructor import SafeConstructor
from yaml.resolver import Resolver

from kvplan.errors import InputError
from kvplan.yaml_events import MOST_NESTED, YamlEvents

MOST_NODES = 200_000
"""Scalars, lists and mappings in one value: each takes up to two hundred bytes, its text aside."""

_CHARACTERS_A_NODE = 16
_SHORT = 64
"""Scalars up to so many characters are remembered: the same few keys and numbers fill most files."""
_REMEMBERED = 1 << 12
_LONGEST_NUMBER = 400
"""``int`` takes the square of a number's digits, and of the sixties in 1:30:59."""

_CORE = "tag:yaml.org,2002:"
_MERGE, _VALUE = f"{_CORE}merge", f"{_CORE}value"
_NUMBERS = {f"{_CORE}int", f"{_CORE}float", f"{_CORE}timestamp"}
_OF_SCALARS = {_CORE + kind for kind in ("null", "bool", "int", "float", "binary", "timestamp", "str")}
_RESOLVER: Any = Resolver()
_CONSTRUCTOR: Any = SafeConstructor()


class YamlValues:
    """Builds values one at a time: None, bool, int, float, str, bytes, dates, lists, dicts; nothing is executed.

    Each method raises InputError, with its line, for an alias, for a tag that stands for no such value and for a
    value of more than ``MOST_NODES``.
    """

    def __init__(self, events: YamlEvents) -> None:
        self._events = events
        self._next = events.next
        self._room = 0

    def value(self, event: Any) -> Any:
        """What ``event`` begins."""
        self._room = MOST_NODES
        return self._value(event, 0)

    def key(self, event: Any) -> Any:
        """The key that ``event`` begins, where ``<<`` is refused."""
        tag = _tag_of_key(event)
        if tag == _MERGE:
            raise self._events.error(event, "has a merge key at the top, which kvplan does not follow")
        return event.value if tag == _VALUE else self.value(event)

    def check_tag(self, event: Any, kind: str) -> None:
        """Refuse a list or mapping (``kind``: ``seq``, ``map``) that is tagged as something else."""
        if event.tag not in (None, "!", _CORE + kind):
            raise self._events.error(event, "has a tag that kvplan does not follow", value=event.tag)

    def _value(self, event: Any, depth: int) -> Any:
        """``depth``: lists and mappings that it stands in."""
        self._spend(event, 1)
        kind = type(event)
        if kind is yaml.ScalarEvent:
            return self._scalar(event)
        if depth >= MOST_NESTED:
            raise self._events.nested(event)
        if kind is yaml.SequenceStartEvent:
            self.check_tag(event, "seq")
            items = []
            while type(event := self._next()) is not yaml.SequenceEndEvent:
                items.append(self._value(event, depth + 1))
            return items
        if kind is yaml.MappingStartEvent:
            self.check_tag(event, "map")
            return self._mapping(depth + 1)
        raise self._events.alias(event)

    def _mapping(self, depth: int) -> dict[Any, Any]:
        own: dict[Any, Any] = {}
        base: list[tuple[Any, Any]] = []
        while type(event := self._next()) is not yaml.MappingEndEvent:
            tag = _tag_of_key(event)
            if tag == _MERGE:
                base += self._merged(self._next(), depth)
                continue
            key = event.value if tag == _VALUE else self._value(event, depth)
            value = self._value(self._next(), depth)
            try:
                own[key] = value
            except TypeError:
                raise self._events.error(event, "is not YAML: found unhashable key") from None
        return {**dict(base), **own} if base else own

    def _merged(self, event: Any, depth: int) -> list[tuple[Any, Any]]:
        """The entries that ``<<:`` brings: a mapping's, or those of several, of which the first wins."""
        value = self._value(event, depth)
        bases = value[::-1] if isinstance(value, list) else [value]
        if not all(isinstance(base, dict) for base in bases):
            raise self._events.error(event, "is not YAML: expected a mapping or list of mappings for merging")
        return list(itertools.chain.from_iterable(base.items() for base in bases))

    def _scalar(self, event: Any) -> Any:
        text = event.value
        try:
            if len(text) <= _SHORT:
                return _remembered(text, event.tag, event.implicit)
            self._spend(event, len(text) // _CHARACTERS_A_NODE)
            return _constructed(text, event.tag, event.implicit)
        except InputError as error:
            raise self._events.error(event, error.message) from None

    def _spend(self, event: Any, nodes: int) -> None:
        self._room -= nodes
        if self._room < 0:
            raise self._events.error(
                event,
                "is part of a value that is too large for YAML",
                hint="write the requests as CSV, JSON Lines or Parquet",
            )


def _tag_of_key(event: Any) -> str | None:
    """The tag of a key that YAML 1.1 gives a meaning of its own: ``<<`` and ``=``."""
    if type(event) is not yaml.ScalarEvent or (event.value not in ("<<", "=") and event.tag is None):
        return None
    return _resolved(event.value, event.tag, event.implicit)


def _resolved(text: str, tag: str | None, implicit: tuple[bool, bool]) -> str:
    return str(_RESOLVER.resolve(yaml.ScalarNode, text, implicit)) if tag in (None, "!") else str(tag)


def _constructed(text: str, tag: str | None, implicit: tuple[bool, bool]) -> Any:
    """A scalar's value; raises InputError without a place."""
    tag = _resolved(text, tag, implicit)
    if tag in _NUMBERS and len(text) > _LONGEST_NUMBER:
        raise InputError(f"is a number of more than {_LONGEST_NUMBER} characters")
    if tag not in _OF_SCALARS:
        raise InputError(f"is not YAML: could not determine a constructor for the tag {tag!r}")
    try:
        return SafeConstructor.yaml_constructors[tag](_CONSTRUCTOR, yaml.ScalarNode(tag, text))
    except yaml.MarkedYAMLError as error:
        raise InputError(f"is not YAML: {error.problem}") from None
    except (ValueError, LookupError, AttributeError) as error:  # what PyYAML stumbles over: !!int x, 2024-13-01
        raise InputError(f"is not YAML: no value of the tag {tag!r}: {error}") from None


_remembered = lru_cache(_REMEMBERED)(_constructed)
