"""How long one step takes: the compiled form that every step-time model is brought into.

::

    step_seconds = host                                    a step and a row; or, where scheduling is
    asynchronous,
                                                           only what it takes longer than the device
                 + linear(tokens)                          projections, MLP, experts, norms, all-reduce
                 + head(samples)                           lm_head and sampler
                 + attention(prefill rows, decode rows)    measured tables, or a roofline a cache group
                 + copied bytes · copy_s_per_byte + swapped bytes · swap_s_per_byte

The builders stand in `kvplan.timing`. All of them fill the same arrays, so the replay loop is compiled once,
whatever the kind of model.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from kvplan.core.jit import compiled, inner

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

A *decode row* computes exactly one new token on top of at least one computed; any other is a *prefill row*.
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

Contexts are those of full attention, whatever the window of a layer: `step_seconds` caps them itself. In a
stretch of pure decode every row attends one token more with each step, and nothing else changes:
`advance_decode` moves a load on.
"""

LINEAR, HEAD, PREFILL, DECODE, MIXED, DECODE_TAIL, MIXED_TAIL = (np.int64(i) for i in range(7))
"""The grids of a step-time model: tables of seconds over 1, 2 or 4 axes.

===========  ==========================================================================================
LINEAR       by tokens in the step
HEAD         by rows that sample
PREFILL      attention of prefill alone, one row: by its tokens, by the tokens computed before it
DECODE       attention of decode alone, equal contexts: by rows, by the tokens each attends
MIXED        attention of a step of both: PREFILL's axes, then DECODE's; absent: the sum of the two
DECODE_TAIL  what unequal contexts cost: seconds a token that the longest rows go on alone, when the others
are
             done and too few are left to fill the device; by decode rows, by the longest context
MIXED_TAIL   the same in a mixed step; PREFILL's axes, then decode rows and the longest context
===========  ==========================================================================================
"""
GRIDS = 7
FIRST, SECOND = (np.int64(i) for i in range(2))
"""Axes of a grid. np.int64, so that Numba compiles a function once, not once for each value."""
HOST_STEP_S, HOST_ROW_S, ROW_S, COPY_S_PER_BYTE, SWAP_S_PER_BYTE, OVERLAPPED = (np.int64(i) for i in range(6))
FIXED = 6
WINDOW, READ_S, PREFILL_PAIR_S, DECODE_PAIR_S, ATTENTION_STEP_S = (np.int64(i) for i in range(5))
GROUP = 5
TOKENS_OUT, SAMPLES_OUT, CHUNK_OUT, PRIOR_OUT, ROWS_OUT, CONTEXT_OUT = (np.int64(i) for i in range(6))
OUTSIDE = 6


class TimingTables(NamedTuple):
    """A step-time model, compiled (by `kvplan.timing.StepTimes.compiled`). Times are those of one whole step.

    Five flat arrays instead of one a table: Numba counts a reference of every array at every call, which cost
    200 ns a call with twenty of them.
    """

    fixed: NDArray[np.float64]
    """[6]: seconds of the host a step and a row; of the device a row, a copied byte, a swapped byte; and whether
    the host works beside the device (asynchronous scheduling)."""
    groups: NDArray[np.float64]
    """[G, 5], the roofline of attention of each cache group, used where DECODE is absent: window in tokens
    (0: all), seconds to read one token of context, a query-key pair of prefill, of decode, and a step."""
    grids: NDArray[np.float64]
    """The axes and values of all grids, end to end."""
    layout: NDArray[np.int64]
    """[7, 9]: of each grid where its values start, the lengths of 4 axes (0: absent), where each starts."""
    outside: NDArray[np.float64]
    """[6, 2], written by `step_seconds`: how many queries lay above the measured range, and the largest, of
    tokens, samples, prefill tokens, prior, decode rows, context."""


@compiled
def advance_decode(load):
    """Move a load of pure decode one step on: every row attends one token more."""
    load[0].decode_context_squares += 2 * load[0].decode_context + load[0].decode_rows
    load[0].decode_context += load[0].decode_rows
    load[0].decode_context_max += 1


@inner
def _interval(grids, start, size, x):
    """(i, part): x stands ``part`` of the way from point i of an axis to the next.

    Below the first point its value is held (part 0); above the last one the last interval goes on (part > 1).
    """
    if size == 1 or x <= grids[start]:
        return np.int64(0), 0.0
    low = np.int64(0)
    high = size - 1
    while high - low > 1:
        middle = (low + high) >> 1
        if grids[start + middle] <= x:
            low = middle
        else:
            high = middle
    at = grids[start + low]
    return np.int64(low), (x - at) / (grids[start + high] - at)


@inner
def grid1(grids, layout, g, x):
    """Piecewise linear in one variable: monotone between its points, exact at them, never below 0."""
    size = layout[g, 1]
    if size == 0:
        return 0.0
    i, u = _interval(grids, layout[g, 5], size, x)
    at = layout[g, 0] + i
    low = grids[at]
    if u == 0.0:
        return low
    return max(low + u * (grids[at + 1] - low), 0.0)


@inner
def _corners(grids, at, stride, u, v):
    """Bilinear in the cell whose lowest corner stands at ``at``; no corner of weight 0 is touched."""
    low = grids[at]
    if v != 0.0:
        low += v * (grids[at + 1] - low)
    if u == 0.0:
        return low
    high = grids[at + stride]
    if v != 0.0:
        high += v * (grids[at + stride + 1] - high)
    return low + u * (high - low)


@inner
def grid2(grids, layout, g, x, y):
    """Bilinear, as `grid1`."""
    i, u = _interval(grids, layout[g, 5], layout[g, 1], x)
    j, v = _interval(grids, layout[g, 6], layout[g, 2], y)
    stride = layout[g, 2]
    return max(_corners(grids, layout[g, 0] + i * stride + j, stride, u, v), 0.0)


@inner
def grid4(grids, layout, g, chunk, prior, rows, context):
    """Quadrilinear, as `grid1`."""
    i, u = _interval(grids, layout[g, 5], layout[g, 1], chunk)
    j, v = _interval(grids, layout[g, 6], layout[g, 2], prior)
    k, w = _interval(grids, layout[g, 7], layout[g, 3], rows)
    m, z = _interval(grids, layout[g, 8], layout[g, 4], context)
    stride = layout[g, 4]
    over_prior = layout[g, 3] * stride
    over_chunk = layout[g, 2] * over_prior
    at = layout[g, 0] + i * over_chunk + j * over_prior + k * stride + m
    low = _corners(grids, at, stride, w, z)
    if v != 0.0:
        low += v * (_corners(grids, at + over_prior, stride, w, z) - low)
    if u != 0.0:
        at += over_chunk
        high = _corners(grids, at, stride, w, z)
        if v != 0.0:
            high += v * (_corners(grids, at + over_prior, stride, w, z) - high)
        low += u * (high - low)
    return max(low, 0.0)


@inner
def _note(timing, which, g, axis, x):
    """Remember a query above the last measured point of a grid's axis."""
    size = timing.layout[g, 1 + axis]
    if size > 0 and x > timing.grids[timing.layout[g, 5 + axis] + size - 1]:
        timing.outside[which, 0] += 1.0
        timing.outside[which, 1] = max(timing.outside[which, 1], x)


@inner
def long_share(rows, total, squares, longest):
    """The share of rows at ``longest`` in the two-point batch of the same mean, variance and maximum."""
    mean = total / rows
    gap = longest - mean
    if gap <= 0.0:
        return 1.0
    variance = max(squares / rows - mean * mean, 0.0)
    return variance / (variance + gap * gap)


@inner
def _one_prefill(step):
    """(tokens, prior) of the one prefill row that stands for all of a step's.

    One row stands for itself. Several are priced as one row with as many query-key pairs: of all their tokens
    and the prior that makes up the pairs or, where all their tokens in one row would already have more
    pairs, of fewer tokens and no prior.
    """
    if step.prefill_rows == 1:
        return float(step.prefill_tokens), float(step.prefill_prior)
    prior = step.prefill_pairs / step.prefill_tokens - 0.5 * (step.prefill_tokens + 1.0)
    if prior >= 0.0:
        return float(step.prefill_tokens), prior
    return np.sqrt(2.0 * step.prefill_pairs + 0.25) - 0.5, 0.0


@inner
def _measured_attention(timing, step):
    grids, layout = timing.grids, timing.layout
    chunk, prior = 0.0, 0.0
    if step.prefill_rows > 0:
        chunk, prior = _one_prefill(step)
        _note(timing, CHUNK_OUT, PREFILL, FIRST, chunk)
        _note(timing, PRIOR_OUT, PREFILL, SECOND, prior)
        if step.decode_rows == 0:
            return grid2(grids, layout, PREFILL, chunk, prior)
    if step.decode_rows == 0:
        return 0.0
    rows = float(step.decode_rows)
    mean = step.decode_context / rows
    longest = float(step.decode_context_max)
    _note(timing, ROWS_OUT, DECODE, FIRST, rows)
    _note(timing, CONTEXT_OUT, DECODE, SECOND, longest)
    joint = step.prefill_rows > 0 and layout[MIXED, 1] > 0
    seconds = _decode_part(grids, layout, joint, chunk, prior, rows, mean)
    if longest > mean and layout[DECODE_TAIL, 1] > 0:
        seconds += _tail(grids, layout, step, joint, chunk, prior, seconds)
    if step.prefill_rows > 0 and not joint:
        seconds += grid2(grids, layout, PREFILL, chunk, prior)
    return seconds


@inner
def _decode_part(grids, layout, joint, chunk, prior, rows, context):
    """Attention of equal decode rows, with the prefill beside them when both were measured together."""
    if joint:
        return grid4(grids, layout, MIXED, chunk, prior, rows, context)
    return grid2(grids, layout, DECODE, rows, context)


@inner
def _tail(grids, layout, step, joint, chunk, prior, at_mean):
    """Seconds that the longest rows add to ``at_mean``, the time had all decode rows the mean context.

    A kernel walks each sequence with a few thread blocks, at ``alone`` seconds a token. While many sequences
    are left they share the device's bandwidth, ``shared`` seconds a token each, and only the sum of the
    contexts counts; when j are left a token takes max(alone, j · shared). The contexts are taken as one at
    the longest and the others evenly spread, with the batch's mean and variance.
    """
    rows = float(step.decode_rows)
    longest = float(step.decode_context_max)
    mean = step.decode_context / rows
    if joint and layout[MIXED_TAIL, 1] > 0:
        alone = grid4(grids, layout, MIXED_TAIL, chunk, prior, rows, longest)
    else:
        alone = grid2(grids, layout, DECODE_TAIL, rows, longest)
    at_longest = _decode_part(grids, layout, joint, chunk, prior, rows, longest)
    shared = (at_longest - at_mean) / (rows * (longest - mean))
    if alone <= shared or shared <= 0.0:
        return 0.0
    others = rows - 1.0
    middle = (step.decode_context - longest) / others
    squares = float(step.decode_context_squares) - longest * longest
    half = np.sqrt(max(3.0 * (squares / others - middle * middle), 0.0))
    second = min(middle + half, longest)
    spacing = 2.0 * half / others
    spread = spacing * max(alone - 2.0 * shared, 0.0) ** 2 / (2.0 * shared)
    return (alone - shared) * (longest - second) + spread


@inner
def _windowed_context(step, window):
    """Σ over decode rows of min(context, window), exact where all rows stand on one side of the window.

    Else by the two-point batch of `long_share`, which needs no loop over the rows.
    """
    longest = float(step.decode_context_max)
    total = float(step.decode_context)
    if longest <= window:
        return total
    rows = float(step.decode_rows)
    share = long_share(rows, total, step.decode_context_squares, longest)
    if share >= 1.0:
        return rows * window
    others = (total - share * rows * longest) / (rows * (1.0 - share))
    return rows * (share * window + (1.0 - share) * min(others, window))


@inner
def _windowed_pairs(step, window):
    """Query-key pairs of the prefill rows, each of the mean shape, when a query sees ``window`` tokens."""
    queries = step.prefill_tokens / step.prefill_rows
    prior = step.prefill_prior / step.prefill_rows
    if prior + queries <= window:
        return float(step.prefill_pairs)
    growing = max(window - prior, 0.0)
    pairs = growing * prior + 0.5 * growing * (growing + 1.0) + (queries - growing) * window
    return min(pairs * step.prefill_rows, float(step.prefill_pairs))


@inner
def _roofline_attention(timing, step):
    """Σ over cache groups of max(bytes, arithmetic), prefill and decode rows apart."""
    seconds = 0.0
    for g in range(timing.groups.shape[0]):
        window = timing.groups[g, WINDOW]
        read_s = timing.groups[g, READ_S]
        seconds += timing.groups[g, ATTENTION_STEP_S]
        if step.decode_rows > 0:
            context = _windowed_context(step, window) if window > 0.0 else float(step.decode_context)
            seconds += context * max(read_s, timing.groups[g, DECODE_PAIR_S])
        if step.prefill_rows > 0:
            context = float(step.prefill_context)
            pairs = float(step.prefill_pairs)
            if window > 0.0:
                context = min(context, step.prefill_rows * (window - 1.0) + step.prefill_tokens)
                pairs = _windowed_pairs(step, window)
            seconds += max(context * read_s, pairs * timing.groups[g, PREFILL_PAIR_S])
    return seconds


@inner
def token_seconds(timing, load):
    """The part that depends on how many tokens, rows and samples a step has, and on nothing else."""
    step = load[0]
    tokens = float(step.tokens)
    samples = float(step.samples)
    _note(timing, TOKENS_OUT, LINEAR, FIRST, tokens)
    _note(timing, SAMPLES_OUT, HEAD, FIRST, samples)
    seconds = grid1(timing.grids, timing.layout, LINEAR, tokens) + timing.fixed[ROW_S] * step.rows
    if step.samples > 0:
        seconds += grid1(timing.grids, timing.layout, HEAD, samples)
    return seconds


@inner
def whole_seconds(timing, load, seconds):
    """`token_seconds` with attention, block moves and the host on top."""
    step = load[0]
    fixed = timing.fixed
    if timing.layout[DECODE, 1] > 0:
        seconds += _measured_attention(timing, step)
    else:
        seconds += _roofline_attention(timing, step)
    moved = step.copied_blocks * fixed[COPY_S_PER_BYTE]
    moved += (step.swapped_out_blocks + step.swapped_in_blocks) * fixed[SWAP_S_PER_BYTE]
    seconds += moved * step.block_bytes
    host = fixed[HOST_STEP_S] + fixed[HOST_ROW_S] * step.rows
    return max(seconds, host) if fixed[OVERLAPPED] > 0.0 else seconds + host


@compiled
def step_seconds(timing, load):
    """Seconds that the step described by ``load`` takes.

    Args:
        timing: TimingTables; only its ``outside`` is written.
        load: record array of dtype STEP_LOAD and shape (1,).
    """
    return whole_seconds(timing, load, token_seconds(timing, load))


@compiled
def grid_values(timing, g, points, out):
    """Reads grid ``g`` of one, two or four axes at each row of ``points`` into ``out``: what `step_seconds` sees."""
    grids, layout = timing.grids, timing.layout
    for i in range(points.shape[0]):
        if layout[g, 4] > 0:
            out[i] = grid4(grids, layout, g, points[i, 0], points[i, 1], points[i, 2], points[i, 3])
        elif layout[g, 2] > 0:
            out[i] = grid2(grids, layout, g, points[i, 0], points[i, 1])
        else:
            out[i] = grid1(grids, layout, g, points[i, 0])
