"""What a file's hash ids mean: how many tokens a block has, floor or ceil, chained or not."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from kvplan.trace.trace import Longs

_LIKELY = (512, 16, 64, 128, 256, 32, 1024, 2048)
"""Block sizes in use, the likeliest first: Mooncake, vLLM and Bailian, WEKA, then others."""

_ROWS_THAT_TELL = 2
"""One row fits many sizes; so few rows do not speak against the format's own."""


@dataclass(frozen=True)
class BlockRule:
    """How ids count tokens: ``ceil`` ends with a partial block, ``floor`` names full blocks only."""

    block_size: int
    rounding: str
    """``ceil``, ``floor``, or ``loose`` where the number of ids follows neither."""


def infer_block_rule(prompt_tokens: Longs, ids_per_row: Longs, expected: int | None = None) -> BlockRule:
    """The block size that explains how many ids each prompt has.

    Args:
        expected: the size that the format prescribes, tried first.

    Returns:
        A rule with rounding ``loose`` and the expected (or 512) size where no size explains every row.
    """
    some = ids_per_row > 0
    prompt, count = prompt_tokens[some], ids_per_row[some]
    candidates = [expected] if expected else []
    if len(prompt) >= _ROWS_THAT_TELL or not expected:
        candidates += [size for size in _LIKELY if size != expected]
        # ceil(p / B) = c  <=>  p / c <= B < p / (c - 1): sizes beyond the usual ones come from these bounds.
        if len(prompt) >= 10 * _ROWS_THAT_TELL:
            candidates.append(int(np.max(-(-prompt // count))))
    for size in candidates:
        if np.array_equal(-(-prompt // size), count):
            return BlockRule(size, "ceil")
        if np.array_equal(prompt // size, count):
            return BlockRule(size, "floor")
    return BlockRule(expected or _LIKELY[0], "loose")


def unchained_ids(ids_per_row: Longs, ids: Longs, spaces: Longs | None = None) -> int:
    """How many distinct ids stand behind different predecessors.

    0: an id names a whole prefix (chained). Otherwise ids name a block's own content, and an engine, whose
    cache is chained, can serve fewer blocks than ids repeat.
    """
    if not len(ids):
        return 0
    before = np.empty_like(ids)
    before[1:] = ids[:-1]
    starts = (np.cumsum(ids_per_row) - ids_per_row)[ids_per_row > 0]
    before[starts] = -1
    space = np.zeros(len(ids), np.int64) if spaces is None else np.repeat(spaces, ids_per_row)
    order = np.lexsort((before, ids, space))
    same_id = (np.diff(ids[order]) == 0) & (np.diff(space[order]) == 0)
    other_before = same_id & (np.diff(before[order]) != 0)
    found = order[1:][other_before]
    return len(np.unique(np.column_stack([space[found], ids[found]]), axis=0))
