"""The requests that a scenario lists itself: ``requests: [{arrival: 0, prompt: 512, output: 128}]``."""

from __future__ import annotations

import difflib
import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from kvplan.errors import InputError
from kvplan.trace.content import ContentBuilder, Segment, restarts
from kvplan.trace.name_numbers import NameNumbers
from kvplan.trace.rows import LEAST, number, small, tokens, written_name
from kvplan.trace.trace import Origin, Trace

KEYS = ("id", "arrival", "prompt", "output", "priority", "prefix", "session", "n", "beam_width")
"""What people write."""
EXACT_KEYS = ("content", "output_content")
"""What ``kvplan trace convert`` writes instead of ``prefix``: segments ``[source, start, tokens]`` that cover the
prompt from its beginning, and the source by which later requests name this one's output (``[source, start]`` where it
begins within one). See ``Content``."""


def inline_trace(
    requests: Sequence[Mapping[str, Any]],
    source: str = "<requests>",
    lines: Sequence[int | None] | None = None,
) -> Trace:
    """The trace of requests given one by one.

    Equal ``prefix.id`` share their first ``prefix.tokens`` tokens (all of the prompt where it is no longer).
    A later turn of a ``session`` begins with all of the former turn, prompt and output.

    Args:
        requests: mappings with the keys ``KEYS`` (or ``EXACT_KEYS``); ``prompt`` and ``output`` must be there,
            ``arrival`` is 0 s where it is not. They need not be in order.
        source: the file they stand in, for messages.
        lines: the line of each request, for messages.

    Raises:
        InputError: an unknown key, a missing or impossible value, a turn shorter than its former turn, or no
            request at all.
    """
    if not requests:
        raise InputError("lists no request", field="requests", source=source, line=1)
    places = lines if lines is not None else [None] * len(requests)
    rows = []
    for index, (request, line) in enumerate(zip(requests, places, strict=True)):
        try:
            rows.append((_row(request), index, line))
        except InputError as error:
            raise _placed(error, source, line, index) from None
    unsorted = any(before[0]["arrival"] > after[0]["arrival"] for before, after in itertools.pairwise(rows))
    rows.sort(key=lambda row: row[0]["arrival"])  # stable: equal arrivals keep the order of the file
    content = ContentBuilder()
    sessions = NameNumbers()
    for row, index, line in rows:
        try:
            number = -1 if row["session"] is None else sessions.number(row["session"])
            _add_content(content, row, number)
        except InputError as error:
            raise _placed(error, source, line, index) from None
    notes = ["requests sorted by arrival"] if unsorted else []
    if content.restarted:
        notes.append(restarts(content))
    columns: dict[str, Any] = {name: np.array([row[name] for row, _, _ in rows]) for name in LEAST}
    if any(row["session"] is not None for row, _, _ in rows):
        columns["session"] = np.array(
            [-1 if row["session"] is None else sessions.number(row["session"]) for row, _, _ in rows]
        )
    exact = [row["content"] is not None for row, _, _ in rows]
    if any(exact) and not all(exact):
        raise InputError("must be given for all requests or for none", field="content", source=source, line=1)
    if any(exact):
        shared = any(row["content"] or row["output_content"][0] >= 0 for row, _, _ in rows)
    else:
        shared = any(row["prefix"] or row["session"] is not None for row, _, _ in rows)
    return Trace(
        np.array([row["arrival"] for row, _, _ in rows]),
        np.array([row["prompt"] for row, _, _ in rows]),
        np.array([row["output"] for row, _, _ in rows]),
        request_id=np.array(
            [str(index) if row["id"] is None else written_name(row["id"]) for row, index, _ in rows], dtype=object
        ),
        **columns,
        content=content.build() if shared else None,
        origin=Origin(source, "inline", tuple(notes)),
    )


def _row(request: Mapping[str, Any]) -> dict[str, Any]:
    if not isinstance(request, Mapping):
        raise InputError("is no request: a mapping with arrival, prompt and output", value=request)
    for key in request:
        if key not in KEYS and key not in EXACT_KEYS:
            near = difflib.get_close_matches(str(key), KEYS, 1)
            raise InputError(
                "is not a key of a request",
                field=str(key),
                hint=f"did you mean {near[0]!r}?" if near else f"keys are {', '.join(KEYS)}",
            )
    arrival = number(request.get("arrival", 0.0), "arrival")
    if not 0 <= arrival < 1e12:
        raise InputError("must be seconds from 0", field="arrival", value=arrival)
    row = {
        "id": request.get("id"),
        "arrival": float(arrival),
        "prompt": _at_least_one(request, "prompt"),
        "output": _at_least_one(request, "output"),
        "session": request.get("session"),
        "prefix": _prefix(request.get("prefix")),
        "content": _segments(request.get("content")),
        "output_content": _output_content(request),
    }
    if row["content"] is not None and row["prefix"]:
        raise InputError("goes with no prefix: content tells it all", field="content")
    for key in ("id", "session"):
        if isinstance(row[key], (dict, list)):
            raise InputError("must be a name or a number", field=key, value=row[key])
    defaults = {"priority": 0, "n": 1, "beam_width": 0}
    return row | {key: small(request.get(key, defaults[key]), key, least) for key, least in LEAST.items()}


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
    """(source, place in it); (-1, 0): no other request can name the output."""
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


def _add_content(content: ContentBuilder, row: dict[str, Any], session: int) -> None:
    if row["content"] is not None:
        if sum(count for _, _, count in row["content"]) > row["prompt"]:
            raise InputError("is longer than the prompt", field="content")
        source, start = row["output_content"]
        content.add(row["content"], output_source=source, output_start=start)
        return
    head: list[Segment] = []
    if row["prefix"]:
        name, count = row["prefix"]
        head = [(content.source(("prefix", name)), 0, min(count, row["prompt"]))]
    if session < 0:
        content.add(head)
        return
    history = content.history_tokens(session)
    if history > row["prompt"]:
        raise InputError(
            f"is shorter than the former turn of session {row['session']!r} (prompt and output: {history} tokens)",
            field="prompt",
            value=row["prompt"],
            hint="a later turn begins with all of the former turn: give the whole prompt, history included",
        )
    content.turn(session, row["prompt"], row["output"], shared=history or row["prompt"], head=head)


def _placed(error: InputError, source: str, line: int | None, index: int) -> InputError:
    return InputError(
        error.message,
        field=f"requests[{index}]" + (f".{error.field}" if error.field else ""),
        **({"value": error.value} if error.has_value else {}),
        source=source,
        line=line,
        hint=error.hint,
    )
