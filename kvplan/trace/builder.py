"""From rows, however they come, to a ``Trace``: order, the zero of time, empty answers, what was assumed."""

from __future__ import annotations

import dataclasses
from array import array
from collections.abc import Hashable, Iterable
from typing import Any

import numpy as np

from kvplan.errors import InputError
from kvplan.trace.content import ContentBuilder, Segment, clip, merged, restarts
from kvplan.trace.rows import MAX_TOKENS, BadRows, written_name
from kvplan.trace.settle import block_content, session_content, settled_arrivals, settled_outputs
from kvplan.trace.trace import Content, Doubles, Longs, Origin, Recorded, Trace
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
        self._arrival, self._prompt, self._output = array("d"), array("q"), array("q")
        self._names: list[str | None] = []
        self._named = False
        self._sessions: dict[Hashable, int] = {}
        self._extra: dict[str, array[int]] = {name: array("q") for name in ("session", "priority", "n", "beam_width")}
        self._ids, self._ids_per_row, self._spaces = array("q"), array("q"), array("q")
        self._id_numbers: dict[Hashable, int] = {}
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

    def history_tokens(self, session: Hashable) -> int:
        """How long the session is so far, prompt and output of its last turn; 0 for a new one."""
        return 0 if self._content is None else self._content.history_tokens(session)

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
        session: Hashable,
        prompt: int,
        output: int | None,
        output_source: int,
    ) -> None:
        if history is not None:
            answer = self.assumed_output if output is None else output
            self._named_content().turn(session, prompt, answer, shared=min(history, prompt))
        elif segments is not None:
            self._named_content().add(clip(segments, prompt), output_source=output_source)
        elif self._content is not None:
            self._content.add(())

    def session_number(self, session: Hashable) -> int:
        """A number for the session's name, -1 for none."""
        if session is None or session == "":
            return -1
        return self._sessions.setdefault(session, len(self._sessions))

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
        ids: Iterable[int] = (),
        id_space: int = 0,
        segments: Iterable[Segment] | None = None,
        history: int | None = None,
        output_source: int = -1,
    ) -> None:
        """One request. None: the file does not say when it arrives, how much it writes.

        What it shares is told by block ``ids`` (within an ``id_space``), by ``segments`` outright, or by
        ``history``: the prompt begins with that many tokens of what its ``session`` holds so far (fewer where
        the session is shorter), and later turns know its own prompt and output.

        Raises:
            InputError: ``ids`` holds something that is no block id, or the prompt, history included, is longer
                than any; nothing was added. Without a place.
        """
        if prompt > MAX_TOKENS:
            raise InputError(f"is more than {MAX_TOKENS} tokens, history included", field="prompt", value=prompt)
        numbers = self._block_ids(ids)
        self._add_content(segments, history, session, prompt, output, output_source)
        self._arrival.append(np.nan if arrival_s is None else arrival_s)
        self._prompt.append(prompt)
        self._output.append(-1 if output is None else output)
        self._names.append(name)
        self._named |= name is not None
        extra = self._extra
        extra["session"].append(self.session_number(session))
        extra["priority"].append(priority)
        extra["n"].append(n)
        extra["beam_width"].append(beam_width)
        self._ids.extend(numbers)
        self._ids_per_row.append(len(numbers))
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
        self._prompt.frombytes(prompt.astype("q").tobytes())
        self._output.frombytes((np.full(rows, -1) if output is None else output).astype("q").tobytes())
        self._names.extend(extra["name"] if "name" in extra else [None] * rows)
        self._named |= "name" in extra
        sessions = extra.get("session")
        numbers = np.full(rows, -1) if sessions is None else np.array([self.session_number(s) for s in sessions])
        self._extra["session"].frombytes(numbers.astype("q").tobytes())
        for column, default in (("priority", 0), ("n", 1), ("beam_width", 0)):
            values = extra.get(column)
            values = np.full(rows, default) if values is None else np.asarray(values)
            self._extra[column].frombytes(values.astype("q").tobytes())
        zeros = np.zeros(rows, "q").tobytes()
        self._ids_per_row.frombytes(zeros)
        self._spaces.frombytes(zeros)

    def _block_ids(self, ids: Iterable[Any]) -> array[int]:
        """Ids as numbers >= 0: whole numbers as they are, others (texts, negatives) by first appearance."""
        try:
            numbers = array("q", ids)
            if not numbers or (min(numbers) >= 0 and max(numbers) < _NAMED_IDS):
                return numbers
        except (TypeError, OverflowError):
            pass
        if any(not isinstance(name, (int, str)) for name in ids):
            raise InputError("holds something that is no block id", field="hash_ids")
        return array("q", [self._id_numbers.setdefault(name, _NAMED_IDS + len(self._id_numbers)) for name in ids])

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
        arrival = settled_arrivals(np.array(self._arrival, dtype=np.float64), self.rebase, self.note)
        prompt = np.array(self._prompt, dtype=np.int64)
        output = settled_outputs(np.array(self._output, dtype=np.int64), self.assumed_output, self.note)
        content = self._settled_content(prompt, expected_block_size)
        order = np.argsort(arrival, kind="stable")
        moved = int(np.count_nonzero(np.diff(arrival) < 0))
        if moved:
            self.note(f"sorted by arrival: {counted(moved, 'row')} came before the row above")
        arrival, prompt, output = arrival[order], prompt[order], output[order]
        kept = prompt > 0
        if self.zero_output_failed:
            kept &= output > 0
        recorded = None
        if not kept.all() or not output.all():
            recorded = Recorded(arrival, prompt, output)
            self._note_zeros(kept, output)
        chosen, everything = order[kept], np.arange(len(prompt))
        if not len(chosen):
            raise InputError("has no request with tokens", source=path, line=1)
        trace = Trace(
            arrival[kept],
            prompt[kept],
            np.maximum(output[kept], 1),
            request_id=self._settled_names(chosen, bool(moved) or not kept.all()),
            **{name: self._column(name, chosen) for name in self._extra},
            content=content if content is None or np.array_equal(chosen, everything) else content.take(chosen),
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
        if content is None and self.sessions_share and trace.session is not None:
            trace = dataclasses.replace(trace, content=session_content(trace, self.note))
        return dataclasses.replace(trace, origin=dataclasses.replace(trace.origin, notes=tuple(self.notes)))

    def _settled_content(self, prompt: Longs, expected: int | None) -> Content | None:
        named = None if self._content is None else self._content.build()
        if self._content is not None and self._content.restarted:
            self.note(restarts(self._content))
        if not len(self._ids):
            return named
        ids, per_row, spaces = (
            np.array(column, dtype=np.int64) for column in (self._ids, self._ids_per_row, self._spaces)
        )
        size, blocks = block_content(prompt, per_row, ids, spaces, self.block_size, expected, self.note)
        self.block_size = size
        return blocks if named is None else merged(blocks, named)

    def _note_zeros(self, kept: np.ndarray[Any, Any], output: Longs) -> None:
        if not kept.all():
            without = counted(int(np.count_nonzero(~kept)), "request")
            self.note(f"{without} of 0 tokens (failed or empty): counted, not replayed")
        empty = int(np.count_nonzero(output[kept] == 0))
        if empty:
            self.note(f"{counted(empty, 'request')} with an empty answer: replayed with the one token that ends it")

    def _settled_names(self, chosen: Longs, reordered: bool) -> Any:
        if not self._named:
            return chosen.astype(str).astype(object) if reordered else None
        named = ((row, self._names[row]) for row in chosen.tolist())
        return np.array([str(row) if name is None else written_name(name) for row, name in named], dtype=object)

    def _column(self, name: str, chosen: Longs) -> Any:
        column = np.array(self._extra[name], dtype=np.int64)[chosen]
        default = {"session": -1, "priority": 0, "n": 1, "beam_width": 0}[name]
        return None if (column == default).all() else column
