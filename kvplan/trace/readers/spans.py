"""OpenTelemetry GenAI spans: OTLP JSON with vLLM's or the semantic conventions' words, and flat exports."""

from __future__ import annotations

import itertools
import json
from array import array
from collections.abc import Iterator
from typing import Any

from kvplan.errors import InputError
from kvplan.trace.builder import TraceBuilder
from kvplan.trace.clock import Clock
from kvplan.trace.json_text import JsonText
from kvplan.trace.long_json import is_list, value_at
from kvplan.trace.readers.fields import at, each, listed
from kvplan.trace.rows import small, tokens
from kvplan.trace.text import TokenCounter, message_text

_PROMPT = ("gen_ai.usage.input_tokens", "gen_ai.usage.prompt_tokens")
_OUTPUT = ("gen_ai.usage.output_tokens", "gen_ai.usage.completion_tokens")
# n: what was asked for; vLLM's num_sequences is what ran, its V0 called beam width best_of.
_N = (
    "gen_ai.request.choice.count",
    "gen_ai.request.n",
    "gen_ai.usage.num_sequences",
    "gen_ai.request.best_of",
)
_SESSION = ("gen_ai.conversation.id", "session.id")
_INPUT_TEXT = ("gen_ai.input.messages", "gen_ai.prompt")
_OUTPUT_TEXT = ("gen_ai.output.messages", "gen_ai.output.text", "gen_ai.completion")
_NAME = "gen_ai.request.id"
_ASKED_FOR = {*_PROMPT, *_OUTPUT, *_N, *_SESSION, *_INPUT_TEXT, *_OUTPUT_TEXT, _NAME}
_LONG = 1 << 16
"""Characters of a text that is not decoded at once."""


class SpanRows:
    """One document of spans; spans that call no model are passed over.

    Token counts come from the usage attributes; where a span has none, its messages are counted as text.
    Equal messages at the beginning of two prompts are shared.
    """

    def __init__(self, builder: TraceBuilder, tokenizer: str | None) -> None:
        self.builder = builder
        self.clock = Clock("ns", "start time")
        self._tokenizer = tokenizer
        self._counter: TokenCounter | None = None
        self._passed = 0
        builder.note("time: span starts (OTLP: epoch nanoseconds; flat exports: ISO 8601, UTC where no zone stands)")

    def row(self, value: dict[str, Any], line: int) -> None:
        if "resourceSpans" not in value:
            each(self.builder, line, listed(value.get("spans"), "spans"), "spans", self._flat)
        for resource in listed(value.get("resourceSpans"), "resourceSpans"):
            for scope in listed(at(resource, "scopeSpans"), "scopeSpans"):
                each(self.builder, line, listed(at(scope, "spans"), "spans"), "spans", self._otlp)
        if self._passed:
            self.builder.facts["spans_without_model_call"] = self._passed

    def _otlp(self, span: dict[str, Any]) -> None:
        attributes = {}
        for pair in listed(span.get("attributes"), "attributes"):
            wrapped = at(pair, "value")
            name = str(at(pair, "key"))
            if name in _ASKED_FOR and isinstance(wrapped, dict) and len(wrapped) == 1:
                kind, inner = next(iter(wrapped.items()))
                # OTLP JSON writes 64-bit integers as strings.
                attributes[name] = _whole(inner) if kind == "intValue" else inner
        self._add(attributes, span.get("startTimeUnixNano"), span)

    def _flat(self, span: dict[str, Any]) -> None:
        attributes = span.get("attributes")
        if not isinstance(attributes, dict):
            raise InputError("is not an object", field="attributes", value=attributes)
        self._add(attributes, span.get("start_time"), span)

    def _add(self, attributes: dict[str, Any], start: Any, span: dict[str, Any]) -> None:
        prompt, output = _first(attributes, _PROMPT), _first(attributes, _OUTPUT)
        messages = _messages(_first(attributes, _INPUT_TEXT))
        if prompt is None and messages is None:
            self._passed += 1
            return
        segments = None
        if messages is not None:
            sources, counts = array("q"), array("q")  # a prompt may be a list of messages as long as the file
            for message in messages:
                source, count = self.builder.source(message), self._count(message[1])
                if count:
                    sources.append(source)
                    counts.append(count)
            segments = zip(sources, itertools.repeat(0), counts)
            prompt = sum(counts) if prompt is None else prompt
        if output is None:
            answer = _messages(_first(attributes, _OUTPUT_TEXT))
            output = None if answer is None else sum(self._count(text) for _, text in answer)
        n = _first(attributes, _N)
        name = attributes.get(_NAME) or span.get("spanId") or span.get("span_id")
        session = _first(attributes, _SESSION)
        self.builder.add(
            self.clock.seconds(start),
            tokens(prompt, _PROMPT[0]),
            None if output is None else tokens(output, _OUTPUT[0]),
            name=None if name is None else str(name),
            session=None if session is None else str(session),
            n=1 if n is None else small(n, "n", 1),
            segments=segments,
        )

    def _count(self, text: str) -> int:
        if self._counter is None:
            self._counter = TokenCounter(self._tokenizer)
            self.builder.note(self._counter.note)
        return self._counter(text)


def _whole(value: Any) -> Any:
    try:
        return int(value) if isinstance(value, str) and len(value) < 40 else value
    except ValueError:
        return value


def _first(attributes: dict[str, Any], names: tuple[str, ...]) -> Any:
    return next((attributes[name] for name in names if attributes.get(name) is not None), None)


def _messages(value: Any) -> Iterator[tuple[str, str]] | None:
    """(role, text) of each message; a plain text is one message; None where there is nothing."""
    if isinstance(value, str):
        decoded = _decoded(value)
        if not is_list(decoded):
            return iter([("", value)])
        value = decoded
    if not is_list(value):
        return None
    return ((str(at(item, "role")), message_text(at(item, "content") or at(item, "parts"))) for item in value)


def _decoded(text: str) -> Any:
    """The JSON value that a text is; None for another text."""
    try:
        if len(text) < _LONG:
            return json.loads(text)
        whole = JsonText(bytearray(text.encode("utf-8", "surrogatepass")))
        return value_at(whole, whole.check())[0]
    except (ValueError, RecursionError, InputError):
        return None
