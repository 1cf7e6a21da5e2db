"""How long one step takes: the compiled form that every step-time model is brought into.

::

    step_seconds = step_s                                  host and launch, once a step
                 + linear(tokens)                          projections, MLP, experts, norms, all-reduce
                 + head(samples)                           lm_head and sampler
                 + attention(prefill rows, decode rows)    measured tables, or the roofline of each cache group
                 + copied bytes · copy_s_per_byte + swapped bytes · swap_s_per_byte

The builders stand in `kvplan.timing`. All of them fill the same arrays, so the replay loop is compiled once and
a model costs 30 to 300 ns a step, whatever its kind.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

STEP_LOAD = np.dtype(
    [
        (name, np.int64)
        for name in (
            "rows",
            "tokens",
            "samples",
            "decode_rows",
            "decode_context",
            "decode_context_squares",
            "decode_context_max",
            "prefill_rows",
            "prefill_tokens",
            "prefill_prior",
            "prefill_context",
            "prefill_pairs",
            "copied_blocks",
            "swapped_out_blocks",
            "swapped_in_blocks",
            "block_bytes",
        )
    ]
)
"""What a step computes. The scheduler fills one record (an array of shape (1,)) before each step.

A *decode row* computes exactly one new token on top of at least one computed; every other row is a *prefill row*.
With ``c`` = tokens already computed and ``q`` = tokens to compute of a row:

===========================  =====================================================================
``rows``                     sequences computed (decode_rows + prefill_rows)
``tokens``                   tokens computed (decode_rows + prefill_tokens)
``samples``                  rows that sample a token
``decode_rows``              n
``decode_context``           Σ over decode rows of ``c + 1``
``decode_context_squares``   Σ over decode rows of ``(c + 1)²``
``decode_context_max``       max over decode rows of ``c + 1``; 0 without decode rows
``prefill_rows``             rows that are not decode rows
``prefill_tokens``           Σ over prefill rows of ``q``
``prefill_prior``            Σ over prefill rows of ``c``
``prefill_context``          Σ over prefill rows of ``c + q``
``prefill_pairs``            Σ over prefill rows of ``q·c + q(q + 1)/2``, the causal query-key pairs
``copied_blocks``            blocks copied on the device before the step (copy-on-write, growth)
``swapped_out_blocks``       blocks moved to the host before the step, and
``swapped_in_blocks``        back from it
``block_bytes``              bytes of one block on one GPU, all layers and groups
===========================  =====================================================================

Contexts are those of full attention, whatever the window of a layer: `step_seconds` caps them itself. In a stretch
of pure decode a step adds n to ``decode_context``, 1 to ``decode_context_max`` and, before that, ``2 ·
decode_context + n`` to ``decode_context_squares`` (`advance_decode` does it); nothing else changes.
"""


class TimingTables(NamedTuple):
    """A step-time model, compiled. Every array is C-contiguous float64; an empty one means "not measured".

    Times are seconds of one whole step (all layers of the slowest path through the ranks), not of one layer.
    """

    fixed: NDArray[np.float64]
    """[4]: seconds a step, seconds a row, seconds a copied byte, seconds a swapped byte."""
    linear_at: NDArray[np.float64]
    """[L] token counts, ascending."""
    linear_s: NDArray[np.float64]
    """[L] seconds at them."""
    head_at: NDArray[np.float64]
    """[H] sampling rows, ascending."""
    head_s: NDArray[np.float64]
    groups: NDArray[np.float64]
    """[G, 5], the roofline of attention of each cache group: window in tokens (0: all), seconds to read one token
    of context, seconds of arithmetic a query-key pair of prefill, of decode, and seconds a step that has attention."""
    prefill_at: NDArray[np.float64]
    """[P] tokens of the one prefill row; with prior_at the axes of prefill_s."""
    prior_at: NDArray[np.float64]
    """[K] tokens computed before it."""
    prefill_s: NDArray[np.float64]
    """[P, K]: attention of a step with prefill alone; empty: the roofline prices attention."""
    rows_at: NDArray[np.float64]
    """[N] decode rows."""
    context_at: NDArray[np.float64]
    """[C] tokens each of them attends."""
    decode_s: NDArray[np.float64]
    """[N, C]: attention of a step of decode alone, all contexts equal."""
    mixed_prefill_at: NDArray[np.float64]
    mixed_prior_at: NDArray[np.float64]
    mixed_rows_at: NDArray[np.float64]
    mixed_context_at: NDArray[np.float64]
    mixed_s: NDArray[np.float64]
    """[p, k, n, c]: attention of a step of both; empty: the sum of the two."""
    skew_rows_at: NDArray[np.float64]
    skew_share_at: NDArray[np.float64]
    skew_alpha: NDArray[np.float64]
    """[2, n, r]: what unequal contexts cost, for decode alone and for mixed steps. By decode rows and by the share of
    them that is long: the part of the way from the time at the mean context to the time at the longest."""
    outside: NDArray[np.float64]
    """[6, 2]: written by `step_seconds`: how many queries lay above the measured range, and the largest of them, of
    tokens, samples, prefill tokens, prior, decode rows, context."""


@njit(cache=True)
def advance_decode(load):
    """Move a load of pure decode one step on: every row attends one token more."""
    load[0].decode_context_squares += 2 * load[0].decode_context + load[0].decode_rows
    load[0].decode_context += load[0].decode_rows
    load[0].decode_context_max += 1


@njit(cache=True)
def _below(at, x):
    """Index i of the interval [at[i], at[i + 1]] that holds x; the first or the last one outside the range."""
    low = 0
    high = at.size - 1
    while high - low > 1:
        middle = (low + high) >> 1
        if at[middle] <= x:
            low = middle
        else:
            high = middle
    return low


@njit(cache=True)
def _part(at, i, x):
    """Where x stands in its interval, 0 at its lower end. Below the first point 0 (held), above the last > 1 (extended)."""
    if at.size == 1 or x <= at[0]:
        return 0.0
    return (x - at[i]) / (at[i + 1] - at[i])


@njit(cache=True)
def _note(outside, which, at, x):
    if at.size > 0 and x > at[at.size - 1]:
        outside[which, 0] += 1.0
        outside[which, 1] = max(outside[which, 1], x)


@njit(cache=True)
def _interpolate(at, values, x):
    """Piecewise linear in one variable: monotone between its points, exact at them, never under 0."""
    if at.size == 0:
        return 0.0
    if at.size == 1:
        return values[0]
    i = _below(at, x)
    return max(values[i] + _part(at, i, x) * (values[i + 1] - values[i]), 0.0)


@njit(cache=True)
def _interpolate2(at0, at1, values, x0, x1):
    """Bilinear, as `_interpolate`."""
    i = _below(at0, x0)
    j = _below(at1, x1)
    u = _part(at0, i, x0)
    v = _part(at1, j, x1)
    i1 = min(i + 1, at0.size - 1)
    j1 = min(j + 1, at1.size - 1)
    low = values[i, j] + v * (values[i, j1] - values[i, j])
    high = values[i1, j] + v * (values[i1, j1] - values[i1, j])
    return max(low + u * (high - low), 0.0)


@njit(cache=True)
def _interpolate4(timing, chunk, prior, rows, context):
    """Quadrilinear over the table of mixed steps."""
    i = _below(timing.mixed_prefill_at, chunk)
    j = _below(timing.mixed_prior_at, prior)
    u = _part(timing.mixed_prefill_at, i, chunk)
    v = _part(timing.mixed_prior_at, j, prior)
    i1 = min(i + 1, timing.mixed_prefill_at.size - 1)
    j1 = min(j + 1, timing.mixed_prior_at.size - 1)
    table = timing.mixed_s
    rows_at = timing.mixed_rows_at
    context_at = timing.mixed_context_at
    a = _interpolate2(rows_at, context_at, table[i, j], rows, context)
    b = _interpolate2(rows_at, context_at, table[i, j1], rows, context)
    c = _interpolate2(rows_at, context_at, table[i1, j], rows, context)
    d = _interpolate2(rows_at, context_at, table[i1, j1], rows, context)
    low = a + v * (b - a)
    high = c + v * (d - c)
    return max(low + u * (high - low), 0.0)


@njit(cache=True)
def _long_share(rows, total, squares, longest):
    """The share of rows at ``longest`` in the two-point batch with the same mean, variance and maximum."""
    mean = total / rows
    gap = longest - mean
    if gap <= 0.0:
        return 1.0
    variance = max(squares / rows - mean * mean, 0.0)
    return variance / (variance + gap * gap)


@njit(cache=True)
def _one_prefill(rows, tokens, prior, pairs):
    """(tokens, prior) of the one prefill row that stands for all of a step's.

    One row stands for itself. Several have fewer query-key pairs than one row of all their tokens: they are
    priced as the row without a prior that has as many pairs, or, with long priors, at their mean prior.
    """
    if rows <= 1:
        return float(tokens), float(prior)
    rest = pairs / tokens - 0.5 * (tokens + 1.0)
    if rest >= 0.0:
        return float(tokens), rest
    return np.sqrt(2.0 * pairs + 0.25) - 0.5, 0.0


@njit(cache=True)
def _measured_attention(timing, step):
    chunk, prior = 0.0, 0.0
    if step.prefill_rows > 0:
        chunk, prior = _one_prefill(
            step.prefill_rows, step.prefill_tokens, step.prefill_prior, step.prefill_pairs
        )
        _note(timing.outside, 2, timing.prefill_at, chunk)
        _note(timing.outside, 3, timing.prior_at, prior)
        if step.decode_rows == 0:
            return _interpolate2(timing.prefill_at, timing.prior_at, timing.prefill_s, chunk, prior)
    if step.decode_rows == 0:
        return 0.0
    rows = float(step.decode_rows)
    mean = step.decode_context / rows
    longest = float(step.decode_context_max)
    _note(timing.outside, 4, timing.rows_at, rows)
    _note(timing.outside, 5, timing.context_at, longest)
    mixed = step.prefill_rows > 0
    joint = mixed and timing.mixed_s.size > 0
    if joint:
        at_mean = _interpolate4(timing, chunk, prior, rows, mean)
    else:
        at_mean = _interpolate2(timing.rows_at, timing.context_at, timing.decode_s, rows, mean)
    seconds = at_mean
    if longest > mean and timing.skew_alpha.size > 0:
        share = _long_share(rows, step.decode_context, step.decode_context_squares, longest)
        which = 1 if joint else 0
        alpha = _interpolate2(
            timing.skew_rows_at, timing.skew_share_at, timing.skew_alpha[which], rows, share
        )
        if joint:
            at_longest = _interpolate4(timing, chunk, prior, rows, longest)
        else:
            at_longest = _interpolate2(timing.rows_at, timing.context_at, timing.decode_s, rows, longest)
        seconds += alpha * max(at_longest - at_mean, 0.0)
    if mixed and not joint:
        seconds += _interpolate2(timing.prefill_at, timing.prior_at, timing.prefill_s, chunk, prior)
    return seconds


@njit(cache=True)
def _roofline_attention(timing, step):
    """Σ over cache groups of max(bytes, arithmetic), for prefill and decode rows apart."""
    seconds = 0.0
    rows = float(step.decode_rows)
    for g in range(timing.groups.shape[0]):
        window = timing.groups[g, 0]
        read_s = timing.groups[g, 1]
        seconds += timing.groups[g, 4]
        if step.decode_rows > 0:
            context = float(step.decode_context)
            if window > 0.0 and step.decode_context_max > window:
                # The two-point batch again: exact when all rows stand on one side of the window.
                longest = float(step.decode_context_max)
                share = _long_share(rows, step.decode_context, step.decode_context_squares, longest)
                others = (
                    (context - share * rows * longest) / (rows * (1.0 - share)) if share < 1.0 else longest
                )
                context = rows * (share * window + (1.0 - share) * min(others, window))
            seconds += context * max(read_s, timing.groups[g, 3])
        if step.prefill_rows > 0:
            pairs = float(step.prefill_pairs)
            context = float(step.prefill_context)
            if window > 0.0:
                queries = float(step.prefill_tokens)
                context = min(context, step.prefill_rows * (window - 1.0) + queries)
                pairs = (
                    _windowed_pairs(
                        queries / step.prefill_rows,
                        step.prefill_prior / step.prefill_rows,
                        window,
                        pairs / step.prefill_rows,
                    )
                    * step.prefill_rows
                )
            seconds += max(context * read_s, pairs * timing.groups[g, 2])
    return seconds


@njit(cache=True)
def _windowed_pairs(queries, prior, window, pairs):
    """Query-key pairs of a row of ``queries`` tokens after ``prior`` when each sees its last ``window`` tokens."""
    if prior + queries <= window:
        return pairs
    growing = max(window - prior, 0.0)
    return min(pairs, growing * prior + 0.5 * growing * (growing + 1.0) + (queries - growing) * window)


@njit(cache=True)
def step_seconds(timing, load):
    """Seconds that the step described by ``load`` takes.

    Args:
        timing: TimingTables; only its ``outside`` is written.
        load: record array of dtype STEP_LOAD and shape (1,).
    """
    step = load[0]
    _note(timing.outside, 0, timing.linear_at, float(step.tokens))
    _note(timing.outside, 1, timing.head_at, float(step.samples))
    seconds = timing.fixed[0] + timing.fixed[1] * step.rows
    seconds += _interpolate(timing.linear_at, timing.linear_s, float(step.tokens))
    if step.samples > 0:
        seconds += _interpolate(timing.head_at, timing.head_s, float(step.samples))
    if timing.decode_s.size > 0:
        seconds += _measured_attention(timing, step)
    else:
        seconds += _roofline_attention(timing, step)
    seconds += timing.fixed[2] * step.copied_blocks * step.block_bytes
    seconds += timing.fixed[3] * (step.swapped_out_blocks + step.swapped_in_blocks) * step.block_bytes
    return seconds
