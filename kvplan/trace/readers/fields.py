"""Small helpers that every JSON reader uses: nested keys, lists with a bad element, lengths of texts."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from kvplan.errors import InputError
from kvplan.trace.builder import TraceBuilder
from kvplan.trace.long_json import is_list

BATCH = 1 << 16
"""Items of a list at once; as Python objects they take some MB."""


def at(value: Any, *path: str) -> Any:
    """``value[a][b]...``; None where a step is missing or no mapping."""
    for key in path:
        if not isinstance(value, dict):
            return None
        value = value.get(key)
    return value


def listed(value: Any, field: str) -> Sequence[Any]:
    """``value`` as a list, or one that stays text; None is an empty one.

    Raises:
        InputError: it is something else.
    """
    if value is None:
        return []
    if not is_list(value):
        raise InputError("is not a list", field=field, value=value)
    return value


def plain(value: Any, field: str) -> Any:
    """``value`` where it can be a name (text, number, None).

    Raises:
        InputError: it is a list or a mapping.
    """
    if isinstance(value, dict) or is_list(value):
        raise InputError("is not a name", field=field, value=value)
    return value


def batches(items: Iterable[Any], size: int = BATCH) -> Iterator[list[Any]]:
    """``size`` items after the other, fewer at the end."""
    left = iter(items)
    while batch := [*itertools.islice(left, size)]:
        yield batch


def each(
    builder: TraceBuilder,
    line: int,
    items: Iterable[Any],
    field: str,
    add: Callable[[dict[str, Any]], None],
    first: int = 0,
) -> None:
    """Call ``add`` for every item; one that is no request is a bad row and the others still count.

    ``first``: the number that the first of them has in ``field``.
    """
    for index, item in enumerate(items, first):
        if builder.full:
            return
        try:
            if not isinstance(item, dict):
                raise InputError("is not a JSON object", value=item)
            add(item)
        except InputError as error:
            inner = f"{field}[{index}]" + (f".{error.field}" if error.field else "")
            value = {"value": error.value} if error.has_value else {}
            builder.bad.add(line, InputError(error.message, field=inner, **value, hint=error.hint))
