"""From a path and the flags to a `Scenario`."""

from __future__ import annotations

import codecs
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from kvplan.errors import InputError
from kvplan.scenario.document import LARGEST_DOCUMENT_BYTES, Document, parse_document, read_document
from kvplan.scenario.explain import nearest
from kvplan.scenario.leaves import Leaf
from kvplan.scenario.merge import REPLACED_WHOLE, merged, nested
from kvplan.scenario.nodes import Key
from kvplan.scenario.origin import Origin, dotted
from kvplan.scenario.schema import Scenario
from kvplan.scenario.shipped import shipped_workload

_DOCUMENTS = (".yaml", ".yml")
_JSON = ".json"
_HEAD_BYTES = 4096
_ALTERNATIVES = ("file", "synthetic")
_LONG_LISTS = (("requests",), ("scenario", "requests"))
"""What may be as long as a trace, in a scenario and in a summary.json."""


def load_scenario(path: str | Path, overrides: Mapping[str, Any] | None = None) -> Scenario:
    """Read a scenario, a summary.json (its ``scenario`` is run again) or a raw trace.

    Args:
        path: ``.yaml``, ``.yml``: a scenario; ``-``: a scenario on standard input; ``.json``: whichever it
            holds; any other file: a trace, for which ``model`` and ``gpu`` must come with the overrides.
            A name of a workload that kvplan ships is found where no such file exists.
        overrides: values by dotted key, ``{"cache.block_size": 32}``; they win over the file's. Paths among
            them are relative to the working folder, those in the file to the file's.

    Raises:
        InputError: the file, a key, a value or a combination is refused; with its place.
    """
    overrides = dict(overrides or {})
    by_key = {leaf.key: leaf for leaf in Scenario.leaves()}
    for key in overrides:
        if key not in by_key:
            close = nearest(key, by_key)
            raise InputError("unknown key", field=key, hint=f"did you mean {close!r}?" if close else None)
    path = _found(path)
    document = _document(path, overrides)
    if document is None:
        return _from_trace(path, overrides, by_key)
    mapping, root = document.value, tuple[Key, ...]()
    if _is_summary(mapping):
        mapping, root = mapping["scenario"], ("scenario",)
    folder = Path() if str(path) == "-" else path.parent
    origin = Origin(document, root, _flags(overrides, by_key), folder=folder)
    if not isinstance(mapping, dict):
        raise origin.error((), "a scenario is a mapping with the keys model, gpu and requests or workload")
    return Scenario.build(_overridden(mapping, overrides, folder), origin)


def _found(path: str | Path) -> Path:
    found = Path(path)
    if str(path) == "-" or found.exists():
        return found
    if (shipped := shipped_workload(found)) is not None:
        return shipped
    raise InputError("no such file", source=str(path), hint=_similar_file(found))


def _similar_file(path: Path) -> str | None:
    try:
        names = [entry.name for entry in path.parent.iterdir()]
    except OSError:
        return None
    close = nearest(path.name, names)
    return f"did you mean {path.parent / close}?" if close else None


def _document(path: Path, overrides: Mapping[str, Any]) -> Document | None:
    """The document, or None for a raw trace."""
    if "workload.format" in overrides and path.suffix.lower() not in _DOCUMENTS:
        return None
    if str(path) == "-":
        import sys

        data = sys.stdin.buffer.read(LARGEST_DOCUMENT_BYTES + 1)
        return parse_document(data, source="<stdin>", lists=_LONG_LISTS)
    if path.suffix.lower() in _DOCUMENTS or (path.suffix.lower() == _JSON and _holds_scenario(path)):
        return read_document(path, lists=_LONG_LISTS)
    return None


def _holds_scenario(path: Path) -> bool:
    """Whether a JSON file is a scenario and no trace: an object with at least two of a scenario's keys.

    A broken one is a scenario where it names a model and a GPU at once; whoever reads it says what is wrong.
    """
    from kvplan.trace.json_text import JsonText  # slow to import, and most scenarios are YAML
    from kvplan.trace.long_json import value_at

    try:
        if path.stat().st_size > LARGEST_DOCUMENT_BYTES:
            return False
        data = path.read_bytes().removeprefix(codecs.BOM_UTF8)
    except OSError:
        return False  # read_trace says what is wrong with it
    text = JsonText(bytearray(data))
    try:
        value, _ = value_at(text, text.check())
    except (InputError, UnicodeDecodeError):  # a trace perhaps: JSON Lines, or with bad rows that may be left out
        return all(key in data[:_HEAD_BYTES] for key in (b'"model"', b'"gpu"'))
    return _is_summary(value) or (isinstance(value, dict) and len(value.keys() & Scenario.model_fields.keys()) >= 2)


def _is_summary(value: Any) -> bool:
    return isinstance(value, dict) and "schema_version" in value and isinstance(value.get("scenario"), dict)


def _from_trace(path: Path, overrides: dict[str, Any], by_key: Mapping[str, Leaf]) -> Scenario:
    for key in ("model", "gpu"):
        if key not in overrides:
            raise InputError(
                f"a trace does not say which {key}",
                source=str(path),
                hint=f"add {by_key[key].flag}; `kvplan {key}s` lists the known ones",
            )
    origin = Origin(flags={("workload", "file"): "PATH", **_flags(overrides, by_key)})
    return Scenario.build(_overridden({"workload": {"file": str(path)}}, overrides, Path()), origin)


def _overridden(mapping: dict[str, Any], overrides: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    for key, value in overrides.items():
        value = _from_here(key, value, folder)
        section, _, name = key.rpartition(".")
        if section == "workload" and name in _ALTERNATIVES:
            mapping = {k: v for k, v in mapping.items() if k not in ("requests", "workload")}
        mapping = merged(mapping, nested(key, value))
    return mapping


def _from_here(key: str, value: Any, folder: Path) -> Any:
    """A path given on the command line, written from the scenario's folder."""
    if key == "timing" and isinstance(value, dict) and isinstance(value.get("profile"), str):
        return {**value, "profile": _relative(value["profile"], folder)}
    if key == "workload.file" or (key == "model" and isinstance(value, str) and Path(value).exists()):
        return _relative(value, folder)
    return value


def _relative(path: str, folder: Path) -> str:
    if Path(path).is_absolute() or folder == Path():
        return path
    return Path(os.path.relpath(path, folder)).as_posix()


def _flags(overrides: Mapping[str, Any], by_key: Mapping[str, Leaf]) -> dict[tuple[Key, ...], str]:
    """Which places the flags filled. A mapping laid over the file's fills only the leaves that it names."""
    flags: dict[tuple[Key, ...], str] = {}
    for key, value in overrides.items():
        leaf = tuple(key.split("."))
        for path in _filled(leaf, value):
            flags[path] = f"{by_key[key].flag} {dotted(path[len(leaf) :])}".rstrip()
    return flags


def _filled(path: tuple[str, ...], value: Any) -> Iterator[tuple[Key, ...]]:
    if isinstance(value, dict) and path[-1] not in REPLACED_WHOLE:
        for key, inner in value.items():
            yield from _filled((*path, key), inner)
    else:
        yield path
