"""The requests or the generator of a scenario file (YAML)."""

from __future__ import annotations

import dataclasses
import json
import re
from typing import Any

from kvplan.errors import InputError
from kvplan.trace.inline import inline_trace
from kvplan.trace.source import Source
from kvplan.trace.synthetic import synthesize
from kvplan.trace.trace import Trace

_MOST_BYTES = 256 << 20


def looks_like_scenario(head: str) -> bool:
    """Whether a line begins with ``requests:`` or ``workload:``."""
    return bool(re.search(r"^(requests|workload)\s*:", head, re.MULTILINE))


def read_scenario(source: Source, seed: int | None) -> Trace:
    """The trace that a scenario's ``requests`` or ``workload: {synthetic: ...}`` describes.

    Another file that the scenario names is not opened: only what was asked for is read.

    Raises:
        InputError: not YAML, aliases (which can blow up), or no requests.
    """
    text = "\n".join(line for _, line in source.lines())
    if len(text) > _MOST_BYTES:
        raise InputError("is too large for YAML: use CSV, JSON Lines or Parquet", source=source.name, line=1)
    requests = _one_a_line(text)
    if requests is not None:
        return inline_trace(requests, source.name, list(range(2, len(requests) + 2)))
    document, node = _parsed(text, source)
    if not isinstance(document, dict):
        raise InputError("is no scenario", source=source.name, line=1)
    if document.get("requests") is not None:
        requests = document["requests"]
        if not isinstance(requests, list):
            raise InputError("is not a list", field="requests", source=source.name, line=_line(node, "requests"))
        return inline_trace(requests, source.name, _lines(node))
    workload = document.get("workload")
    spec = workload.get("synthetic") if isinstance(workload, dict) else None
    if spec is None:
        raise InputError(
            "holds neither requests nor a synthetic workload",
            source=source.name,
            line=1,
            hint="give the trace file itself",
        )
    try:
        trace = synthesize(spec, seed)
        return dataclasses.replace(trace, origin=dataclasses.replace(trace.origin, path=source.name))
    except InputError as error:
        value = {"value": error.value} if error.has_value else {}
        line = _line(node, "workload")
        raise InputError(
            error.message, field=error.field, **value, source=source.name, line=line, hint=error.hint
        ) from None


def _one_a_line(text: str) -> list[Any] | None:
    """Requests as ``kvplan trace convert`` writes them, a JSON object a line: far faster than YAML."""
    first, *rest = text.split("\n")
    if first.rstrip() != "requests:" or not rest or not all(line.startswith("  - {") for line in rest):
        return None
    try:
        return [json.loads(line[4:]) for line in rest]
    except (ValueError, RecursionError):
        return None


def _parsed(text: str, source: Source) -> tuple[Any, Any]:
    """(the document as plain values, its root node with the lines)."""
    import yaml  # only for this one format

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        if "&" in text:  # without an anchor there is no alias
            for event in yaml.parse(text, Loader=loader):
                if isinstance(event, yaml.AliasEvent):
                    raise _refusal("has an alias, which kvplan does not follow", source, event.start_mark)
        parser = loader(text)
        try:
            node = parser.get_single_node()
            return (None if node is None else parser.construct_document(node)), node
        finally:
            parser.dispose()
    except yaml.MarkedYAMLError as error:
        raise _refusal(f"is not YAML: {error.problem or error}", source, error.problem_mark) from None
    except (yaml.YAMLError, ValueError, RecursionError, OverflowError, TypeError) as error:
        raise InputError(f"is not YAML: {error}", source=source.name, line=1) from None


def _refusal(message: str, source: Source, mark: Any) -> InputError:
    line, column = (1, None) if mark is None else (mark.line + 1, mark.column + 1)
    return InputError(message, source=source.name, line=line, column=column)


def _line(node: Any, key: str) -> int:
    return next((name.start_mark.line + 1 for name, _ in node.value if name.value == key), 1)


def _lines(node: Any) -> list[int | None]:
    # Of a key that stands twice YAML takes the last.
    items = [value for name, value in node.value if name.value == "requests"][-1].value
    return [item.start_mark.line + 1 for item in items]
