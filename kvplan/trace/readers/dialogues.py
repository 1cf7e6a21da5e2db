"""Datasets of text: ShareGPT, vLLM's custom prompts and multi-turn conversations, LMCache agent logs."""

from __future__ import annotations

from typing import Any

from kvplan.errors import InputError
from kvplan.trace.builder import TraceBuilder
from kvplan.trace.clock import Clock
from kvplan.trace.readers.fields import at, listed, plain
from kvplan.trace.text import TokenCounter, message_text


class ShareGptRows:
    """``[{id, conversations: [{from, value}, ...]}]``: the first turn asks, the second answers (as in vLLM).

    Conversations of fewer than two turns are passed over.
    """

    def __init__(self, builder: TraceBuilder, tokenizer: str | None) -> None:
        self.builder = builder
        self.count = TokenCounter(tokenizer)
        self._short = 0
        builder.note(self.count.note)
        builder.note("each conversation's first two turns are a request, as vLLM's benchmark reads it")

    def row(self, value: dict[str, Any], line: int) -> None:
        turns = listed(value.get("conversations") or value.get("conversation"), "conversations")
        if len(turns) < 2:
            self._short += 1
            self.builder.facts["conversations_of_one_turn"] = self._short
            return
        ask, answer = (message_text(at(turn, "value") or at(turn, "content")) for turn in turns[:2])
        name = plain(value.get("id"), "id")
        self.builder.add(None, self.count(ask), self.count(answer), name=None if name is None else str(name))


class CustomPrompts:
    """vLLM's ``--dataset-name custom``: ``{prompt}`` a line, ``output_tokens`` where it is given."""

    def __init__(self, builder: TraceBuilder, tokenizer: str | None) -> None:
        self.builder = builder
        self.count = TokenCounter(tokenizer)
        builder.note(self.count.note)

    def row(self, value: dict[str, Any], line: int) -> None:
        prompt = value.get("prompt")
        if not isinstance(prompt, str):
            raise InputError("is not a text", field="prompt", value=prompt)
        output = value.get("output_tokens")
        self.builder.add(None, self.count(prompt), output if isinstance(output, int) and output >= 0 else None)


class Conversations:
    """vLLM's multi-turn benchmark: ``[{id, messages: [{role, content}]}]``; each assistant message a request.

    A request's prompt is all that was said before it: the former turn, its answer and what the user adds.
    """

    def __init__(self, builder: TraceBuilder, tokenizer: str | None) -> None:
        self.builder = builder
        self.count = TokenCounter(tokenizer)
        builder.note(self.count.note)
        builder.note("every assistant message is a request; its prompt is the conversation so far")

    def row(self, value: dict[str, Any], line: int) -> None:
        session = plain(value.get("id"), "id")
        session = line if session is None else session
        said = 0
        for message in listed(value.get("messages"), "messages"):
            length = self.count(message_text(at(message, "content")))
            if at(message, "role") == "assistant" and said and not self.builder.full:
                self.builder.add(None, said, length, session=session, history=said)
            said += length


class AgentLog:
    """LMCache's agent traces: ``{timestamp: epoch µs, input, output, session_id}``, rows in any order."""

    def __init__(self, builder: TraceBuilder, unit: str, tokenizer: str | None) -> None:
        self.builder = builder
        self.clock = Clock(unit, "timestamp")
        self.count = TokenCounter(tokenizer)
        builder.note(self.count.note)

    def row(self, value: dict[str, Any], line: int) -> None:
        texts = [message_text(value.get(key)) for key in ("input", "output")]
        if not texts[0]:
            raise InputError("is not a text", field="input", value=value.get("input"))
        session = plain(value.get("session_id"), "session_id")
        self.builder.add(
            self.clock.seconds(value.get("timestamp")), *(self.count(text) for text in texts), session=session
        )
