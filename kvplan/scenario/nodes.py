"""The nodes of a YAML text: what stands where. Long lists are passed on item by item and not held."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, Literal, NamedTuple

import yaml

from kvplan.scenario.packed import PackedList
from kvplan.yaml_events import MOST_NESTED, YamlEvents

Key = str | int
Path = tuple[Key, ...]

MOST_NODES = 40_000
"""Scalars, lists and mappings of a document, its long lists aside: with its value each takes up to half a kilobyte,
and a kilobyte more where it is wrong."""

_CHARACTERS_A_NODE = 64
_CORE = "tag:yaml.org,2002:"
MERGE = f"{_CORE}merge"


class Node:
    """A scalar, list or mapping where it stands; lines and columns from 1.

    ``value``: the text of a scalar, a list of nodes (or `PackedList`), a list of (key, value).
    """

    __slots__ = ("column", "kind", "line", "open", "plain", "seen", "tag", "value")

    def __init__(self, kind: Literal["scalar", "list", "mapping"], tag: str, value: Any, event: Any) -> None:
        self.kind = kind
        self.tag = tag
        self.value = value
        self.line = event.start_mark.line + 1
        self.column = event.start_mark.column + 1
        self.plain = kind == "scalar" and event.style in (None, "")
        self.seen = self.open = False
        """What whoever walks through the nodes, which aliases make a graph, has met and is within."""


class Item(NamedTuple):
    """An item of one of the long lists."""

    path: Path
    place: int
    node: Node
    into: PackedList


Items = Generator[Item, None, Node]


class Composer:
    """Builds the nodes of a document from its events.

    Args:
        events: from the beginning.
        lists: the paths, of keys, of lists that may be long. Each is found as a `PackedList`, empty here, unless it
            is anchored.
    """

    def __init__(self, events: YamlEvents, lists: tuple[Path, ...] = ()) -> None:
        self._events = events
        self._lists = lists
        self._anchors: dict[str, Node] = {}
        self._room = MOST_NODES

    def items(self) -> Generator[Item, None, Node | None]:
        """Every item of the long lists as soon as it is read; then, as the generator's value, the root.

        Raises:
            InputError: not YAML, nested too deeply, too many nodes; with its place.
        """
        event = self._events.first()
        if event is None:
            return None
        root = yield from self._within(event, ())
        self._events.end()
        return root

    def _within(self, event: Any, path: Path) -> Items:
        """The node at ``path``, where long lists may lie."""
        if isinstance(event, yaml.SequenceStartEvent) and path in self._lists and event.anchor is None:
            return (yield from self._long_list(event, path))
        if isinstance(event, yaml.MappingStartEvent) and any(path == longer[: len(path)] for longer in self._lists):
            node = self._started("mapping", event)
            while not isinstance(event := self._events.next(), yaml.MappingEndEvent):
                key = self._node(event, len(path) + 1)
                inner = (*path, key.value) if key.kind == "scalar" else path
                value = yield from self._within(self._events.next(), inner)
                node.value.append((key, value))
            return node
        return self._node(event, len(path))

    def _long_list(self, event: Any, path: Path) -> Items:
        packed = PackedList()
        node = Node("list", _tag(event, "seq"), packed, event)
        place = 0
        while not isinstance(event := self._events.next(), yaml.SequenceEndEvent):
            room, anchors = self._room, len(self._anchors)
            yield Item(path, place, self._node(event, len(path) + 1), packed)
            place += 1
            if len(self._anchors) == anchors:  # nobody can refer to it any more
                self._room = room
        return node

    def _node(self, event: Any, depth: int) -> Node:
        if isinstance(event, yaml.AliasEvent):
            if event.anchor not in self._anchors:
                raise self._events.error(event, "is not YAML: found undefined alias", value=event.anchor)
            return self._anchors[event.anchor]
        if isinstance(event, yaml.ScalarEvent):
            return self._started("scalar", event)
        if depth >= MOST_NESTED:
            raise self._events.nested(event)
        if isinstance(event, yaml.SequenceStartEvent):
            node = self._started("list", event)
            while not isinstance(event := self._events.next(), yaml.SequenceEndEvent):
                node.value.append(self._node(event, depth + 1))
            return node
        node = self._started("mapping", event)
        while not isinstance(event := self._events.next(), yaml.MappingEndEvent):
            key = self._node(event, depth + 1)
            node.value.append((key, self._node(self._events.next(), depth + 1)))
        return node

    def _started(self, kind: Literal["scalar", "list", "mapping"], event: Any) -> Node:
        text = event.value if kind == "scalar" else ""
        self._room -= 1 + len(text) // _CHARACTERS_A_NODE
        if self._room < 0:
            raise self._events.error(
                event,
                "is too large for a scenario",
                hint="keep the requests in a trace file and name it under workload.file",
            )
        if kind == "scalar":
            merge = text == "<<" and event.implicit[0]
            node = Node(kind, MERGE if merge else _tag(event, "str"), text, event)
        else:
            node = Node(kind, _tag(event, "seq" if kind == "list" else "map"), [], event)
        if event.anchor is not None:
            if event.anchor in self._anchors:
                raise self._events.error(event, "is not YAML: found duplicate anchor", value=event.anchor)
            self._anchors[event.anchor] = node
        return node


def _tag(event: Any, default: str) -> str:
    return _CORE + default if event.tag in (None, "!") else str(event.tag)
