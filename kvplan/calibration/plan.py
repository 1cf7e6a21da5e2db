"""What to measure: points over every axis that a step's time depends on, more of them the larger the budget."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from kvplan.core.replica import Workload
from kvplan.core.settings import Settings
from kvplan.timing.attention_tables import spread
from kvplan.timing.profile import BlockForm

Kind = Literal[
    "decode", "prefill", "mixed", "skew", "linear", "head", "host", "traffic", "block_copy", "swap_out", "swap_in"
]
PREFILL_ROWS_PROMPT = 32
"""Prompt tokens, at most, of the requests whose whole steps tell the host's time."""
MOST_REQUESTS, MOST_OUTPUTS = 32, 24
"""Of the traffic that is served to compare whole steps with their parts."""
MOVED_BLOCKS = (1, 16, 64)


@dataclass(frozen=True)
class Point:
    """One thing to measure. ``at`` by ``kind``:

    ========== ================================================================================
    decode     rows, context (tokens attended)
    prefill    tokens, prior
    mixed      prefill tokens, prior, decode rows, context
    skew       decode rows, long rows, short context, long context
    linear     tokens, as several prefills where one would be longer than a context may be
    head       rows that sample
    host       decode rows, prompt tokens: whole steps, as the engine runs them
    traffic    requests of all lengths, which draw of them: steps of changing shapes, to the end
    the others blocks moved at once
    ========== ================================================================================
    """

    kind: Kind
    at: tuple[int, ...]
    form: BlockForm | None = None
    """Of the KV cache; None: the engine's own. Only of decode and prefill."""

    @property
    def key(self) -> str:
        """Its name in the file of a broken run."""
        key = " ".join((self.kind, *map(str, self.at)))
        return key if self.form is None else f"{key} @ {self.form.block_size} {self.form.kv_cache_dtype}"


@dataclass(frozen=True)
class Density:
    """Points an axis; draws of traffic."""

    rows: int
    contexts: int
    chunks: int
    priors: int
    mixed: int
    skew: int
    traffics: int
    forms: int
    """Points an axis in each further form of the KV cache."""
    block_sizes: tuple[int, ...]
    """Measured unasked."""


DENSITIES = (
    (20.0, Density(4, 4, 4, 3, 2, 1, 1, 2, ())),
    (120.0, Density(5, 6, 6, 4, 2, 2, 4, 2, (8, 32, 128))),
    (1e9, Density(8, 8, 9, 5, 3, 3, 8, 3, (8, 16, 32, 64, 128))),
)
"""The least budget, in seconds, that the next density wants: below 20 s the first, below 120 s the second."""


def density(budget_s: float) -> Density:
    """What a budget affords."""
    return next(found for limit, found in DENSITIES if budget_s < limit)


def points(settings: Settings, longest: int, budget_s: float, swaps: bool) -> list[Point]:
    """All points of a calibration; those that the deployment could never run are left out by who measures.

    Args:
        longest: tokens of the longest context.
        swaps: there is a host pool.
    """
    d = density(budget_s)
    rows = _spread(1, settings.max_num_seqs, d.rows)
    chunks = _spread(1, min(settings.max_num_batched_tokens, longest), d.chunks)
    contexts = _spread(8, longest, d.contexts)
    priors = [0, *_spread(max(8, longest // 16), max(8, 3 * longest // 4), d.priors - 1)]
    found = [Point("decode", (r, c)) for r in rows for c in contexts]
    found += [Point("prefill", (t, p)) for t in chunks for p in priors if t + p <= longest]
    found += list(_mixed(settings, longest, d))
    found += list(_skewed(settings, longest, d))
    if settings.max_num_batched_tokens > longest:  # a step's tokens are then several requests'
        found += [Point("linear", (t,)) for t in _spread(longest, settings.max_num_batched_tokens, 3)[1:]]
    found += [Point("head", (r,)) for r in rows]
    found += [Point("host", (r, _prompt(settings, r))) for r in rows]
    found += [Point("traffic", (min(2 * settings.max_num_seqs, MOST_REQUESTS), i)) for i in range(d.traffics)]
    found += [Point("block_copy", (n,)) for n in MOVED_BLOCKS if settings.paged]
    if swaps:
        found += [Point(kind, (n,)) for kind in ("swap_out", "swap_in") for n in MOVED_BLOCKS]
    return list(dict.fromkeys(found))


def form_points(own: Sequence[Point], forms: Sequence[BlockForm], budget_s: float) -> list[Point]:
    """A part of the points of decode and prefill again, in every form: the ends of each axis and what lies between."""
    count = density(budget_s).forms
    chosen: list[Point] = []
    for kind in ("decode", "prefill"):
        measured = [point for point in own if point.kind == kind and point.form is None]
        axes = [set(spread(np.unique([point.at[axis] for point in measured]), count).tolist()) for axis in range(2)]
        chosen += [point for point in measured if point.at[0] in axes[0] and point.at[1] in axes[1]]
    return [replace(point, form=form) for form in forms for point in chosen]


def traffic(requests: int, draw_number: int, longest: int) -> Workload:
    """Requests that all arrive at once, so that which steps they take does not depend on how long these take."""
    draw = np.random.default_rng(draw_number)
    outputs = draw.integers(2, max(3, min(MOST_OUTPUTS, longest // 2)), requests)
    prompts = np.rint(np.exp(draw.uniform(0.0, np.log(max(2, longest // 2)), requests))).astype(np.int64)
    return Workload(np.zeros(requests), prompts, outputs.astype(np.int64))


def _mixed(settings: Settings, longest: int, d: Density) -> Iterator[Point]:
    most = max(2, settings.max_num_seqs - 1)
    most_tokens = max(2, min(settings.max_num_batched_tokens - most, longest // 2))
    for tokens in _spread(min(16, most_tokens), most_tokens, d.mixed):
        for prior in (0, longest // 4):
            for rows in _spread(min(2, most), most, d.mixed):
                for context in _spread(min(16, longest), longest, d.mixed):
                    yield Point("mixed", (tokens, prior, rows, context))


def _skewed(settings: Settings, longest: int, d: Density) -> Iterator[Point]:
    """One long sequence among short ones."""
    for rows in _spread(min(4, settings.max_num_seqs), settings.max_num_seqs, d.skew + 1):
        for long in _spread(max(16, longest // 4), longest, d.skew + 1):
            if rows > 1:
                yield Point("skew", (rows, 1, max(1, long // 8), long))


def _prompt(settings: Settings, rows: int) -> int:
    """Such that all rows are computed in one step."""
    return max(1, min(PREFILL_ROWS_PROMPT, settings.max_num_batched_tokens // rows, settings.max_model_len // 2))


def _spread(low: int, high: int, count: int) -> list[int]:
    """About so many whole numbers from low to high, each the same factor above the one before."""
    return sorted({int(x) for x in np.rint(np.geomspace(low, max(low, high), max(count, 1)))})
