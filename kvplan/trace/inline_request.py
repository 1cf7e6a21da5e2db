"""One request that a scenario lists itself: ``{arrival: 0, prompt: 512, output: 128}``."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any, NamedTuple

from kvplan.errors import InputError
from kvplan.trace.content import Segment
from kvplan.trace.rows import LEAST, number, small, tokens

KEYS = ("id", "arrival", "prompt", "output", "priority", "prefix", "session", "n", "beam_width")
"""What people write."""
EXACT_KEYS = ("content", "output_content")
"""What ``kvplan trace convert`` writes instead of ``prefix``: segments ``[source, start, tokens]`` that cover the
prompt from its beginning, and the source by which later requests name this one's output (``[source, start]`` where it
begins within one). See ``Content``."""

_KNOWN = frozenset(KEYS + EXACT_KEYS)
_DEFAULTS = {"priority": 0, "n": 1, "beam_width": 0}


class InlineRequest(NamedTuple):
    """What a request says, checked; None where it does not."""

    name: Any
    arrival_s: float
    prompt: int
    output: int
    priority: int
    n: int
    beam_width: int
    session: Any
    prefix: tuple[Any, int] | None
    """(id, tokens)"""
    content: list[Segment] | None
    output_content: tuple[int, int]
    """(source, place in it); (-1, 0): no other request can name the output"""


def inline_request(request: Any) -> InlineRequest:
    """The request that a mapping with ``KEYS`` (or ``EXACT_KEYS``) describes.

    Raises:
        InputError: no mapping, an unknown key, a missing or impossible value; with its field and without a place.
    """
    if not isinstance(request, Mapping):
        raise InputError("is no request: a mapping with arrival, prompt and output", value=request)
    for key in request:
        if key not in _KNOWN:
            raise _unknown(key)
    arrival = number(request.get("arrival", 0.0), "arrival")
    if not 0 <= arrival < 1e12:
        raise InputError("must be seconds from 0", field="arrival", value=arrival)
    prompt, output = _at_least_one(request, "prompt"), _at_least_one(request, "output")
    name, session = request.get("id"), request.get("session")
    prefix, content = _prefix(request.get("prefix")), _segments(request.get("content"))
    output_content = _output_content(request)
    if content is not None and prefix is not None:
        raise InputError("goes with no prefix: content tells it all", field="content")
    for key, value in (("id", name), ("session", session)):
        if isinstance(value, (dict, list)):
            raise InputError("must be a name or a number", field=key, value=value)
    priority, n, beam_width = (
        small(request[key], key, LEAST[key]) if key in request else default for key, default in _DEFAULTS.items()
    )
    return InlineRequest(
        name, float(arrival), prompt, output, priority, n, beam_width, session, prefix, content, output_content
    )


def _unknown(key: Any) -> InputError:
    near = difflib.get_close_matches(str(key), KEYS, 1)
    hint = f"did you mean {near[0]!r}?" if near else f"keys are {', '.join(KEYS)}"
    return InputError("is not a key of a request", field=str(key), hint=hint)


def _at_least_one(request: Mapping[str, Any], key: str) -> int:
    count = tokens(request.get(key), key)
    if count < 1:
        raise InputError("must be at least 1 token", field=key, value=count)
    return count


def _prefix(prefix: Any) -> tuple[Any, int] | None:
    if prefix is None:
        return None
    if not isinstance(prefix, Mapping) or set(prefix) != {"id", "tokens"} or isinstance(prefix["id"], (dict, list)):
        raise InputError("must be a mapping of id and tokens", field="prefix", value=prefix)
    return prefix["id"], tokens(prefix["tokens"], "prefix.tokens")


def _output_content(request: Mapping[str, Any]) -> tuple[int, int]:
    told = request.get("output_content")
    if told is None:
        return -1, 0
    if request.get("content") is None:
        raise InputError("goes with content", field="output_content", value=told)
    place = told if isinstance(told, (list, tuple)) else (told, 0)
    if len(place) != 2 or not all(map(_is_place, place)):
        raise InputError(
            "must be a source, or [source, start]: whole numbers of at least 0", field="output_content", value=told
        )
    return place[0], place[1]


def _is_place(value: Any) -> bool:
    return type(value) is int and 0 <= value < 1 << 62  # a length added to it stays within 64 bits


def _segments(value: Any) -> list[Segment] | None:
    if value is None:
        return None
    parts = value if isinstance(value, (list, tuple)) else [value]
    for part in parts:
        three = isinstance(part, (list, tuple)) and len(part) == 3
        if not three or not all(map(_is_place, part)):
            raise InputError("must be a list of [source, start, tokens]", field="content", value=part)
    return [(source, start, count) for source, start, count in parts]
