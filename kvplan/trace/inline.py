"""The requests that a scenario lists itself: ``requests: [{arrival: 0, prompt: 512, output: 128}]``."""

from __future__ import annotations

import itertools
from array import array
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from kvplan.errors import InputError
from kvplan.trace.column import Column
from kvplan.trace.content import ContentBuilder, Segment, restarts
from kvplan.trace.inline_request import InlineRequest, inline_request
from kvplan.trace.name_numbers import NameNumbers
from kvplan.trace.names import Names
from kvplan.trace.rows import LEAST
from kvplan.trace.trace import ROWS, Content, Longs, Origin, Trace, taken

_BY_NAME, _EXACT, _TOO_LONG = range(3)
"""How a request tells what it shares: by prefix and session, or by content, which may exceed its prompt."""


def inline_trace(
    requests: Iterable[Mapping[str, Any]],
    source: str = "<requests>",
    lines: Iterable[int | None] | None = None,
) -> Trace:
    """The trace of requests given one by one.

    Equal ``prefix.id`` share their first ``prefix.tokens`` tokens (all of the prompt where it is no longer).
    A later turn of a ``session`` begins with all of the former turn, prompt and output.

    Args:
        requests: mappings with the keys ``inline_request.KEYS`` (or ``EXACT_KEYS``); ``prompt`` and ``output`` must
            be there, ``arrival`` is 0 s where it is not. They need not be in order.
        source: the file they stand in, for messages.
        lines: the line of each request, for messages.

    Raises:
        InputError: an unknown key, a missing or impossible value, a turn shorter than its former turn, or no
            request at all.
    """
    builder = InlineBuilder(source)
    places = itertools.repeat(None) if lines is None else lines
    for request, line in zip(requests, places, strict=lines is not None):
        builder.add(request, line)
    return builder.finish()


class InlineBuilder:
    """Collects such requests in columns, in any order, and finishes them into a trace.

    Args:
        source: the file they stand in, for messages.
        limit: how many are wanted, for ``full``; None: all.
    """

    def __init__(self, source: str, limit: int | None = None) -> None:
        self.source = source
        self.limit = limit
        self._arrival, self._prompt, self._output = array("d"), array("i"), array("i")
        self._lines = array("I")  # 0: unknown
        self._names = Names()
        self._small = {"priority": Column(0), "n": Column(1), "beam_width": Column(0)}
        self._sessions, self._session_names = NameNumbers(), Names()  # as messages show them
        self._prefixes = NameNumbers()
        self._session, self._prefix, self._prefix_tokens = Column(-1), Column(-1), Column(0)
        self._telling = Column(_BY_NAME)
        self._exact = ContentBuilder()
        self._shared = False

    def __len__(self) -> int:
        return len(self._prompt)

    @property
    def full(self) -> bool:
        """Whether the ``limit`` is reached."""
        return self.limit is not None and len(self) >= self.limit

    def add(self, request: Any, line: int | None = None) -> None:
        """The next request, a mapping as `inline_trace` takes it.

        Raises:
            InputError: it is none; with its place. Nothing was added.
        """
        try:
            row = inline_request(request)
        except InputError as error:
            raise self._placed(error, line, len(self)) from None
        self._names.append(None if row.name is None else str(row.name))
        self._arrival.append(row.arrival_s)
        self._prompt.append(row.prompt)
        self._output.append(row.output)
        self._lines.append(line or 0)
        for key, column in self._small.items():
            column.append(getattr(row, key))
        self._session.append(-1 if row.session is None else self._session_number(row.session))
        name, tokens = (None, 0) if row.prefix is None else row.prefix
        self._prefix.append(-1 if row.prefix is None else self._prefixes.number(name))
        self._prefix_tokens.append(tokens)
        self._add_content(row)

    def _session_number(self, name: Any) -> int:
        known = len(self._sessions)
        number = self._sessions.number(name)
        if number == known:
            self._session_names.append(repr(name))
        return number

    def _add_content(self, row: InlineRequest) -> None:
        if row.content is None:
            self._telling.append(_BY_NAME)
            self._shared |= row.prefix is not None or row.session is not None
            return
        too_long = sum(count for _, _, count in row.content) > row.prompt
        self._telling.append(_TOO_LONG if too_long else _EXACT)
        source, start = row.output_content
        self._shared |= bool(row.content) or source >= 0
        self._exact.add(row.content, output_source=source, output_start=start)

    def finish(self) -> Trace:
        """The trace, in order of arrival; equal arrivals keep the order of the file.

        Raises:
            InputError: no request; a turn shorter than its former turn, content longer than its prompt or given for
                some requests only; with its place.
        """
        if not len(self):
            raise InputError("lists no request", field="requests", source=self.source, line=1)
        arrival: Any = np.frombuffer(self._arrival)
        unsorted = bool((arrival[1:] < arrival[:-1]).any())
        order = np.argsort(arrival, kind="stable") if unsorted else None
        notes = ["requests sorted by arrival"] if unsorted else []
        session = self._session.taken()
        content = self._content(order, session, notes)
        if session is not None:
            session = _by_appearance(_sorted(session, order))
        prompt: Any = np.frombuffer(self._prompt, np.intc)
        output: Any = np.frombuffer(self._output, np.intc)
        return Trace(
            _sorted(arrival, order),
            _sorted(prompt, order),
            _sorted(output, order),
            request_id=self._request_ids(order),
            session=session,
            **{name: self._small_column(name, order) for name in LEAST},
            content=content,
            origin=Origin(self.source, "inline", tuple(notes)),
        )

    def _request_ids(self, order: Longs | None) -> Any:
        names = self._names.taken(order)
        return np.arange(len(self)) if names is None else names

    def _small_column(self, name: str, order: Longs | None) -> Any:
        column = self._small[name]
        values = column.taken()
        return np.full(len(self), column.default, np.int32) if values is None else _sorted(values, order)

    def _content(self, order: Longs | None, session: Longs | None, notes: list[str]) -> Content | None:
        """What is shared, in the order of arrival; None where nothing is."""
        telling = self._telling.taken()
        if telling is None:
            return self._told_by_name(order, telling, session, notes) if self._shared else None
        if not telling.all():
            self._told_by_name(order, telling, session, notes)  # an impossible turn is told first
            raise InputError("must be given for all requests or for none", field="content", source=self.source, line=1)
        too_long = np.flatnonzero(_sorted(telling, order) == _TOO_LONG)
        if len(too_long):
            raise self._too_long(int(too_long[0] if order is None else order[too_long[0]]))
        if not self._shared:
            return None
        content = self._exact.build()
        if order is None:
            return content
        columns = dict(vars(content))
        self._exact = ContentBuilder()
        del content  # the columns are freed as they are reordered
        return taken(columns, order)

    def _told_by_name(
        self, order: Longs | None, telling: Longs | None, session: Longs | None, notes: list[str]
    ) -> Content:
        content = ContentBuilder()
        sources = array("q", [-1]) * len(self._prefixes)
        for row, told, prompt, output, talk, prefix, tokens in self._rows(order, telling, session):
            if told == _TOO_LONG:
                raise self._too_long(row)
            if told == _EXACT:
                continue
            head: list[Segment] = []
            if prefix >= 0:
                if sources[prefix] < 0:
                    sources[prefix] = content.source()
                head = [(sources[prefix], 0, min(tokens, prompt))]
            if talk < 0:
                content.add(head)
                continue
            history = content.history_tokens(talk)
            if history > prompt:
                raise self._too_short(row, talk, history)
            content.turn(talk, prompt, output, shared=history or prompt, head=head)
        if content.restarted:
            notes.append(restarts(content))
        return content.build()

    def _rows(self, order: Longs | None, telling: Longs | None, session: Longs | None) -> Iterator[tuple[int, ...]]:
        """(row, how it tells, prompt, output, session, prefix, its tokens) in the order of arrival."""
        rows = len(self)
        columns: list[Any] = [
            np.broadcast_to(_BY_NAME, rows) if telling is None else telling,
            np.frombuffer(self._prompt, np.intc),
            np.frombuffer(self._output, np.intc),
            np.broadcast_to(-1, rows) if session is None else session,
        ]
        for column, default in ((self._prefix, -1), (self._prefix_tokens, 0)):
            values = column.taken()
            columns.append(np.broadcast_to(default, rows) if values is None else values)
        for at in range(0, rows, ROWS):
            part = np.arange(at, min(at + ROWS, rows)) if order is None else order[at : at + ROWS]
            yield from zip(part.tolist(), *(column[part].tolist() for column in columns), strict=True)

    def _too_long(self, row: int) -> InputError:
        return self._placed(InputError("is longer than the prompt", field="content"), self._lines[row] or None, row)

    def _too_short(self, row: int, session: int, history: int) -> InputError:
        names = self._session_names.taken(None)
        assert names is not None, "a row of this session was added"
        error = InputError(
            f"is shorter than the former turn of session {names[session]} (prompt and output: {history} tokens)",
            field="prompt",
            value=self._prompt[row],
            hint="a later turn begins with all of the former turn: give the whole prompt, history included",
        )
        return self._placed(error, self._lines[row] or None, row)

    def _placed(self, error: InputError, line: int | None, row: int) -> InputError:
        return InputError(
            error.message,
            field=f"requests[{row}]" + (f".{error.field}" if error.field else ""),
            **({"value": error.value} if error.has_value else {}),
            source=self.source,
            line=line,
            hint=error.hint,
        )


def _sorted(column: Any, order: Longs | None) -> Any:
    return column if order is None else column[order]


def _by_appearance(session: Longs) -> Longs:
    """Sessions, numbered from 0 in any order and -1 for none, numbered from 0 by first appearance."""
    rows = np.flatnonzero(session >= 0)[::-1]
    first = np.empty(int(session.max()) + 1, np.int64)
    first[session[rows]] = rows  # the earliest is written last
    number = np.empty_like(first)
    number[np.argsort(first)] = np.arange(len(first))
    return np.where(session < 0, -1, number[session])
