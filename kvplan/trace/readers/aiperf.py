"""NVIDIA AIPerf and GenAI-Perf: traces with sessions, payload files, and the per-request export of a run."""

from __future__ import annotations

from array import array
from typing import Any

from kvplan.errors import InputError
from kvplan.trace.builder import TraceBuilder
from kvplan.trace.clock import OPEN_LOOP, PER_SECOND, Clock
from kvplan.trace.long_json import is_list
from kvplan.trace.readers.fields import at, listed, plain
from kvplan.trace.rows import number, tokens
from kvplan.trace.text import TokenCounter, message_text


class AiperfRows:
    """``mooncake_trace`` rows and GenAI-Perf payloads.

    A turn says what it adds: its prompt is the session's history and that (AIPerf replays turns so), unless
    it gives ``hash_ids`` or a whole list of ``messages``, which describe the whole prompt. Timestamps in ms
    are optional; ``delay`` in ms counts from the former turn. AIPerf writes it on the turn that waits,
    GenAI-Perf on the turn after which is waited.
    """

    def __init__(self, builder: TraceBuilder, unit: str, tokenizer: str | None) -> None:
        self.builder = builder
        self.clock = Clock(unit, "timestamp")
        self.per_second = PER_SECOND[unit]
        self._tokenizer = tokenizer
        self._counter: TokenCounter | None = None
        self._last, self._delay_after = array("d"), array("d")  # of each session: when its last turn came, seconds

    def row(self, value: dict[str, Any], line: int) -> None:
        session = plain(value.get("session_id"), "session_id")
        added, whole = self._prompt(value)
        output = value.get("output_length")
        answer = None if output is None else tokens(output, "output_length")
        ids = listed(value.get("hash_ids"), "hash_ids")
        seconds, wait = self._times(value)
        known = self.builder.known_session(session)
        if session in (None, ""):
            self.builder.add(seconds, added, answer, ids=ids)
            return
        arrival = self._arrival(known, seconds, wait)
        if ids or whole:
            self.builder.add(arrival, added, answer, session=session, ids=ids)
        else:
            self._add_turn(arrival, added, answer, session)
        if known < 0:
            self._last.append(arrival)
            self._delay_after.append(wait)  # GenAI-Perf's: nothing came before it that could be waited for
        else:
            self._last[known] = arrival
            if seconds is None:
                self._delay_after[known] = 0.0  # it has been waited for

    def _add_turn(self, arrival: float, added: int, answer: int | None, session: Any) -> None:
        former = self.builder.history_tokens(session)
        if former:
            self.builder.note(
                "sessions: a later turn's input_length is what it adds to the history (as AIPerf replays)"
            )
        self.builder.add(arrival, former + added, answer, session=session, history=former)

    def _prompt(self, value: dict[str, Any]) -> tuple[int, bool]:
        """(tokens, whether they are the whole prompt of a later turn too)."""
        if value.get("input_length") is not None:
            return tokens(value["input_length"], "input_length"), False
        messages = value.get("messages") or at(value, "payload", "messages")
        if messages is not None:
            texts = [message_text(at(message, "content")) for message in listed(messages, "messages")]
            return sum(self._count(text) for text in texts), True
        for key in ("text_input", "text", "prompt"):
            text = value.get(key)
            if is_list(text):
                text = "".join(part for part in text if isinstance(part, str))
            if isinstance(text, str):
                return self._count(text), False
        raise InputError("is missing, and so are text_input and messages", field="input_length")

    def _count(self, text: str) -> int:
        if self._counter is None:
            self._counter = TokenCounter(self._tokenizer)
            self.builder.note(self._counter.note)
        return self._counter(text)

    def _times(self, value: dict[str, Any]) -> tuple[float | None, float]:
        """(timestamp, delay) in seconds."""
        time, delay = value.get("timestamp"), value.get("delay")
        seconds = None if time is None else self.clock.seconds(time)
        wait = 0.0 if delay is None else float(number(delay, "delay")) / self.per_second
        if not 0 <= wait < 1e9:
            raise InputError("must be a time >= 0", field="delay", value=delay)
        return seconds, wait

    def _arrival(self, known: int, seconds: float | None, wait: float) -> float:
        """When a session's turn comes; ``known``: the session's number, -1 where this is its first turn."""
        if seconds is not None:
            return seconds
        if known >= 0:
            self.builder.note(f"sessions: {OPEN_LOOP}")
            return self._last[known] + self._delay_after[known] + wait
        self.builder.note("sessions without a timestamp begin at 0")
        return 0.0


class AiperfExport:
    """``profile_export.jsonl``: one finished or failed request a line, start as epoch nanoseconds."""

    def __init__(self, builder: TraceBuilder, unit: str) -> None:
        self.builder = builder
        self.clock = Clock(unit, "metadata.request_start_ns")
        builder.zero_output_failed = True

    def row(self, value: dict[str, Any], line: int) -> None:
        start = at(value, "metadata", "request_start_ns")
        failed = value.get("error") is not None or at(value, "metadata", "was_cancelled") is True
        prompt = at(value, "metrics", "input_sequence_length", "value")
        if failed and prompt is None:
            prompt = at(value, "metrics", "error_isl", "value")
        output = 0 if failed else at(value, "metrics", "output_sequence_length", "value")
        name = at(value, "metadata", "x_request_id")
        self.builder.add(
            None if start is None else self.clock.seconds(start),
            0 if failed and prompt is None else tokens(prompt, "metrics.input_sequence_length"),
            tokens(output, "metrics.output_sequence_length"),
            name=None if name is None else str(name),
            session=plain(at(value, "metadata", "conversation_id"), "metadata.conversation_id"),
        )
