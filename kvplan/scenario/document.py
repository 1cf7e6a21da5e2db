"""A YAML or JSON text as plain values that still know where they stood."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from kvplan.errors import InputError
from kvplan.scenario.scalars import plain_scalar

Key = str | int
Position = tuple[int, int]
"""Line and column, both from 1."""

LARGEST_DOCUMENT_BYTES = 64 << 20
MOST_NODES_BY_ALIAS = 100_000
"""What ``*aliases`` may expand to, in all: nine lines of nested aliases otherwise make a billion nodes."""

_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_CORE_TAGS = {
    f"tag:yaml.org,2002:{kind}"
    for kind in ("null", "bool", "int", "float", "str", "timestamp", "map", "seq", "merge", "value")
}
_JSON_ESCAPE = re.compile(
    r"\\\\|\\u([dD][89abAB][0-9a-fA-F]{2})\\u([dD][c-fC-F][0-9a-fA-F]{2})|\\u[dD][89a-fA-F][0-9a-fA-F]{2}"
)
_PLAIN_STYLES = (None, "")


@dataclass(frozen=True)
class Document:
    """``value``: dicts with text keys, lists and scalars. ``source``: the file's name, for messages."""

    source: str
    value: Any
    root: yaml.Node | None = None

    def position(self, path: tuple[Key, ...], *, at_key: bool = False) -> Position | None:
        """Where the value at ``path`` stands, or its key; the deepest part of the path that exists.

        None where the document has no marks (built in Python).
        """
        node, key = self.root, None
        for step in path:
            found = _child(node, step)
            if found is None:
                return _mark(node)
            key, node = found
        return _mark(key if at_key and key is not None else node)

    def __contains__(self, path: tuple[Key, ...]) -> bool:
        node = self.root
        for step in path:
            found = _child(node, step)
            if found is None:
                return False
            node = found[1]
        return node is not None


def read_document(path: Path, *, name: str | None = None) -> Document:
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
    return parse_document(data, source=source, is_json=path.suffix.lower() == ".json")


def parse_document(data: bytes, *, source: str, is_json: bool = False) -> Document:
    """Parse YAML (or JSON) bytes.

    Raises:
        InputError: a syntax error, a duplicate key, a tag, a cycle, an alias bomb; with line and column.
    """
    if len(data) > LARGEST_DOCUMENT_BYTES:
        raise InputError(
            f"a scenario is at most {LARGEST_DOCUMENT_BYTES >> 20} MiB",
            source=source,
            hint="keep the requests in a trace file and name it under workload.file",
        )
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise InputError("is not UTF-8 text", source=source, line=line, column=1) from error
    if is_json:
        text = _checked_json(text, source)
    try:
        root = yaml.compose(text, Loader=_LOADER)
        value = None if root is None else _Values(source).of(root)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        raise InputError(
            f"is not YAML: {error.problem or error.context}",
            source=source,
            line=mark.line + 1 if mark else None,
            column=mark.column + 1 if mark else None,
        ) from error
    except (yaml.YAMLError, UnicodeError) as error:
        raise InputError(f"is not YAML: {str(error).splitlines()[0]}", source=source) from error
    except RecursionError as error:
        raise InputError("is nested too deeply", source=source) from error
    return Document(source, value, root)


def _checked_json(text: str, source: str) -> str:
    """Refuse what JSON's own parser refuses. YAML then reads it with marks; only JSON allows tabs there."""
    try:
        json.loads(text)
    except json.JSONDecodeError as error:
        raise InputError(f"is not JSON: {error.msg}", source=source, line=error.lineno, column=error.colno) from error
    except (ValueError, RecursionError) as error:
        raise InputError(f"is not JSON: {error}", source=source) from error
    return _JSON_ESCAPE.sub(_unescaped, text.replace("\t", " "))


def _unescaped(match: re.Match[str]) -> str:
    """JSON writes a character beyond U+FFFF as two escapes, which YAML cannot read. Half of one is none."""
    high, low = match.groups()
    if high is not None:
        return chr(0x10000 + ((int(high, 16) - 0xD800) << 10) + int(low, 16) - 0xDC00)
    return match[0] if match[0] == "\\\\" else "\ufffd"


class _Values:
    """Turns nodes into values, once through, with a budget for what is visited again through an alias."""

    def __init__(self, source: str) -> None:
        self.source = source
        self.seen: set[int] = set()
        self.open: set[int] = set()
        self.again = 0

    def of(self, node: yaml.Node) -> Any:
        self._count(node)
        if node.tag not in _CORE_TAGS:
            raise self._error(node, "a YAML tag is not understood here", value=node.tag)
        if isinstance(node, yaml.ScalarNode):
            return plain_scalar(node.value) if node.style in _PLAIN_STYLES else node.value
        self.open.add(id(node))
        if isinstance(node, yaml.SequenceNode):
            value: Any = [self.of(item) for item in node.value]
        else:
            value = self._mapping(node)
        self.open.remove(id(node))
        return value

    def _mapping(self, node: yaml.Node) -> dict[str, Any]:
        merged: dict[str, Any] = {}
        own: dict[str, Any] = {}
        for key, item in node.value:
            if _is_merge(key):
                for base in item.value if isinstance(item, yaml.SequenceNode) else [item]:
                    if not isinstance(base, yaml.MappingNode):
                        raise self._error(base, "<<: takes a mapping or a list of mappings")
                    merged = {**self.of(base), **merged}
                continue
            if not isinstance(key, yaml.ScalarNode):
                raise self._error(key, "a key must be text")
            if key.value in own:
                raise self._error(key, "this key stands twice in one mapping", value=key.value)
            own[key.value] = self.of(item)
        return {**merged, **own}

    def _count(self, node: yaml.Node) -> None:
        if id(node) in self.open:
            raise self._error(node, "an alias that contains itself")
        if id(node) in self.seen:
            self.again += 1
            if self.again > MOST_NODES_BY_ALIAS:
                raise self._error(node, f"aliases expand to more than {MOST_NODES_BY_ALIAS:,} nodes")
        self.seen.add(id(node))

    def _error(self, node: yaml.Node, message: str, **more: Any) -> InputError:
        line, column = _mark(node) or (None, None)
        return InputError(message, source=self.source, line=line, column=column, **more)


def _is_merge(key: yaml.Node) -> bool:
    return key.tag == "tag:yaml.org,2002:merge"


def _mark(node: yaml.Node | None) -> Position | None:
    return None if node is None else (node.start_mark.line + 1, node.start_mark.column + 1)


def _child(node: yaml.Node | None, step: Key) -> tuple[yaml.Node | None, yaml.Node] | None:
    """The (key, value) nodes at ``step`` of a mapping or sequence; own keys before merged ones."""
    if isinstance(node, yaml.SequenceNode):
        return (None, node.value[step]) if isinstance(step, int) and step < len(node.value) else None
    if not isinstance(node, yaml.MappingNode):
        return None
    for key, item in node.value:
        if not _is_merge(key) and key.value == step:
            return key, item
    for base in _merged(node):
        found = _child(base, step)
        if found is not None:
            return found
    return None


def _merged(node: yaml.MappingNode) -> Iterator[yaml.Node]:
    for key, item in node.value:
        if _is_merge(key):
            yield from item.value if isinstance(item, yaml.SequenceNode) else [item]
