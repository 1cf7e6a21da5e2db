"""ServeGen: one client as distributions in two files, ``chunk-I-trace.csv`` and ``chunk-I-dataset.json``."""

from __future__ import annotations

import itertools
import re
from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from kvplan.errors import InputError
from kvplan.trace.builder import MOST_ASKED_FOR, MOST_DRAWN, TraceBuilder
from kvplan.trace.facts import NoRequestsError
from kvplan.trace.readers.servegen_lengths import Pmf, read_lengths
from kvplan.trace.rows import number
from kvplan.trace.source import Source, open_source
from kvplan.trace.trace import Doubles, Wholes

_ROW = re.compile(r"[\d.]+,[\d.eE+-]+,[\d.eE+-]*,(Gamma|Weibull)?,[^,]*,[^,]*")
# Not JSON inside the JSON: a Python literal, read by its grammar and never evaluated.
_BYTES_A_REQUEST = 8
"""Of the two files for each request drawn from them: a request takes 40 while it is read, 24 once it is."""
_PATTERNS = ("Gamma", "Weibull")
"""Whose shape counts; gaps of others are exponential."""
_MOST_IN_WINDOW = 10_000_000


def looks_like_rates(head: str) -> bool:
    """Whether the first line is a headerless row of ``chunk-I-trace.csv``."""
    return bool(_ROW.fullmatch(head.split("\n", 1)[0].strip()))


def is_dataset(value: dict[str, Any]) -> bool:
    """Whether a JSON document is a ``chunk-I-dataset.json``."""
    windows = list(itertools.islice(value.items(), 3))
    return bool(windows) and all(
        key.isdigit() and isinstance(inner, dict) and str(inner.get("input_tokens", "")).startswith("{")
        for key, inner in windows
    )


def read_client(source: Source, builder: TraceBuilder, seed: int, rates_given: bool) -> None:
    """Draw the client's requests from both files, given either of them.

    Arrivals of a 600 s window: a renewal process of the window's pattern and shape at its rate. Lengths: from
    the distribution of the 6 h window around it; prompt and output independent, as ServeGen draws them.

    Raises:
        NoRequestsError: the other file of the pair is not beside this one.
        InputError: a file of the pair is not what it should be.
    """
    path = source.path
    other = None if path is None else _sibling(path, rates_given)
    if path is None or other is None or not other.is_file():
        raise NoRequestsError(
            "is half of a ServeGen client; chunk-I-trace.csv or chunk-I-dataset.json is not beside it",
            format="servegen-client",
            facts={},
            source=source.name,
        )
    with open_source(other) as second:
        rates = _rates(source if rates_given else second)
        lengths = read_lengths(second if rates_given else source)
    builder.note(f"a client's distributions, read with {other.name} beside it: drawn with seed {seed}")
    builder.note("time: windows in s; arrivals by each window's rate, pattern and shape; prompt and output independent")
    random = np.random.default_rng(seed)
    # A few bytes can ask for millions; what is drawn unasked takes no more than a few times the files.
    told = max(MOST_DRAWN, (path.stat().st_size + other.stat().st_size) // _BYTES_A_REQUEST)
    most = min(MOST_ASKED_FOR, told if builder.limit is None else builder.limit)
    width = rates.width
    for begin, rate, pattern, shape in rates:
        if builder.full:
            return
        window = lengths.nearest(begin)
        surely = int(rate * width) if builder.limit is None and rate * width <= _MOST_IN_WINDOW else 0
        if window is not None and len(builder) + surely > most:  # told before millions are drawn for nothing
            _cut(builder, rates, begin, source)
            return
        arrival = begin + _window(rate, width, pattern, shape, random)
        if not len(arrival) or window is None:
            continue
        if builder.limit is not None:
            arrival = arrival[: builder.limit - len(builder)]
        if len(builder) + len(arrival) > most:
            _cut(builder, rates, begin, source)
            return
        prompt, output = (_drawn(pmf, len(arrival), random) for pmf in lengths.of(window))
        builder.extend(arrival, prompt, output)


def _cut(builder: TraceBuilder, rates: _Rates, begin: float, source: Source) -> None:
    """Tell that the windows from ``begin`` on are not drawn; InputError where no other has been."""
    wanted = sum(rate * rates.width for rate in rates.rate)
    more = f"--limit draws as many as it says, up to {MOST_ASKED_FOR:,}"
    if not len(builder):
        raise InputError(
            f"asks for more requests in its first window, at {begin:g} s, than are drawn unasked",
            value=f"about {wanted:,.0f} in all",
            source=source.name,
            line=1,
            hint=more,
        )
    builder.note(f"cut at {len(builder):,} of about {wanted:,.0f} requests, before {begin:g} s ({more})")


def _sibling(path: Path, rates_given: bool) -> Path | None:
    mine, other = ("-trace.csv", "-dataset.json") if rates_given else ("-dataset.json", "-trace.csv")
    return path.with_name(path.name.removesuffix(mine) + other) if path.name.endswith(mine) else None


@dataclass(frozen=True, eq=False)
class _Rates:
    """The windows of ``chunk-I-trace.csv``: float64[W] each, and one width; as tuples they take 27 times the file."""

    begin: array[float]
    rate: array[float]
    shape: array[float]
    pattern: list[str]
    width: float

    def __iter__(self) -> Iterator[tuple[float, float, str, float]]:
        """(begin, rate, pattern, shape) of each window."""
        return zip(self.begin, self.rate, self.pattern, self.shape, strict=True)


def _rates(source: Source) -> _Rates:
    begins, rates, shapes, patterns = array("d"), array("d"), array("d"), []
    for line, text in source.lines():
        if not text.strip():
            continue
        try:
            fields = text.count(",") + 1
            if fields != 6:
                raise InputError(f"has {fields} fields, not 6")
            cells = text.split(",")
            begin, rate = (float(number(cells[at], name)) for at, name in ((0, "timestamp"), (1, "rate")))
            shape = float(number(cells[4], "shape")) if cells[3] else 1.0
            later = not begins or begin > begins[-1]
            if not later or not 0 <= begin < 1e10 or not 0 <= rate < 1e5 or not 0 <= shape < 1e6:
                raise InputError("is no window's rate", value=text[:60])
        except InputError as error:
            raise InputError(error.message, field=error.field, source=source.name, line=line) from None
        begins.append(begin)
        rates.append(rate)
        shapes.append(shape)
        patterns.append(cells[3] if cells[3] in _PATTERNS else "")
    if not begins:
        raise InputError("holds no window", source=source.name, line=1)
    widths = np.diff(begins)
    return _Rates(begins, rates, shapes, patterns, float(np.median(widths)) if len(widths) else 600.0)


def _window(rate: float, width: float, pattern: str, shape: float, random: np.random.Generator) -> Doubles:
    """Arrival times within a window, from 0."""
    mean = rate * width
    if mean > _MOST_IN_WINDOW:
        raise InputError("is no plausible rate", field="rate", value=rate)
    count = int(mean) + (random.random() < mean % 1)
    if not count:
        return np.zeros(0)
    if pattern == "Gamma" and shape > 0:
        gaps = random.gamma(shape, 1.0, count + 1)
    elif pattern == "Weibull" and shape > 0:
        gaps = random.weibull(shape, count + 1)
    else:
        gaps = random.exponential(1.0, count + 1)
    # The window's own count is kept: the gaps say how it bunches, the last one reaches the window's end.
    total = gaps.sum()
    times: Doubles = np.cumsum(gaps)[:-1] / (total if total > 0 else 1.0) * width
    return times


def _drawn(pmf: Pmf, count: int, random: np.random.Generator) -> Wholes:
    values, cumulated = pmf
    drawn: Wholes = values[np.minimum(np.searchsorted(cumulated, random.random(count)), len(values) - 1)]
    return drawn
