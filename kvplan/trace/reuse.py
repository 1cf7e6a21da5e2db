"""What drawn requests share: common prefixes, and beginnings of earlier requests taken up again."""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from kvplan.errors import InputError
from kvplan.trace.content import ContentBuilder, Segment, clip
from kvplan.trace.distribution import Distribution, distribution
from kvplan.trace.settle import plain_numbers
from kvplan.trace.trace import Content, Doubles, Longs

_SEARCHED = 256
"""How far around the wanted moment a request that is long enough is looked for."""


@dataclass(frozen=True)
class Heads:
    """The common prefixes of requests.

    Args:
        which: of each request, the prefix that its prompt begins with; none where there is no such one.
        sizes: tokens of each prefix.
        first_source: the source of prefix 0; the others' follow.
    """

    which: array[int]
    sizes: list[int]
    first_source: int

    def of(self, row: int, prompt: int) -> list[Segment]:
        """What the ``prompt`` tokens of a request begin with."""
        which = self.which[row]
        if which >= len(self.sizes):
            return []
        return [(self.first_source + which, 0, min(self.sizes[which], prompt))]


def drawn_content(
    spec: Mapping[str, Any],
    arrival: Doubles,
    prompt: Longs,
    output: Longs,
    heads: Heads | None,
    random: np.random.Generator,
) -> Content | None:
    """Sources: ``2 r`` and ``2 r + 1`` are what request r's prompt and output add, further ones prefixes."""
    if "reuse" not in spec and heads is None:
        return None
    count = len(prompt)
    wanted, partner = _reuse(spec, arrival, prompt, random) if "reuse" in spec else (np.zeros(count, np.int64),) * 2
    lengths, totals = prompt.data, (prompt + output).data
    builder = ContentBuilder()
    for row, (shared, first) in enumerate(zip(plain_numbers(wanted), plain_numbers(partner), strict=True)):
        length = lengths[row]
        head = heads.of(row, length) if heads is not None else []
        if shared > sum(tokens for _, _, tokens in head):
            parent = _parent(totals, first, row, shared)
            answer = (2 * parent + 1, 0, totals[parent] - lengths[parent])
            head = list(clip([*builder.segments(parent), answer], shared))
        rest = length - sum(tokens for _, _, tokens in head)
        builder.add([*head, (2 * row, 0, rest)] if rest else head, output_source=2 * row + 1)
    return builder.build()


def _reuse(
    spec: Mapping[str, Any], arrival: Doubles, prompt: Longs, random: np.random.Generator
) -> tuple[Longs, Longs]:
    """(tokens to share, the row that arrived about the lag before) of each request."""
    reuse = spec["reuse"]
    if not isinstance(reuse, Mapping) or set(reuse) != {"probability", "fraction", "lag_s"}:
        raise InputError("must be {probability, fraction, lag_s}", field="synthetic.reuse", value=reuse)
    probability = [part.mean for part in _parts(reuse["probability"], "synthetic.reuse.probability")]
    fraction = _parts(reuse["fraction"], "synthetic.reuse.fraction")
    lag = distribution(reuse["lag_s"], "synthetic.reuse.lag_s")
    within = all(part.values[0] >= 0 and part.values[-1] <= 1 for part in fraction)
    if not within or not 0 <= min(probability) <= max(probability) <= 1 or lag.values[0] < 0:
        raise InputError("needs probability and fraction within 0..1 and lag_s >= 0", field="synthetic.reuse")
    chance, ties, ranks, lags = random.random((4, len(prompt)))
    order = np.lexsort((ties, prompt))
    by_length = np.empty(len(prompt), np.int64)
    by_length[order] = np.arange(len(prompt))
    likely = np.array(probability)[by_length * len(probability) // len(prompt)]
    part = by_length * len(fraction) // len(prompt)
    share = np.empty(len(prompt))
    for index, each in enumerate(fraction):
        own = part == index
        share[own] = each.at(ranks[own])
    shared = np.where(chance < likely, np.rint(share * prompt), 0).astype(np.int64)
    shared[0] = 0
    row = np.searchsorted(arrival, arrival - lag.at(lags))
    return shared, np.clip(row, 0, np.maximum(np.arange(len(prompt)) - 1, 0))


def _parts(spec: Any, field: str) -> list[Distribution]:
    """One distribution, or a list: the i-th for the i-th equal part of prompts, from short to long."""
    if not isinstance(spec, (list, tuple)):
        return [distribution(spec, field)]
    if not 1 <= len(spec) <= 30:
        raise InputError("must be a list of 1 to 30", field=field)
    return [distribution(part, f"{field}[{index}]") for index, part in enumerate(spec)]


def _parent(totals: memoryview, first: int, row: int, tokens: int) -> int:
    """The earlier request next to ``first`` that is long enough, or the longest of those looked at."""
    best = first
    for step in range(_SEARCHED):
        for candidate in (first - step, first + step):
            if 0 <= candidate < row:
                if totals[candidate] >= tokens:
                    return candidate
                if totals[candidate] > totals[best]:
                    best = candidate
    return best
