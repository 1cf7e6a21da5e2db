"""Parts, scalings and sums of traces."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from kvplan.errors import InputError
from kvplan.trace.content import ContentBuilder, clip, unfolded
from kvplan.trace.rows import MAX_TOKENS
from kvplan.trace.trace import Content, Longs, Origin, Trace, no_outputs
from kvplan.trace.words import counted


def cut(
    trace: Trace,
    *,
    start_s: float | None = None,
    end_s: float | None = None,
    first: int = 0,
    count: int | None = None,
    rebase: bool = True,
) -> Trace:
    """The requests that arrive in ``start_s <= t < end_s``, of these ``count`` from the ``first``.

    Args:
        rebase: put the first of them at 0.

    Raises:
        InputError: nothing is left, or a bound is none.
    """
    for name, value in (("first", first), ("count", 1 if count is None else count)):
        if value < (name == "count"):
            raise InputError("must be at least 1" if name == "count" else "must be at least 0", field=name, value=value)
    for name, bound in (("start", start_s), ("end", end_s)):
        if bound is not None and math.isnan(bound):
            raise InputError("is no time", field=name, value=bound)
    low = 0 if start_s is None else int(np.searchsorted(trace.arrival_s, start_s, side="left"))
    high = len(trace) if end_s is None else int(np.searchsorted(trace.arrival_s, end_s, side="left"))
    low += first
    high = high if count is None else min(high, low + count)
    if low >= high:
        raise InputError(
            "the slice holds no request", source=trace.origin.path, hint=f"the trace spans {trace.span_s:g} s"
        )
    part = trace.take(np.arange(low, high))
    arrival = part.arrival_s - part.arrival_s[0] if rebase else part.arrival_s
    return _noted(
        dataclasses.replace(part, arrival_s=arrival),
        f"rows {low} to {high - 1} of {trace.origin.path or 'a trace'}",
    )


def scale(
    trace: Trace,
    *,
    rate: float | None = None,
    speed: float | None = None,
    prompt: float | None = None,
    output: float | None = None,
    seed: int = 0,
) -> Trace:
    """The same requests at another rate or of other lengths.

    Args:
        rate: requests per second; gaps keep their proportions. A trace without arrival times gets Poisson
            arrivals.
        speed: times as fast; instead of ``rate``.
        prompt, output: factors of the lengths. What a scaled prompt shares scales with it.

    Raises:
        InputError: a factor that is not above 0, or both rate and speed.
    """
    for name, value in (("rate", rate), ("speed", speed), ("prompt", prompt), ("output", output)):
        if value is not None and not 0 < value < 1e9:
            raise InputError("must be above 0", field=name, value=value)
    if rate is not None and speed is not None:
        raise InputError("goes with no speed: give one of them", field="rate", value=rate)
    if rate is speed is prompt is output is None:
        raise InputError(
            "changes nothing", field="scale", hint="give a rate or a speed, a factor of prompts or outputs"
        )
    if seed < 0:
        raise InputError("must be at least 0", field="seed", value=seed)
    arrival = trace.arrival_s
    notes = []
    if rate is not None and trace.span_s == 0:
        gaps = np.random.default_rng(seed).exponential(1 / rate, len(trace))
        arrival = np.cumsum(gaps) - gaps[:1].sum()
        notes.append(f"Poisson arrivals at {rate:g} requests/s, seed {seed}")
    elif rate is not None:
        factor = (len(trace) - 1) / trace.span_s / rate
        arrival = arrival * factor
        notes.append(f"rate scaled to {rate:g} requests/s")
    elif speed is not None:
        arrival = arrival / speed
        notes.append(f"{speed:g} times as fast")
    prompts, outputs = (
        _scaled(column, factor) for column, factor in ((trace.prompt_tokens, prompt), (trace.output_tokens, output))
    )
    content = trace.content
    if content is not None and (prompt or output):
        if (output or 1.0) > (prompt or 1.0):
            content = unfolded(content, trace.output_tokens)
        content = _scaled_content(content, prompts, prompt or 1.0)
    origin = trace.origin
    if prompt or output:
        notes.append(f"prompts times {prompt or 1:g}, outputs times {output or 1:g}")
        if prompt and origin.block_size is not None:  # blocks of another size now
            size = origin.block_size * prompt
            origin = dataclasses.replace(origin, block_size=int(size) if float(size).is_integer() else None)
    clipped = sum(int(np.count_nonzero(column == MAX_TOKENS)) for column in (prompts, outputs))
    if clipped:
        notes.append(f"{counted(clipped, 'length')} cut at {MAX_TOKENS:,} tokens, the longest there is")
    changed = dataclasses.replace(
        trace, arrival_s=arrival, prompt_tokens=prompts, output_tokens=outputs, content=content
    )
    return _noted(dataclasses.replace(changed, origin=dataclasses.replace(origin, recorded=None)), *notes)


def _scaled(column: Longs, factor: float | None) -> Longs:
    if factor is None:
        return column
    return np.clip(np.rint(column * factor), 1, MAX_TOKENS).astype(np.int64)


def _scaled_content(content: Content, prompts: Longs, factor: float) -> Content:
    """Places in a source scale with the prompts, so that equal beginnings stay equal beginnings.

    The output is no longer the tokens that a later turn repeats when lengths are scaled apart: it keeps its source,
    and a later turn holds as much of it as its own scaled segment says.
    """

    def place(at: int) -> int:
        return round(at * factor)

    builder = ContentBuilder()
    for (segments, output, begins), prompt in zip(content.rows(), prompts.tolist(), strict=True):
        scaled = [
            (source, place(start), length)
            for source, start, count in segments
            if (length := place(start + count) - place(start)) > 0
        ]
        builder.add(clip(scaled, prompt), output_source=output, output_start=place(begins))
    return builder.build()


def merge(traces: Sequence[Trace], *, share: bool = False) -> Trace:
    """All requests of several traces in order of arrival, each on its own clock from 0.

    Args:
        share: equal sources of two traces are the same tokens (parts of one trace); otherwise traces share
            nothing.

    Raises:
        InputError: no trace.
    """
    if not traces:
        raise InputError("needs at least one trace", field="merge")
    order = np.argsort(np.concatenate([trace.arrival_s for trace in traces]), kind="stable")
    columns: dict[str, Any] = {}
    for name, default in (("priority", 0), ("n", 1), ("beam_width", 0)):
        if any(getattr(trace, name) is not None for trace in traces):
            parts = [np.full(len(t), default) if getattr(t, name) is None else getattr(t, name) for t in traces]
            columns[name] = np.concatenate(parts)[order]
    if any(trace.session is not None for trace in traces):
        columns["session"] = _joined_sessions(traces)[order]
    names = [f"{index}:{trace.name(row)}" for index, trace in enumerate(traces) for row in range(len(trace))]
    content = _joined_content(traces, share)
    sizes = {trace.origin.block_size for trace in traces if trace.content is not None}
    return Trace(
        np.concatenate([trace.arrival_s for trace in traces])[order],
        np.concatenate([trace.prompt_tokens for trace in traces])[order],
        np.concatenate([trace.output_tokens for trace in traces])[order],
        request_id=np.array(names, dtype=object)[order],
        **columns,
        content=None if content is None else content.take(order),
        origin=Origin(
            " + ".join(trace.origin.path for trace in traces),
            "merged",
            (f"{len(traces)} traces merged" + ("" if share else "; what one shares is kept apart from the others"),),
            sum(trace.origin.bad_rows for trace in traces),
            block_size=sizes.pop() if len(sizes) == 1 else None,
        ),
    )


def _joined_sessions(traces: Sequence[Trace]) -> Longs:
    parts, used = [], 0
    for trace in traces:
        session = np.full(len(trace), -1) if trace.session is None else trace.session
        parts.append(np.where(session >= 0, session + used, -1))
        used += int(session.max(initial=-1)) + 1
    return np.concatenate(parts).astype(np.int64)


def _joined_content(traces: Sequence[Trace], share: bool) -> Content | None:
    if all(trace.content is None for trace in traces):
        return None
    parts, used = [], 0
    for trace in traces:
        content = trace.content
        if content is None:
            empty = np.zeros(0, np.int64)
            content = Content(np.zeros(len(trace) + 1, np.int64), empty, empty, empty, no_outputs(len(trace)))
        top = max(int(content.segment_source.max(initial=-1)), int(content.output_source.max(initial=-1)))
        shift = 0 if share else used
        output = np.where(content.output_source >= 0, content.output_source.astype(np.int64) + shift, -1)
        source = content.segment_source.astype(np.int64) + shift
        parts.append(dataclasses.replace(content, segment_source=source, output_source=output))
        used += top + 1
    counts = np.concatenate([np.diff(part.segment_ptr) for part in parts])
    return Content(
        np.append(0, np.cumsum(counts)).astype(np.int64),
        np.concatenate([part.segment_source for part in parts]),
        np.concatenate([part.segment_start for part in parts]),
        np.concatenate([part.segment_tokens for part in parts]),
        np.concatenate([part.output_source for part in parts]),
        None
        if all(part.output_start is None for part in parts)
        else np.concatenate([_zeros_for(part) if part.output_start is None else part.output_start for part in parts]),
    )


def _zeros_for(content: Content) -> Longs:
    return np.zeros(len(content.output_source), np.int64)


def _noted(trace: Trace, *notes: str) -> Trace:
    return dataclasses.replace(trace, origin=dataclasses.replace(trace.origin, notes=(*trace.origin.notes, *notes)))
