"""What a file left open and a trace must decide: missing times and outputs, what ids mean, who repeats whom.

Every decision is told through ``note``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvplan.trace.block_ids import infer_block_rule, unchained_ids
from kvplan.trace.content import ContentBuilder, blocks_content, restarts
from kvplan.trace.trace import ROWS, Content, Doubles, Longs, Trace, Wholes
from kvplan.trace.words import counted

Note = Callable[[str], None]

_REBASED_FROM_S = 60.0
_ROUNDING = {
    "ceil": "the last may be partial (ceil)",
    "floor": "full blocks only (floor)",
    "loose": "their number does not follow the prompt's length",
}


def settled_arrivals(arrival: Doubles, rebase: bool, note: Note) -> Doubles:
    """Arrivals in seconds from 0, in the file's order; NaN where the file has none.

    Args:
        rebase: put the first request at 0 where the clock reads more than the trace spans (and a minute):
            such a clock did not start with the trace.
    """
    missing = np.isnan(arrival)
    if missing.all():
        note("no arrival times: every request arrives at 0 (`kvplan trace scale --rate` spreads them)")
        return np.zeros(len(arrival))
    if missing.any():
        note(f"{counted(int(missing.sum()), 'row')} without arrival time: arriving with the row above")
        last = np.maximum.accumulate(np.where(missing, 0, np.arange(len(arrival))))
        arrival = np.nan_to_num(arrival[last], nan=0.0)
    first, span = arrival.min(), np.ptp(arrival)
    if first < 0:  # counted from the first row, which is not the earliest
        return arrival - first
    if rebase and first > max(span, _REBASED_FROM_S):
        note(f"the clock starts at {first:.15g} s: the first request is put at 0")
        return arrival - first
    return arrival


def settled_outputs(output: Wholes | None, rows: int, assumed: int, note: Note) -> Wholes:
    """Outputs with ``assumed`` where the file does not say (-1; None: nowhere)."""
    missing = np.ones(rows, bool) if output is None else output < 0
    if output is not None and not missing.any():
        return output
    some = f"{counted(int(missing.sum()), 'row')} without output length"
    who = "the file does not say how long answers are" if missing.all() else some
    note(f"{who}: {assumed} tokens assumed (--output-tokens)")
    settled: Wholes = np.where(missing, np.int32(assumed), np.int32(-1) if output is None else output)
    return settled


def block_content(
    prompt: Wholes,
    per_row: Wholes,
    ids: NDArray[Any],
    spaces: Wholes | None,
    given: int | None,
    expected: int | None,
    note: Note,
    rows: Wholes | None = None,
) -> tuple[int, Content]:
    """(block size, content) of hash ids.

    Args:
        prompt, per_row, ids, spaces, rows: as ``blocks_content`` takes them.
        given: the block size where the file or the person says; ``expected``: the format's usual one.
    """
    rule = infer_block_rule(prompt, per_row, given or expected)
    size = given or rule.block_size
    scope = "hold within a session only" if spaces is not None and spaces.any() else "hold for the whole file"
    note(f"hash ids: blocks of {size} tokens, {_ROUNDING[rule.rounding]}; ids {scope}")
    unchained = unchained_ids(per_row, ids, spaces)
    if unchained:
        note(
            f"hash ids are not chained: {unchained} ids follow different blocks, so they name a"
            " block's own content; prefix sharing counts only what an engine's chained cache can serve"
        )
    else:
        note("hash ids are chained: each names the whole prefix up to its block")
    return size, blocks_content(prompt, per_row, ids, size, spaces=spaces, rows=rows)


def session_content(trace: Trace, note: Note) -> Content | None:
    """Each turn begins with all of its session's former turn, where it is long enough; None where none is."""
    assert trace.session is not None
    if np.bincount(trace.session[trace.session >= 0]).max(initial=0) < 2:
        return None  # no session has a later turn
    builder, later, linked = ContentBuilder(), 0, 0
    columns = (plain_numbers(column) for column in (trace.session, trace.prompt_tokens, trace.output_tokens))
    for session, prompt, output in zip(*columns, strict=True):
        if session < 0:
            builder.add(())
            continue
        history = builder.history_tokens(session)
        whole = 0 < history <= prompt
        later += history > 0
        linked += whole
        builder.turn(session, prompt, output, shared=history if whole else 0)
    if not linked:
        return None
    if builder.restarted:
        note(restarts(builder))
    note(
        f"sessions: {linked} of {later} later turns are long enough to hold their former turn and are"
        " taken to begin with it (the file does not say what is shared)"
    )
    return builder.build()


def plain_numbers(column: Longs) -> Iterator[int]:
    """A column's values as Python's, which take four times the room, a few of them at a time."""
    for at in range(0, len(column), ROWS):
        yield from column[at : at + ROWS].tolist()
