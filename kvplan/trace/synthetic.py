"""Traces drawn from a description: ``workload: {synthetic: {...}}``.

The same description and seed give the same trace. Each aspect has a random stream of its own, so that another
rate does not change the lengths.
"""

from __future__ import annotations

import dataclasses
from array import array
from collections.abc import Mapping
from typing import Any

import numpy as np

from kvplan.errors import InputError
from kvplan.trace.arrivals import arrivals
from kvplan.trace.builder import MOST_ASKED_FOR
from kvplan.trace.content import ContentBuilder
from kvplan.trace.distribution import Distribution, distribution
from kvplan.trace.reuse import Heads, drawn_content
from kvplan.trace.rows import MAX_TOKENS, small
from kvplan.trace.settle import plain_numbers
from kvplan.trace.trace import ROWS, Doubles, Longs, Origin, Trace

KEYS = (
    "requests",
    "seed",
    "arrivals",
    "prompt",
    "output",
    "joint",
    "max_total",
    "prefixes",
    "reuse",
    "sessions",
    "n",
)
_STREAMS = ("arrivals", "lengths", "prefixes", "reuse", "sessions", "n")


def synthesize(spec: Mapping[str, Any], seed: int | None = None, *, most: int | None = None) -> Trace:
    """The trace that ``spec`` describes.

    Args:
        spec: ``requests`` (how many); ``arrivals`` (a rate, or ``{rate, cv, profile, tick_s}``: see
            ``arrivals.Arrivals``); ``prompt`` and ``output``, in tokens (see
            ``distribution.distribution``); and as wanted

            - ``joint``: a square matrix of weights; entry (i, j) is how often a prompt of the i-th equal
              part of prompts goes with an output of the j-th equal part of outputs. Without it they are
              independent.
            - ``max_total``: no prompt and its output together are longer; outputs are dealt anew until that
              holds.
            - ``prefixes``: ``[{tokens, share}]``: a share of requests begins with that many common tokens.
            - ``reuse``: ``{probability, fraction, lag_s}``: with that probability a prompt begins with the
              beginning of an earlier request (its prompt and output), for a fraction of its own length, that
              arrived about lag_s before. Lists: one entry for each equal part of prompts, short to long.
            - ``sessions``: ``{turns, think_s}``: conversations; ``prompt`` is then what a turn adds to the
              history, and ``arrivals`` are those of first turns at ``rate / mean turns``.
            - ``n``: parallel samples, a distribution.
        seed: overrides ``spec["seed"]`` (0).
        most: draw no more requests than these, and note it, for a description that nobody may have looked at.

    Raises:
        InputError: an unknown key, a missing or an impossible value, more requests than ``MOST_ASKED_FOR``.
    """
    if not isinstance(spec, Mapping):
        raise InputError("must be a mapping", field="synthetic", value=spec)
    for key in spec:
        if key not in KEYS:
            raise InputError("is not a key here", field=f"synthetic.{key}", hint=", ".join(KEYS))
    count, notes = _count(spec, most)
    seed = small(spec.get("seed", 0) if seed is None else seed, "synthetic.seed", 0)
    random = {name: np.random.default_rng([seed, index]) for index, name in enumerate(_STREAMS)}
    if "reuse" in spec and "sessions" in spec:
        raise InputError("goes with no sessions: reuse describes them already", field="synthetic.reuse")
    prompt, output = _lengths(spec, count, random["lengths"])
    if "max_total" in spec:
        output = _within(prompt, output, small(spec["max_total"], "synthetic.max_total", 2), random["lengths"])
    columns: dict[str, Any] = {}
    if "n" in spec:
        columns["n"] = _whole(distribution(spec["n"], "synthetic.n"), random["n"].random(count))
    if "sessions" in spec:
        return _with_sessions(spec, prompt, output, columns, random, _origin(seed, notes))
    arrival = arrivals(spec.get("arrivals"), "synthetic.arrivals").times(count, random["arrivals"])
    heads = _prefix_of(spec, prompt, random["prefixes"])
    content = drawn_content(spec, arrival, prompt, output, heads, random["reuse"])
    return Trace(arrival, prompt, output, **columns, content=content, origin=_origin(seed, notes))


def _count(spec: Mapping[str, Any], most: int | None) -> tuple[int, tuple[str, ...]]:
    """(how many requests to draw, what to say of it)"""
    count = small(spec.get("requests"), "synthetic.requests", 1)
    if most is not None and count > most:
        return most, (f"{most:,} of {count:,} requests drawn (--limit draws up to {MOST_ASKED_FOR:,})",)
    if count > MOST_ASKED_FOR:
        raise InputError(f"is more than {MOST_ASKED_FOR:,} requests", field="synthetic.requests", value=count)
    return count, ()


def _origin(seed: int, notes: tuple[str, ...]) -> Origin:
    return Origin("<synthetic>", "synthetic", (f"drawn with seed {seed}", *notes))


def _whole(values: Distribution, ranks: Doubles) -> Longs:
    return np.clip(np.rint(values.at(ranks)), 1, MAX_TOKENS).astype(np.int64)


def _lengths(spec: Mapping[str, Any], count: int, random: np.random.Generator) -> tuple[Longs, Longs]:
    for key in ("prompt", "output"):
        if key not in spec:
            raise InputError("is missing", field=f"synthetic.{key}")
    prompt = distribution(spec["prompt"], "synthetic.prompt")
    output = distribution(spec["output"], "synthetic.output")
    ranks = _spread(np.zeros(count), random)
    if "joint" not in spec:
        return _whole(prompt, ranks), _whole(output, _spread(np.zeros(count), random))
    try:
        joint = np.array(spec["joint"], dtype=np.float64)
    except (TypeError, ValueError):
        joint = np.zeros(0)
    size = len(joint) if joint.ndim == 2 else 0
    if not size or joint.shape != (size, size) or not np.isfinite(joint).all() or joint.min() < 0 or joint.sum() <= 0:
        raise InputError("must be a square matrix of weights >= 0", field="synthetic.joint")
    rows = joint.sum(axis=1, keepdims=True)
    given_prompt = np.cumsum(np.divide(joint, rows, out=np.full_like(joint, 1 / size), where=rows > 0), axis=1)
    part = np.minimum((ranks * size).astype(np.int64), size - 1)
    drawn, column = random.random(count), np.empty(count, np.int64)
    for at in range(0, count, ROWS):  # a comparison with a row of the matrix each
        some = slice(at, at + ROWS)
        column[some] = (drawn[some, None] > given_prompt[part[some], :-1]).sum(axis=1)
    return _whole(prompt, ranks), _whole(output, _spread(column, random))


def _within(prompt: Longs, output: Longs, most: int, random: np.random.Generator) -> Longs:
    """Outputs dealt anew, so that no sum exceeds ``most``; as a last resort an output is cut."""
    if prompt.max() >= most:
        raise InputError(
            f"is less than the longest prompt ({prompt.max()}) and a token",
            field="synthetic.max_total",
            value=most,
        )
    for _ in range(200):
        over = np.flatnonzero(prompt + output > most)
        if not len(over):
            return output
        dealt = np.unique(np.concatenate([over, random.integers(0, len(prompt), 4 * len(over))]))
        output[dealt] = output[random.permutation(dealt)]
    return np.minimum(output, most - prompt)


def _spread(key: Any, random: np.random.Generator) -> Doubles:
    """Ranks 0..1 spread evenly over the requests, ascending with ``key``, at random among equal keys.

    Even ranks rather than independent ones: the drawn lengths then follow their distribution as closely as so
    many requests can, and the seed decides only who gets which.
    """
    count = len(key)
    order = np.lexsort((random.random(count), key))
    ranks = np.empty(count)
    ranks[order] = (np.arange(count) + random.random(count)) / count
    return ranks


def _prefix_of(spec: Mapping[str, Any], prompt: Longs, random: np.random.Generator) -> Heads | None:
    """The common beginning of each request: one prefix or none, drawn by the prefixes' shares."""
    prefixes = spec.get("prefixes")
    if prefixes is None:
        return None
    if not isinstance(prefixes, (list, tuple)):
        raise InputError("must be a list of {tokens, share}", field="synthetic.prefixes", value=prefixes)
    sizes, shares = [], []
    for index, prefix in enumerate(prefixes):
        field = f"synthetic.prefixes[{index}]"
        if not isinstance(prefix, Mapping) or set(prefix) != {"tokens", "share"}:
            raise InputError("must be {tokens, share}", field=field, value=prefix)
        sizes.append(small(prefix["tokens"], f"{field}.tokens", 1))
        shares.append(distribution(prefix["share"], f"{field}.share").mean)
    if min(shares, default=0) < 0 or sum(shares) > 1 + 1e-9:
        raise InputError("shares must be >= 0 and sum to at most 1", field="synthetic.prefixes", value=shares)
    drawn = np.searchsorted(np.cumsum(shares), random.random(len(prompt)), side="right")
    return Heads(array("i", drawn.astype(np.intc).tobytes()), sizes, first_source=2 * len(prompt))


def _with_sessions(
    spec: Mapping[str, Any],
    added: Longs,
    output: Longs,
    columns: dict[str, Any],
    random: dict[str, Any],
    origin: Origin,
) -> Trace:
    """Conversations: turns in order, each prompt the whole history and what the turn adds."""
    sessions = spec["sessions"]
    if not isinstance(sessions, Mapping) or set(sessions) != {"turns", "think_s"}:
        raise InputError("must be {turns, think_s}", field="synthetic.sessions", value=sessions)
    turns = distribution(sessions["turns"], "synthetic.sessions.turns")
    think = distribution(sessions["think_s"], "synthetic.sessions.think_s")
    if think.values[0] < 0:
        raise InputError("must be >= 0", field="synthetic.sessions.think_s")
    count = len(added)
    draws = random["sessions"]
    sizes = _whole(turns, draws.random(count))
    last = int(np.searchsorted(np.cumsum(sizes), count))  # the session that reaches the wanted count, cut there
    sizes = sizes[: last + 1]
    sizes[-1] -= sizes.sum() - count
    starts_at = arrivals(spec.get("arrivals"), "synthetic.arrivals")
    first_turns = dataclasses.replace(starts_at, rate=starts_at.rate * len(sizes) / count)
    starts = first_turns.times(len(sizes), random["arrivals"])
    session = np.repeat(np.arange(len(sizes)), sizes)
    waits = np.where(np.diff(session, prepend=-1) > 0, 0.0, think.at(draws.random(count)))
    since = np.cumsum(waits)
    first = np.cumsum(sizes) - sizes
    arrival = starts[session] + since - np.repeat(since[first], sizes)
    builder = ContentBuilder()
    heads = _prefix_of(spec, added, random["prefixes"])
    prompt = np.empty(count, np.int64)
    # Turn order within a session is time order, so content may be built before sorting by arrival.
    for row, (name, new, answer) in enumerate(zip(*map(plain_numbers, (session, added, output)), strict=True)):
        history = builder.history_tokens(name)
        prompt[row] = history + new
        head = [] if heads is None or history else heads.of(row, new)
        builder.turn(name, history + new, answer, shared=history or new, head=head)
    order = np.argsort(arrival, kind="stable")
    if prompt.max() > MAX_TOKENS:
        raise InputError("leads to prompts of more than 2^31 tokens", field="synthetic.sessions.turns")
    return Trace(
        arrival[order],
        prompt[order],
        output[order],
        session=session[order],
        **{name: column[order] for name, column in columns.items()},
        content=builder.build().take(order),
        origin=origin,
    )
