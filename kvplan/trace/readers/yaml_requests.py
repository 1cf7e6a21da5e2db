"""The requests or the generator of a scenario file (YAML)."""

from __future__ import annotations

import dataclasses
import json
import re
from typing import TYPE_CHECKING, Any

import numpy as np

from kvplan.errors import InputError
from kvplan.trace.builder import MOST_ASKED_FOR, MOST_DRAWN
from kvplan.trace.inline import InlineBuilder
from kvplan.trace.source import Source
from kvplan.trace.synthetic import synthesize
from kvplan.trace.trace import Trace

if TYPE_CHECKING:
    from kvplan.trace.yaml_values import YamlValues
    from kvplan.yaml_events import YamlEvents

_LEAST_LONG, _PARTS_OF_FILE = 1 << 20, 8
"""A line of JSON may take so many bytes, or such a part of the file: its values take up to 35 times that."""


def looks_like_scenario(head: str) -> bool:
    """Whether a line begins with ``requests:`` or ``workload:``."""
    return bool(re.search(r"^(requests|workload)\s*:", head, re.MULTILINE))


def read_scenario(source: Source, seed: int | None, limit: int | None = None) -> Trace:
    """The trace that a scenario's ``requests`` or ``workload: {synthetic: ...}`` describes.

    Another file that the scenario names is not opened: only what was asked for is read. One request is held at a
    time; keys beside these two are passed over.

    Args:
        seed: of a generator, in place of its own.
        limit: the first so many requests only. A generator draws no more than ``MOST_DRAWN`` without.

    Raises:
        InputError: not YAML, aliases (which can blow up), a key twice, a value that is too large, or no requests.
    """
    return _one_a_line(source, limit) or _from_events(source, seed, limit)


def _one_a_line(source: Source, limit: int | None) -> Trace | None:
    """Requests as ``kvplan trace convert`` writes them, a JSON object a line: faster than YAML. None: others."""
    longest = max(_LEAST_LONG, source.size // _PARTS_OF_FILE)
    requests = InlineBuilder(source.name, limit)
    for line, text in source.lines():
        if line == 1:
            if text.rstrip() != "requests:":
                return None
            continue
        if not text.startswith("  - {") or len(text) > longest:
            return None
        try:
            request = json.loads(text[4:])
        except (ValueError, RecursionError):
            return None
        requests.add(request, line)
        if requests.full:
            break
    return requests.finish() if len(requests) else None


def _from_events(source: Source, seed: int | None, limit: int | None) -> Trace:
    from kvplan.trace.yaml_values import YamlValues  # only for this one format
    from kvplan.yaml_events import YamlEvents

    with source.stream() as stream, YamlEvents(stream, source.name, source.lines) as events:
        values = YamlValues(events)
        requests, workload, line = _parts(events, values, limit)
    if requests is not None:
        return requests.finish()
    spec = workload.get("synthetic") if isinstance(workload, dict) else None
    if spec is None:
        raise InputError(
            "holds neither requests nor a synthetic workload",
            source=source.name,
            line=1,
            hint="give the trace file itself",
        )
    try:
        return _drawn(spec, seed, limit, source.name)
    except InputError as error:
        value = {"value": error.value} if error.has_value else {}
        raise InputError(
            error.message, field=error.field, **value, source=source.name, line=line, hint=error.hint
        ) from None


def _parts(events: YamlEvents, values: YamlValues, limit: int | None) -> tuple[InlineBuilder | None, Any, int | None]:
    """(requests, workload, its line); requests are None where there are none, or null."""
    import yaml  # only for this one format

    event = events.first()
    if not isinstance(event, yaml.MappingStartEvent):
        raise InputError("is no scenario", source=events.source, line=1)
    values.check_tag(event, "map")
    requests, workload, line = None, None, None
    seen = set()
    while not isinstance(event := events.next(), yaml.MappingEndEvent):
        key = values.key(event)
        if key not in ("requests", "workload"):
            events.skip(events.next())
            continue
        if key in seen:
            raise events.error(event, "stands twice", field=key)
        seen.add(key)
        value = events.next()
        if key == "workload":
            workload, line = values.value(value), event.start_mark.line + 1
        elif not isinstance(value, yaml.SequenceStartEvent):
            if isinstance(value, yaml.MappingStartEvent) or values.value(value) is not None:
                raise InputError(
                    "is not a list", field="requests", source=events.source, line=event.start_mark.line + 1
                )
        else:
            values.check_tag(value, "seq")
            requests = InlineBuilder(events.source, limit)
            while not isinstance(item := events.next(), yaml.SequenceEndEvent):
                requests.add(values.value(item), item.start_mark.line + 1)
                if requests.full:
                    return requests, None, None
    events.end()
    return requests, workload, line


def _drawn(spec: Any, seed: int | None, limit: int | None, name: str) -> Trace:
    most = MOST_DRAWN if limit is None else max(MOST_DRAWN, min(limit, MOST_ASKED_FOR))
    trace = synthesize(spec, seed, most=most)
    if limit is not None and limit < len(trace):
        trace = trace.take(np.arange(limit))
    return dataclasses.replace(trace, origin=dataclasses.replace(trace.origin, path=name))
