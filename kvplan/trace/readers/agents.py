"""Sessions of agents: kv-cache-tester (WEKA), TraceLab, LLMServingSim workloads, AIBrix."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kvplan.errors import InputError
from kvplan.trace.builder import TraceBuilder
from kvplan.trace.clock import OPEN_LOOP, Clock
from kvplan.trace.readers.fields import each, listed, plain
from kvplan.trace.rows import MAX_BLOCK_SIZE, number, tokens


class WekaSession:
    """kv-cache-tester: one session a document; ids count full blocks and hold within the session.

    Requests nest: an entry of type ``subagent`` has ``requests`` of its own. ``t`` counts from the session's
    start; sessions have no start of their own, so those of one file begin together.
    """

    def __init__(self, builder: TraceBuilder) -> None:
        self.builder = builder
        self._sessions = 0
        self._subagents = 0

    def row(self, value: dict[str, Any], line: int) -> None:
        requests = listed(value.get("requests"), "requests")
        size = value.get("block_size")
        if size is not None:
            if not 1 <= tokens(size, "block_size") <= MAX_BLOCK_SIZE:
                raise InputError("is no block size", field="block_size", value=size)
            if self.builder.block_size not in (None, size):
                raise InputError("differs from the file's other sessions", field="block_size", value=size)
            self.builder.block_size = size
        self._sessions += 1
        local = value.get("hash_id_scope", "local") == "local"
        space = self._sessions if local else 0
        name = plain(value.get("id"), "id") or f"session {self._sessions}"
        self._requests(requests, line, "requests", name, space, 0)
        if self._subagents:
            self.builder.note(f"{self._subagents} subagent entries: their own requests are part of the session")

    def _requests(self, requests: Sequence[Any], line: int, field: str, session: Any, space: int, depth: int) -> None:
        def add(request: dict[str, Any]) -> None:
            if request.get("type") == "subagent" or "requests" in request:
                if depth > 50:
                    raise InputError("is nested too deeply", field="requests")
                self._subagents += 1
                inner = listed(request.get("requests"), "requests")
                self._requests(inner, line, f"{field}.requests", session, space, depth + 1)
                return
            time = number(request.get("t"), "t")
            if not 0 <= time < 1e12:
                raise InputError("must be seconds from 0", field="t", value=time)
            self.builder.add(
                float(time),
                tokens(request.get("in"), "in"),
                tokens(request.get("out"), "out"),
                session=session,
                ids=listed(request.get("hash_ids"), "hash_ids"),
                id_space=space,
            )

        each(self.builder, line, requests, field, add)


class TraceLabRounds:
    """TraceLab's ``round_trace.jsonl``: ``input_tokens_total = prefix_tokens + newly_append_tokens``."""

    def __init__(self, builder: TraceBuilder) -> None:
        self.builder = builder
        self.clock = Clock("s", "timing_events[0].timestamp")
        builder.note("time: the first event of each round (ISO 8601 dates)")
        builder.note("prefix sharing: prefix_tokens, as the session holds them (nothing is told across sessions)")

    def row(self, value: dict[str, Any], line: int) -> None:
        events = listed(value.get("timing_events"), "timing_events")
        first = events[0] if events else {}
        stamp = first.get("timestamp") if isinstance(first, dict) else None
        session = plain(value.get("session_id"), "session_id")
        prefix = tokens(value.get("prefix_tokens") or 0, "prefix_tokens")
        name = plain(value.get("round_id"), "round_id")
        self.builder.add(
            None if stamp is None else self.clock.seconds(stamp),
            tokens(value.get("input_tokens_total"), "input_tokens_total"),
            tokens(value.get("output_tokens"), "output_tokens"),
            name=None if name is None else str(name),
            session=session,
            history=None if session is None else prefix,
        )


class ServingSimRows:
    """LLMServingSim: flat requests, sessions with ``sub_requests``, and the requests of its real vLLM runs.

    A sub-request's ``input_toks`` is the whole context and begins with its predecessor's; it starts
    ``tool_duration_ns`` after the predecessor ends.
    """

    def __init__(self, builder: TraceBuilder, given_unit: str | None) -> None:
        self.builder = builder
        self._ns = Clock(given_unit or "ns", "arrival_time_ns")
        self._s = Clock(given_unit or "s", "arrival_time")

    def row(self, value: dict[str, Any], line: int) -> None:
        if "arrival_time_ns" in value:
            arrival: float | None = self._ns.seconds(value["arrival_time_ns"])
            self.builder.note(f"time: arrival_time_ns in {self._ns.unit}")
        elif "arrival_time" in value:
            arrival = self._s.seconds(value["arrival_time"])
            self.builder.note(f"time: arrival_time in {self._s.unit}")
        else:
            arrival = None
        if "sub_requests" not in value:
            name = plain(value.get("request_id"), "request_id")
            self._add(value, arrival, None if name is None else str(name))
            return
        session = plain(value.get("session_id"), "session_id")
        session = line if session is None else session
        state = {"at": arrival}
        self.builder.note(f"sessions: {OPEN_LOOP}")

        def add(request: dict[str, Any]) -> None:
            self._add(request, state["at"], None, session)
            wait = number(request.get("tool_duration_ns", 0), "tool_duration_ns") / 1e9
            if not 0 <= wait < 1e9:
                raise InputError("is no duration", field="tool_duration_ns", value=wait)
            if state["at"] is not None:
                state["at"] += wait

        each(self.builder, line, listed(value["sub_requests"], "sub_requests"), "sub_requests", add)

    def _add(self, value: dict[str, Any], arrival: float | None, name: str | None, session: Any = None) -> None:
        prompt = tokens(value.get("input_toks"), "input_toks")
        self.builder.add(
            arrival,
            prompt,
            tokens(value.get("output_toks"), "output_toks"),
            name=name,
            session=session,
            history=None if session is None else prompt,
        )


class AibrixRows:
    """AIBrix: several requests a line under one timestamp in ms."""

    def __init__(self, builder: TraceBuilder, unit: str) -> None:
        self.builder = builder
        self.clock = Clock(unit, "timestamp")

    def row(self, value: dict[str, Any], line: int) -> None:
        arrival = self.clock.seconds(value.get("timestamp"))

        def add(request: dict[str, Any]) -> None:
            output = request.get("Output Length")
            self.builder.add(
                arrival,
                tokens(request.get("Prompt Length"), "Prompt Length"),
                None if output is None else tokens(output, "Output Length"),
            )

        each(self.builder, line, listed(value.get("requests"), "requests"), "requests", add)
