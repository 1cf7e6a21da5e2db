"""The lengths of a ServeGen client: ``chunk-I-dataset.json``, distributions of prompt and output by window."""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvplan.errors import InputError
from kvplan.trace.json_text import JsonText
from kvplan.trace.long_json import value_at
from kvplan.trace.rows import MAX_TOKENS
from kvplan.trace.source import Source
from kvplan.trace.trace import Doubles, Longs

Pmf = tuple[NDArray[np.int32], Doubles]
"""Lengths and their cumulated probabilities."""

_PAIR = re.compile(r"\s*(\d{1,10})\s*:\s*([0-9.eE+-]{1,40})\s*(?:,\s*|$)")
_MOST_SECONDS = 1 << 40


class WindowLengths:
    """Two distributions a window, one after the other in columns: as arrays of their own each takes 200 bytes more."""

    def __init__(self) -> None:
        self._lengths, self._cumulated = array("i"), array("d")
        self._begins, self._ends = array("q"), array("q", [0])
        self._windows: Longs = np.zeros(0, np.int64)
        """Those that count, by where they begin."""
        self._starts: Longs = self._windows
        """Where they begin, seconds."""

    def add(self, begin: int, prompt: Any, output: Any) -> None:
        """The next window, by its two texts like ``"{9: 0.0067, ...}"``. Of two that begin together the last counts.

        Raises:
            InputError: a text is no distribution; without a place.
        """
        self._begins.append(begin)
        for text in (prompt, output):
            self._add(text)
            self._ends.append(len(self._lengths))

    def _add(self, text: Any) -> None:
        """A distribution, nothing where it tells nothing (``"{}"``)."""
        body = text.strip() if isinstance(text, str) else ""
        begin, at, end = len(self._lengths), 1, len(body) - 1
        while at < end:
            pair = _PAIR.match(body, at, end)
            try:
                if pair is None or not 0 <= int(pair[1]) <= MAX_TOKENS or not 0 <= float(pair[2]) < 1e9:
                    raise ValueError
            except ValueError:
                raise InputError("is no distribution", value=body[at : min(at + 40, end)]) from None
            self._lengths.append(int(pair[1]))
            self._cumulated.append(float(pair[2]))
            at = pair.end()
        with memoryview(self._cumulated)[begin:] as weights:
            total = sum(weights)
        if total:
            cumulated = np.frombuffer(self._cumulated)[begin:]
            np.cumsum(cumulated, out=cumulated)
            cumulated /= total
        else:
            del self._lengths[begin:], self._cumulated[begin:]

    def settle(self) -> None:
        """All are added."""
        if not self._begins:
            return
        begins, ends = np.frombuffer(self._begins, np.int64), np.frombuffer(self._ends, np.int64)
        order = np.argsort(begins, kind="stable")
        last = np.ones(len(order), bool)
        last[:-1] = np.diff(begins[order]) > 0
        told: NDArray[np.bool_] = np.all(np.diff(ends).reshape(-1, 2) > 0, axis=1)
        self._windows = order[last & told[order]]
        self._starts = begins[self._windows]

    def nearest(self, begin: float) -> int | None:
        """The last window that has lengths and starts no later than ``begin``; the first where none does."""
        if not len(self._windows):
            return None
        return int(self._windows[max(0, int(np.searchsorted(self._starts, begin, side="right")) - 1)])

    def of(self, window: int) -> tuple[Pmf, Pmf]:
        """A window's distributions of prompt and output."""
        lengths, cumulated = np.frombuffer(self._lengths, np.intc), np.frombuffer(self._cumulated)
        ends = self._ends[2 * window : 2 * window + 3]
        prompt, output = slice(ends[0], ends[1]), slice(ends[1], ends[2])
        return (lengths[prompt], cumulated[prompt]), (lengths[output], cumulated[output])


def read_lengths(source: Source) -> WindowLengths:
    """The distributions of every window.

    Raises:
        InputError: the file holds none.
    """
    lengths = WindowLengths()
    for begin, prompt, output in _windows(source):
        try:
            lengths.add(begin, prompt, output)
        except InputError as error:
            raise InputError(error.message, value=error.value, source=source.name, line=1) from None
    lengths.settle()
    return lengths


def _windows(source: Source) -> Iterator[tuple[int, Any, Any]]:
    """(beginning, distribution of the prompt, of the output) of each window, one at a time."""
    text = JsonText(bytearray(), source.blocks(), name=source.name)
    try:
        document, _ = value_at(text, text.check())
        for key, value in document.items():
            begin = int(key)
            if abs(begin) > _MOST_SECONDS:
                raise ValueError
            yield begin, value["input_tokens"], value["output_tokens"]
    except (ValueError, KeyError, TypeError, AttributeError, InputError):
        raise InputError("is no ServeGen dataset", source=source.name, line=1) from None
