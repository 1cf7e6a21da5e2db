"""From rows, however they come, to a ``Trace``: order, the zero of time, empty answers, what was assumed."""

from __future__ import annotations

import dataclasses
from array import array
from collections.abc import Hashable, Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvplan.errors import InputError
from kvplan.trace.column import Column
from kvplan.trace.content import ContentBuilder, Segment, clip, merged, restarts
from kvplan.trace.id_rows import BATCH, PackedIds, packed
from kvplan.trace.name_numbers import NameNumbers
from kvplan.trace.names import Names
from kvplan.trace.rows import MAX_TOKENS, BadRows
from kvplan.trace.settle import block_content, session_content, settled_arrivals, settled_outputs
from kvplan.trace.trace import Content, Doubles, Longs, Origin, Recorded, Trace, Wholes, taken, whole_kind
from kvplan.trace.words import counted

ASSUMED_OUTPUT = 256
"""Output tokens where the file does not say: vLLM's own default for such data (--custom-output-len)."""

MOST_DRAWN, MOST_ASKED_FOR = 200_000, 10_000_000
"""Requests drawn from a file of distributions, by default and at most."""

_NAMED_IDS = 1 << 61
"""Where the numbers of block ids begin that are no plain numbers themselves."""


class TraceBuilder:
    """Collects the rows of one file and finishes them into a trace. ``bad`` collects those that are none."""

    def __init__(self, format_name: str, bad: BadRows, *, assumed_output: int | None = None, limit: int | None = None):
        self.format = format_name
        self.bad = bad
        self.notes: list[str] = []
        self.facts: dict[str, Any] = {}
        self.limit = limit
        self.assumed_output = ASSUMED_OUTPUT if assumed_output is None else assumed_output
        self.zero_output_failed = False
        """True: a row without output is a failed request. False: an empty answer, replayed as one token."""
        self.rebase = True
        """False for kvplan's own files, whose clock is taken at its word."""
        self.block_size: int | None = None
        self.most_segments = 0
        """What the file's size allows beyond ``content.MOST_SEGMENTS``."""
        self.sessions_share = False
        """True: a turn whose prompt is long enough begins with all of its session's former turn."""
        self._arrival, self._prompt, self._output = array("d"), Column(), Column(-1)
        self._names = Names()
        self._sessions = NameNumbers()
        defaults = {"session": -1, "priority": 0, "n": 1, "beam_width": 0}
        self._extra = {name: Column(default) for name, default in defaults.items()}
        self._ids, self._ids_per_row, self._spaces = PackedIds(), Column(0), Column(0)
        self._id_numbers = NameNumbers()
        self._content: ContentBuilder | None = None

    def __len__(self) -> int:
        return len(self._prompt)

    @property
    def full(self) -> bool:
        """Whether the ``limit`` is reached."""
        return self.limit is not None and len(self) >= self.limit

    def drawn(self, count: float) -> int:
        """How many of ``count`` requests to draw from a distribution: a few bytes can ask for any number.

        ``MOST_DRAWN``, or up to ``MOST_ASKED_FOR`` where the limit asks for them.
        """
        most = MOST_DRAWN if self.limit is None else min(self.limit, MOST_ASKED_FOR)
        if count > most:
            self.note(f"{most:,} of {count:,.0f} requests drawn (--limit draws up to {MOST_ASKED_FOR:,})")
        return int(min(count, most))

    def source(self, name: Hashable) -> int:
        """The source of that name, for ``segments``."""
        return self._named_content().source(name)

    def known_session(self, session: Hashable) -> int:
        """``session_number`` where a row so far is of that session, else -1."""
        return self._sessions.find(session)

    def history_tokens(self, session: Hashable) -> int:
        """How long the session is so far, prompt and output of its last turn; 0 for a new one."""
        number = self._sessions.find(session)
        return 0 if self._content is None or number < 0 else self._content.history_tokens(number)

    def _named_content(self) -> ContentBuilder:
        if self._content is None:
            self._content = ContentBuilder(self.most_segments)
            for _ in range(len(self)):  # the rows so far share nothing by name
                self._content.add(())
        return self._content

    def _add_content(
        self,
        segments: Iterable[Segment] | None,
        history: int | None,
        session: int,
        prompt: int,
        output: int | None,
        told: tuple[int, int] | None,
    ) -> None:
        if history is not None and session >= 0:
            answer = self.assumed_output if output is None else output
            self._named_content().turn(session, prompt, answer, shared=min(history, prompt))
        elif segments is not None:
            source, start = told or (-1, 0)
            self._named_content().add(clip(segments, prompt), output_source=source, output_start=start)
        elif self._content is not None:
            self._content.add(())

    def session_number(self, session: Hashable) -> int:
        """A number for the session's name, -1 for none."""
        if session is None or session == "":
            return -1
        return self._sessions.number(session)

    def add(
        self,
        arrival_s: float | None,
        prompt: int,
        output: int | None,
        *,
        name: str | None = None,
        session: Hashable = None,
        priority: int = 0,
        n: int = 1,
        beam_width: int = 0,
        ids: Sequence[int] = (),
        id_space: int = 0,
        segments: Iterable[Segment] | None = None,
        history: int | None = None,
        output_content: tuple[int, int] | None = None,
    ) -> None:
        """One request. None: the file does not say when it arrives, how much it writes.

        What it shares is told by block ``ids`` (within an ``id_space``), by ``segments`` outright, or by
        ``history``: the prompt begins with that many tokens of what its ``session`` holds so far (fewer where
        the session is shorter), and later turns know its own prompt and output. ``output_content``: (source,
        place in it) of what it writes, beside ``segments``.

        Raises:
            InputError: ``ids`` holds something that is no block id, or the prompt, history included, is longer
                than any; nothing was added. Without a place.
        """
        if prompt > MAX_TOKENS:
            raise InputError(f"is more than {MAX_TOKENS} tokens, history included", field="prompt", value=prompt)
        numbers = self._block_ids(ids)
        own = self.session_number(session)
        self._add_content(segments, history, own, prompt, output, output_content)
        self._arrival.append(np.nan if arrival_s is None else arrival_s)
        self._prompt.append(prompt)
        self._output.append(-1 if output is None else output)
        self._names.append(name)
        extra = self._extra
        extra["session"].append(own)
        extra["priority"].append(priority)
        extra["n"].append(n)
        extra["beam_width"].append(beam_width)
        self._ids.extend(numbers)
        self._ids_per_row.append(len(ids))
        self._spaces.append(id_space)

    def extend(self, arrival_s: Doubles | None, prompt: Longs, output: Longs | None, **extra: Any) -> None:
        """Many requests at once, up to the limit; ``extra``: session (names), name, priority, n, beam_width."""
        if self.limit is not None and len(self) + len(prompt) > self.limit:
            kept = self.limit - len(self)
            prompt = prompt[:kept]
            arrival_s = None if arrival_s is None else arrival_s[:kept]
            output = None if output is None else output[:kept]
            extra = {name: column[:kept] for name, column in extra.items()}
        rows = len(prompt)
        self._arrival.frombytes((np.full(rows, np.nan) if arrival_s is None else arrival_s).astype("d").tobytes())
        self._prompt.extend(prompt, rows)
        self._output.extend(output, rows)
        self._names.extend(extra.get("name"), rows)
        sessions = extra.get("session")
        columns = extra if sessions is None else {**extra, "session": [self.session_number(s) for s in sessions]}
        for name, column in self._extra.items():
            column.extend(np.asarray(columns[name]) if columns.get(name) is not None else None, rows)
        self._ids_per_row.extend(None, rows)
        self._spaces.extend(None, rows)

    def _block_ids(self, ids: Sequence[Any]) -> list[array[int]] | list[NDArray[Any]]:
        """Ids as numbers >= 0: whole numbers as they are, others (texts, negatives) by first appearance.

        In one part, or in several of ``BATCH`` ids or fewer, packed.
        """
        try:
            if len(ids) <= BATCH:
                return [_plain_ids(ids)]
            return [packed(_plain_ids(ids[at : at + BATCH])) for at in range(0, len(ids), BATCH)]
        except (TypeError, ValueError, OverflowError):
            pass
        if any(not isinstance(name, (int, str)) for name in ids):
            raise InputError("holds something that is no block id", field="hash_ids")
        number = self._id_numbers.number
        parts = (ids[at : at + BATCH] for at in range(0, len(ids), BATCH))
        return [packed(array("q", (_NAMED_IDS + number(name) for name in part))) for part in parts]

    def note(self, text: str) -> None:
        """Tell the person what was inferred or assumed; the same sentence once."""
        if text not in self.notes:
            self.notes.append(text)

    # -- finishing ------------------------------------------------------------------------------------------

    def finish(self, path: str, *, expected_block_size: int | None = None) -> Trace:
        """The trace.

        Raises:
            InputError: nothing could be read, or bad rows where they are refused.
        """
        self.bad.settle()
        if not len(self):
            what = f"none of its {counted(self.bad.count, 'row')} can be read" if self.bad.count else "holds no request"
            raise InputError(what, source=path, line=1)
        self._sessions, self._id_numbers = NameNumbers(), NameNumbers()  # every row is numbered
        arrival = settled_arrivals(np.frombuffer(self._arrival), self.rebase, self.note)
        self._arrival = array("d")
        prompt = self._prompt.taken(narrow=True)
        output = settled_outputs(self._output.taken(narrow=True), len(arrival), self.assumed_output, self.note)
        assert prompt is not None
        moved = int(np.count_nonzero(arrival[1:] < arrival[:-1]))
        order = _order(arrival) if moved else None
        kept = (prompt > 0) & (output > 0) if self.zero_output_failed else prompt > 0
        chosen = _chosen(order, kept)
        content = self._settled_content(prompt, chosen, expected_block_size)
        if order is not None:
            self.note(f"sorted by arrival: {counted(moved, 'row')} came before the row above")
            arrival = arrival[order]  # one after the other: each frees what it replaces
            prompt = prompt[order]
            output = output[order]
            kept = kept[order]
            del order
        recorded = None
        if not kept.all() or not output.all():
            recorded = Recorded(arrival, prompt, output)
            self._note_zeros(kept, output)
        if not kept.any():
            raise InputError("has no request with tokens", source=path, line=1)
        if not kept.all():
            arrival, prompt, output = arrival[kept], prompt[kept], output[kept]
        names = self._names.taken(chosen)
        prompt = prompt.astype(np.int64, copy=False)
        output = output.astype(np.int64, copy=False)
        trace = Trace(
            arrival,
            prompt,
            output if output.all() else np.maximum(output, 1),
            request_id=names,
            **{name: self._column(name, chosen) for name in self._extra},
            content=content,
            origin=Origin(
                path,
                self.format,
                bad_rows=self.bad.count,
                bad_row_examples=self.bad.examples,
                block_size=self.block_size,
                recorded=recorded,
                facts=self.facts,
            ),
        )
        del arrival, prompt, output, kept, chosen, names
        if content is None and self.sessions_share and trace.session is not None:
            trace = dataclasses.replace(trace, content=session_content(trace, self.note))
        return dataclasses.replace(trace, origin=dataclasses.replace(trace.origin, notes=tuple(self.notes)))

    def _settled_content(self, prompt: Longs, chosen: Longs | None, expected: int | None) -> Content | None:
        """The content of the ``chosen`` rows (None: of all), in that order."""
        named = None
        if self._content is not None:
            named = self._content.build()
            if self._content.restarted:
                self.note(restarts(self._content))
            self._content = None
        if len(self._ids):
            per_row, spaces = self._ids_per_row.taken(narrow=True), self._spaces.taken(narrow=True)
            assert per_row is not None
            ids, rows = self._ids.whole(), chosen if named is None else None
            size, blocks = block_content(prompt, per_row, ids, spaces, self.block_size, expected, self.note, rows)
            self.block_size = size
            if named is None:
                return blocks
            parts = [blocks, named]
            del blocks
            named = merged(parts)
        if named is None or chosen is None:
            return named
        columns = dict(vars(named))
        named = None  # the columns are freed as they are reordered
        return taken(columns, chosen)

    def _note_zeros(self, kept: np.ndarray[Any, Any], output: Longs) -> None:
        if not kept.all():
            without = counted(int(np.count_nonzero(~kept)), "request")
            self.note(f"{without} of 0 tokens (failed or empty): counted, not replayed")
        empty = int(np.count_nonzero(output[kept] == 0))
        if empty:
            self.note(f"{counted(empty, 'request')} with an empty answer: replayed with the one token that ends it")

    def _column(self, name: str, chosen: Longs | None) -> Any:
        column = self._extra[name].taken()
        if column is None or chosen is None:
            return column
        column = column[chosen]
        return None if (column == self._extra[name].default).all() else column


def _order(arrival: Doubles) -> Wholes:
    """The rows by arrival, in four bytes each where they hold it."""
    order = np.argsort(arrival, kind="stable")
    return order.astype(whole_kind(len(order)), copy=False)


def _chosen(order: Wholes | None, kept: NDArray[np.bool_]) -> Wholes | None:
    """The rows that are kept, in the order of arrival; None where all are, and stand in it."""
    if kept.all():
        return order
    return np.flatnonzero(kept) if order is None else order[kept[order]]


def _plain_ids(ids: Sequence[Any]) -> array[int]:
    """Raises TypeError, ValueError or OverflowError where one is no whole number from 0 to ``_NAMED_IDS``."""
    numbers = array("q", ids)
    if numbers and (min(numbers) < 0 or max(numbers) >= _NAMED_IDS):
        raise ValueError
    return numbers
