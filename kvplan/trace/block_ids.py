"""What a file's hash ids mean: how many tokens a block has, floor or ceil, chained or not."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvplan.trace.id_rows import IdRows, numbering
from kvplan.trace.trace import Longs, Wholes

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


def infer_block_rule(prompt_tokens: Wholes, ids_per_row: Wholes, expected: int | None = None) -> BlockRule:
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


def unchained_ids(ids_per_row: Wholes, ids: NDArray[Any], spaces: Wholes | None = None) -> int:
    """How many distinct ids stand behind different predecessors.

    0: an id names a whole prefix (chained). Otherwise ids name a block's own content, and an engine, whose
    cache is chained, can serve fewer blocks than ids repeat.
    """
    if not len(ids):
        return 0
    rows, most = IdRows(ids, ids_per_row), int(ids.max())
    number, numbers = numbering(rows.values, most, len(ids))
    local = spaces is not None and bool(spaces.any())

    def names() -> Iterator[tuple[Longs, Longs]]:
        """(the id's number, told apart by its space; the id before it), batch by batch."""
        for row, _, values, before in rows.batches():
            name = values if number is None else number(values)
            yield name + spaces[row].astype(np.int64) * numbers if spaces is not None and local else name, before

    again, width = None, numbers
    if spaces is not None and local:
        most_names = (int(spaces.max()) + 1) * numbers
        again, width = numbering(lambda: (name for name, _ in names()), most_names - 1, len(ids))
    unseen = -2
    predecessor = np.full(width, unseen, np.int32 if most < 1 << 31 else np.int64)
    several = np.zeros(width, bool)
    for name, before in names():
        name = name if again is None else again(name)
        new = predecessor[name] == unseen
        predecessor[name[new]] = before[new]  # of several new ones any will do: the others then differ from it
        several[name[predecessor[name] != before]] = True
    return int(np.count_nonzero(several))
