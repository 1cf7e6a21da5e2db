"""Pydantic's findings in the words of a person who wrote the file."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from kvplan.errors import InputError
from kvplan.scenario.origin import Origin, dotted
from kvplan.scenario.requests import Requests
from kvplan.scenario.traffic import Request

_SAID: dict[str, str] = {
    "missing": "is required",
    "int_type": "must be a whole number",
    "int_from_float": "must be a whole number",
    "float_type": "must be a number",
    "bool_type": "must be true or false",
    "string_type": "must be text",
    "dict_type": "must be a mapping",
    "model_type": "must be a mapping",
    "model_attributes_type": "must be a mapping",
    "list_type": "must be a list",
    "tuple_type": "must be a list",
    "finite_number": "must be finite",
    "greater_than": "must be more than {gt}",
    "greater_than_equal": "must be at least {ge}",
    "less_than": "must be less than {lt}",
    "less_than_equal": "must be at most {le}",
    "literal_error": "must be {expected}",
}
_MOST_LISTED = 5
_MOST_EXPLAINED = 100
"""Each is looked up in the file; who has more mends the first."""


def explained(error: ValidationError, model: type[BaseModel], origin: Origin) -> InputError:
    """One `InputError` for the first finding in the document; its hint names the others."""
    details = error.errors(include_url=False)
    found = sorted((_one(detail, model, origin) for detail in details[:_MOST_EXPLAINED]), key=_place)
    first, others = found[0], found[1:]
    if others:
        listed = [f"{other.field}{f' (line {other.line})' if other.line else ''}" for other in others[:_MOST_LISTED]]
        rest = len(details) - 1 - _MOST_LISTED
        more = ", ".join(listed) + (f" and {rest} more" if rest > 0 else "")
        note = f"also wrong: {more}"
        first.hint = f"{first.hint}\n  {note}" if first.hint else note
    return first


def nearest(word: str, known: Iterable[str]) -> str | None:
    """The known word that ``word`` was most likely meant to be."""
    close = difflib.get_close_matches(word, list(known), n=1, cutoff=0.6)
    return close[0] if close else None


def _one(detail: ErrorDetails, model: type[BaseModel], origin: Origin) -> InputError:
    path = tuple(detail["loc"])
    kind, value = detail["type"], detail["input"]
    if kind == "extra_forbidden":
        return _unknown_key(path, model, origin)
    if kind == "missing":
        return origin.error(path, _SAID[kind])
    context = detail.get("ctx", {})
    if kind == "value_error":
        message = str(context["error"])
    elif kind in _SAID:
        message = _SAID[kind].format(**context)
    else:
        message = detail["msg"]
    hint = None
    if kind == "literal_error" and isinstance(value, str):
        choice = nearest(value, [word.strip("' ") for word in context["expected"].replace(" or ", ",").split(",")])
        hint = choice and f"did you mean {choice!r}?"
    elif kind == "string_type" and isinstance(value, int | float):
        hint = f'put it in quotes: "{value}"'
    return origin.error(path, message, value=value, hint=hint)


def _unknown_key(path: tuple[str | int, ...], model: type[BaseModel], origin: Origin) -> InputError:
    key = str(path[-1])
    known = _keys_at(model, path[:-1])
    close = nearest(key, known)
    if close is not None:
        return origin.error(path, "unknown key", at_key=True, hint=f"did you mean {close!r}?")
    elsewhere = [*path[:-1], *_home_of(key, model)]
    if len(elsewhere) > len(path):
        return origin.error(path, "unknown key here", at_key=True, hint=f"it belongs at {dotted(tuple(elsewhere))}")
    return origin.error(path, "unknown key", at_key=True, hint=f"known here: {', '.join(known)}")


def _keys_at(model: type[BaseModel], path: tuple[str | int, ...]) -> list[str]:
    for step in path:
        if isinstance(step, str):
            model = next(_models_in(model.model_fields[step].annotation))
    return list(model.model_fields)


def _home_of(key: str, model: type[BaseModel]) -> tuple[str, ...]:
    """The section of ``model`` that has ``key``: people write ``block_size`` beside ``model``."""
    for name, field in model.model_fields.items():
        for part in _models_in(field.annotation):
            if key in part.model_fields:
                return (name, key)
    return ()


def _models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    if annotation is Requests:
        yield Request
    for part in getattr(annotation, "__args__", ()):
        yield from _models_in(part)


def _place(error: InputError) -> tuple[int, int]:
    return (error.line or 0, error.column or 0)
