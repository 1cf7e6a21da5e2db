"""A YAML or JSON text as plain values that still know where they stood."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator, Sequence
from pathlib import Path as FilePath
from typing import Any

from kvplan.errors import InputError
from kvplan.scenario.nodes import MERGE, Composer, Item, Key, Node, Path
from kvplan.scenario.packed import PackedList
from kvplan.scenario.scalars import plain_scalar
from kvplan.yaml_events import YamlEvents

Position = tuple[int, int]
"""Line and column, both from 1."""

LARGEST_DOCUMENT_BYTES = 64 << 20
MOST_NODES_BY_ALIAS = 100_000
"""What ``*aliases`` may expand to, in all: nine lines of nested aliases otherwise make a billion nodes."""

_CORE_TAGS = {
    f"tag:yaml.org,2002:{kind}"
    for kind in ("null", "bool", "int", "float", "str", "timestamp", "map", "seq", "merge", "value")
}
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_JSON_ESCAPE = re.compile(
    rb"\\\\|\\u([dD][89abAB][0-9a-fA-F]{2})\\u([dD][c-fC-F][0-9a-fA-F]{2})|\\u[dD][89a-fA-F][0-9a-fA-F]{2}"
)


class Document:
    """``value``: dicts with text keys, lists and scalars. ``source``: the file's name, for messages.

    Of long lists, which are found as `PackedList`, only the lines are known; where else something in them stands is
    read again.
    """

    def __init__(self, source: str, value: Any, root: Node | None = None, again: _Again | None = None) -> None:
        self.source = source
        self.value = value
        self._root = root
        self._again = again

    def position(self, path: Path, *, at_key: bool = False) -> Position | None:
        """Where the value at ``path`` stands, or its key; the deepest part of the path that exists.

        None where the document has no marks (built in Python).
        """
        node, key = self._root, None
        for place, step in enumerate(path):
            found = self._child(node, path[:place], step)
            if found is None:
                return _mark(node)
            key, node = found
        return _mark(key if at_key and key is not None else node)

    def lines(self, path: Path) -> Sequence[int] | None:
        """The line of each item of the long list at ``path``; None where there is no such one."""
        value = self.value
        for step in path:
            value = value.get(step) if isinstance(value, dict) else None
        return value.lines if isinstance(value, PackedList) else None

    def __contains__(self, path: Path) -> bool:
        node = self._root
        for place, step in enumerate(path):
            found = self._child(node, path[:place], step)
            if found is None:
                return False
            node = found[1]
        return node is not None

    def _child(self, node: Node | None, path: Path, step: Key) -> tuple[Node | None, Node] | None:
        """The (key, value) nodes at ``step`` of the node at ``path``; own keys before merged ones."""
        if node is None or not isinstance(node.value, PackedList):
            return _child(node, step)
        if self._again is None or not isinstance(step, int) or not step < len(node.value):
            return None
        return None, self._again.item(path, step)


class _Again:
    """The items of a document's long lists, read once more, for those few whose place in the file is asked for."""

    def __init__(self, data: bytes, source: str, lists: tuple[Path, ...]) -> None:
        self._data, self._source, self._lists = data, source, lists
        self._last: Item | None = None
        self._rest: Iterator[Item] = iter(())

    def item(self, path: Path, place: int) -> Node:
        """The item's node. Whoever asks for items in the order of the file has it read once."""
        if self._last is None or (self._last.path, self._last.place) != (path, place):
            after = self._last is not None and self._last.path == path and self._last.place < place
            if not after:
                self._rest = self._all()
            self._last = next(item for item in self._rest if (item.path, item.place) == (path, place))
        return self._last.node

    def _all(self) -> Iterator[Item]:
        with _events(self._data, self._source) as events:
            yield from Composer(events, self._lists).items()


def read_document(path: FilePath, *, name: str | None = None, lists: tuple[Path, ...] = ()) -> Document:
    """Read a YAML file, or a JSON file where the name ends in ``.json``.

    Raises:
        InputError: the file is missing, not readable, not UTF-8, too large, or `parse_document` refuses it.
    """
    source = name or str(path)
    try:
        with path.open("rb") as file:
            data = file.read(LARGEST_DOCUMENT_BYTES + 1)
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror or error}", source=source) from error
    return parse_document(data, source=source, is_json=path.suffix.lower() == ".json", lists=lists)


def parse_document(data: bytes, *, source: str, is_json: bool = False, lists: tuple[Path, ...] = ()) -> Document:
    """Parse YAML (or JSON) bytes.

    Args:
        lists: the paths of lists that may be long; they become `PackedList`.

    Raises:
        InputError: a syntax error, a duplicate key, a tag, a cycle, an alias bomb, more than ``MOST_NODES`` beside
            the items of ``lists`` or in one of them; with line and column.
    """
    if len(data) > LARGEST_DOCUMENT_BYTES:
        raise InputError(
            f"a scenario is at most {LARGEST_DOCUMENT_BYTES >> 20} MiB",
            source=source,
            hint="keep the requests in a trace file and name it under workload.file",
        )
    if is_json:
        data = _checked_json(data, source)
    values = _Values(source)
    with _events(data, source) as events:
        items = Composer(events, lists).items()
        while True:
            try:
                item = next(items)
            except StopIteration as end:
                root: Node | None = end.value
                break
            item.into.append(values.of(item.node), item.node.line)
    value = None if root is None else values.of(root)
    return Document(source, value, root, _Again(data, source, lists))


def _events(data: bytes, source: str) -> YamlEvents:
    stream = io.BytesIO(data)  # shares the bytes
    stream.seek(len(_BYTE_ORDER_MARK) if data.startswith(_BYTE_ORDER_MARK) else 0)
    return YamlEvents(stream, source, lambda: _lines(data, source))


def _lines(data: bytes, source: str) -> Iterator[tuple[int, str]]:
    for line, raw in enumerate(io.BytesIO(data), 1):
        try:
            yield line, raw.decode("utf-8-sig" if line == 1 else "utf-8").rstrip("\r\n")
        except UnicodeDecodeError as error:
            column = error.start + 1
            raise InputError("is not UTF-8 text", source=source, line=line, column=column) from None


def _checked_json(data: bytes, source: str) -> bytes:
    """Refuse what is not JSON. YAML then reads it with marks; only JSON allows tabs there."""
    from kvplan.trace.json_text import JsonText  # slow to import, and most scenarios are YAML

    for _ in _lines(data, source):  # says where it is not UTF-8
        pass
    JsonText(bytearray(data.removeprefix(_BYTE_ORDER_MARK)), name=source).check()
    return _without_surrogates(data.replace(b"\t", b" "))


def _without_surrogates(data: bytes) -> bytes:
    # re.sub would hold the parts between millions of escapes, each an object of its own.
    written, at = bytearray(), 0
    for match in _JSON_ESCAPE.finditer(data):
        written += data[at : match.start()]
        written += _unescaped(match)
        at = match.end()
    return bytes(written + data[at:]) if at else data


def _unescaped(match: re.Match[bytes]) -> bytes:
    """JSON writes a character beyond U+FFFF as two escapes, which YAML cannot read. Half of one is none."""
    high, low = match.groups()
    if high is not None:
        return chr(0x10000 + ((int(high, 16) - 0xD800) << 10) + int(low, 16) - 0xDC00).encode()
    return match[0] if match[0] == rb"\\" else "\ufffd".encode()


class _Values:
    """Turns nodes into values, once through, with a budget for what is visited again through an alias."""

    def __init__(self, source: str) -> None:
        self.source = source
        self.again = 0

    def of(self, node: Node) -> Any:
        self._count(node)
        if node.tag not in _CORE_TAGS:
            raise self._error(node, "a YAML tag is not understood here", value=node.tag)
        if node.kind == "scalar":
            return plain_scalar(node.value) if node.plain else node.value
        if isinstance(node.value, PackedList):
            return node.value
        node.open = True
        value = self._mapping(node) if node.kind == "mapping" else [self.of(item) for item in node.value]
        node.open = False
        return value

    def _mapping(self, node: Node) -> dict[str, Any]:
        merged: dict[str, Any] = {}
        own: dict[str, Any] = {}
        for key, item in node.value:
            if _is_merge(key):
                for base in item.value if item.kind == "list" else [item]:
                    if base.kind != "mapping":
                        raise self._error(base, "<<: takes a mapping or a list of mappings")
                    merged = {**self.of(base), **merged}
                continue
            if key.kind != "scalar":
                raise self._error(key, "a key must be text")
            if key.value in own:
                raise self._error(key, "this key stands twice in one mapping", value=key.value)
            own[key.value] = self.of(item)
        return {**merged, **own}

    def _count(self, node: Node) -> None:
        if node.open:
            raise self._error(node, "an alias that contains itself")
        if node.seen:
            self.again += 1
            if self.again > MOST_NODES_BY_ALIAS:
                raise self._error(node, f"aliases expand to more than {MOST_NODES_BY_ALIAS:,} nodes")
        node.seen = True

    def _error(self, node: Node, message: str, **more: Any) -> InputError:
        return InputError(message, source=self.source, line=node.line, column=node.column, **more)


def _is_merge(key: Node) -> bool:
    return key.tag == MERGE


def _mark(node: Node | None) -> Position | None:
    return None if node is None else (node.line, node.column)


def _child(node: Node | None, step: Key) -> tuple[Node | None, Node] | None:
    """The (key, value) nodes at ``step`` of a mapping or sequence; own keys before merged ones."""
    if node is None or node.kind == "scalar":
        return None
    if node.kind == "list":
        return (None, node.value[step]) if isinstance(step, int) and step < len(node.value) else None
    for key, item in node.value:
        if not _is_merge(key) and key.value == step:
            return key, item
    for base in _merged(node):
        found = _child(base, step)
        if found is not None:
            return found
    return None


def _merged(node: Node) -> Iterator[Node]:
    for key, item in node.value:
        if _is_merge(key):
            yield from item.value if item.kind == "list" else [item]
