"""Every leaf of the schema as a command-line option: flags are read off the keys, so they cannot drift."""

from __future__ import annotations

import functools
import types
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from kvplan.errors import InputError
from kvplan.scenario.document import parse_document
from kvplan.scenario.merge import merged, nested
from kvplan.scenario.scalars import plain_scalar

_FLATTENED = ("parallel", "cache", "scheduler", "engine", "workload")
"""Sections whose keys are options of their own. Other mappings (timing, slo, model) are one option each."""

_LISTS = ("requests", "variants", "sweep")
"""Not leaves: they need a file."""

_RENAMED = {
    "engine.name": "--engine-name",
    "engine.version": "--engine-version",
    "workload.file": "--workload-file",
    "workload.block_size": "--workload-block-size",
    "name": "--run-name",
}
"""Keys that say nothing without their section. All others keep their name: cache.block_size, --block-size."""

_MOST_CHOICES = 8
"""In a metavar; more of them are listed in the help text."""


@dataclass(frozen=True)
class Leaf:
    """``key``: dotted. ``kind``: what a value looks like. ``choices``: of a closed set, else empty."""

    key: str
    flag: str
    kind: Literal["boolean", "number", "text", "choice", "mapping", "reference"]
    choices: tuple[str, ...]
    description: str
    default: Any

    @property
    def section(self) -> str:
        return self.key.partition(".")[0] if "." in self.key else "scenario"

    @property
    def parameter(self) -> str:
        """A Python name for it."""
        return self.flag[2:].replace("-", "_")

    @property
    def metavar(self) -> str:
        if self.kind == "choice":
            return "|".join(self.choices) if len(self.choices) <= _MOST_CHOICES else "NAME"
        return {"number": "NUMBER", "mapping": "KEY=VALUE,...", "reference": "NAME|PATH|{...}"}.get(self.kind, "TEXT")

    @property
    def help(self) -> str:
        """What it means, and what it is when nobody says."""
        default = "engine's default" if self.default is None else self.default
        if self.kind in ("mapping", "reference") or (self.section == "workload" and self.default is None):
            return self.description
        listed = f": {', '.join(self.choices)}" if len(self.choices) > _MOST_CHOICES else ""
        return f"{self.description}{listed} [{default}]"

    def parse(self, given: str | bool) -> Any:
        """The option's word as the key's value, read as a scenario reads it.

        A mapping is written ``ttft_s.p99=2,tpot_s.p95=0.05`` or as YAML in braces.

        Raises:
            InputError: not the form of a mapping.
        """
        if isinstance(given, bool) or self.kind == "text":
            return given
        if given.startswith("{") and self.kind in ("mapping", "reference"):
            return self._braces(given)
        if self.kind == "mapping" and "=" in given:
            return self._assignments(given)
        return given if self.kind == "reference" else plain_scalar(given)

    def _braces(self, given: str) -> Any:
        return parse_document(given.encode("utf-8", "replace"), source=self.flag).value

    def _assignments(self, given: str) -> dict[str, Any]:
        mapping: dict[str, Any] = {}
        for part in given.split(","):
            key, equals, word = part.partition("=")
            if not (key and equals):
                raise InputError("must be KEY=VALUE, with commas between", field=self.flag, value=part)
            mapping = merged(mapping, nested(key, plain_scalar(word)))
        return mapping


@functools.cache
def leaves_of(scenario: type[BaseModel]) -> tuple[Leaf, ...]:
    """All leaves of a scenario's class, in the order of its fields."""
    return tuple(_leaves(scenario))


def sweepable_keys(scenario: type[BaseModel]) -> list[str]:
    """The keys that ``sweep`` may vary: all that say how the model is served."""
    served = (leaf for leaf in leaves_of(scenario) if leaf.section != "workload")
    return [leaf.key for leaf in served if leaf.key not in ("name", "seed")]


def _leaves(scenario: type[BaseModel]) -> Iterator[Leaf]:
    for name, field in scenario.model_fields.items():
        if name in _FLATTENED:
            section = _model_of(field)
            for inner, inner_field in section.model_fields.items():
                yield _leaf(f"{name}.{inner}", inner_field)
        elif name not in _LISTS:
            yield _leaf(name, field)


def _leaf(key: str, field: FieldInfo) -> Leaf:
    flag = _RENAMED.get(key, "--" + key.rpartition(".")[2].replace("_", "-"))
    kinds = set(_plain_types(field.annotation))
    choices = tuple(str(word) for kind in kinds for word in get_args(kind))
    description = field.description or ""
    kind: Any
    if kinds == {bool}:
        kind = "boolean"
    elif any(get_origin(kind) is Literal for kind in kinds):
        kind = "choice"
    elif dict in kinds and str in kinds:
        kind = "reference"
    elif kinds & {int, float}:
        kind = "number"
    elif kinds == {str}:
        kind = "text"
    else:
        kind = "mapping"
    return Leaf(key, flag, kind, choices, description, field.get_default(call_default_factory=True))


def _plain_types(annotation: Any) -> Iterator[Any]:
    """The alternatives of an annotation, without None and without what Annotated adds; dict for dict[...]."""
    origin = get_origin(annotation)
    if origin is Annotated:
        yield from _plain_types(get_args(annotation)[0])
    elif origin in (Union, types.UnionType):
        for part in get_args(annotation):
            yield from _plain_types(part)
    elif annotation is not type(None):
        yield origin if origin in (dict, list, tuple) else annotation


def _model_of(field: FieldInfo) -> type[BaseModel]:
    return next(
        kind for kind in _plain_types(field.annotation) if isinstance(kind, type) and issubclass(kind, BaseModel)
    )
