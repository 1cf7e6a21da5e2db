"""One planned step as what the decoder reads: which tokens, at which positions, in which slots.

The plan's entries become *rows* (a request with n sequences that have parted brings n). Example, block_size 4, one
group, rows 0 and 1 of the block table being [5, 3] and [9]::

    entry (row 0, computed 6, tokens 1)      positions 6          slots 3·4 + 2
    entry (row 1, computed 0, tokens 3)      positions 0 1 2      slots 9·4 + 0, 1, 2
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from kvplan.core.state import CONTIGUOUS, Core

Longs = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class StepBatch:
    """Rows S, tokens T, groups G. Arrays on the host.

    Args:
        row: [S], row of the block table.
        entry: [S], the plan's entry that each row belongs to.
        computed: [S], tokens in the cache before the step.
        tokens: [S], tokens of the step.
        starts: [S + 1], where each row's tokens begin.
        positions: [T].
        slots: [G, T], block · block_size + offset.
        sampled: places in T whose logits are wanted, rows in order: the last ``drafts + 1`` tokens of each row that
            samples.
    """

    core: Core
    row: Longs
    entry: Longs
    computed: Longs
    tokens: Longs
    starts: Longs
    positions: Longs
    slots: Longs
    sampled: Longs

    @property
    def context(self) -> Longs:
        """[S]: tokens in the cache after the step's are written."""
        context: Longs = self.computed + self.tokens
        return context

    def slots_at(self, group: int, rows: Longs, positions: Longs) -> Longs:
        """Slots of tokens that the rows of the batch hold. ``rows`` and ``positions`` broadcast."""
        return slots_of(self.core, group, self.row[rows], positions)


def slots_of(core: Core, group: int, table_rows: Longs, positions: Longs) -> Longs:
    """Follows the block table (or the extents): the slot of each (row of the table, position)."""
    if int(core.config["layout"][0]) == CONTIGUOUS:
        starts: Longs = core.extents["start"][core.extent_of[table_rows]]
        return starts + positions
    size = int(core.config["block_size"][0])
    blocks: Longs = core.tables[group, table_rows, positions // size].astype(np.int64)
    return blocks * size + positions % size


def step_batch(core: Core) -> StepBatch:
    """The batch of the step that the core has just planned; valid until the next plan. At least one entry."""
    planned = core.planned[: int(core.scalars["num_planned"][0])]
    sequences = planned["sequences"].astype(np.int64)
    entry = np.repeat(np.arange(len(planned)), sequences)
    first = np.cumsum(sequences) - sequences
    row = planned["row"][entry] + np.arange(len(entry)) - first[entry]
    computed, tokens = (planned[name][entry].astype(np.int64) for name in ("computed", "tokens"))
    starts = np.concatenate(([0], np.cumsum(tokens)))
    token_row = np.repeat(np.arange(len(entry)), tokens)
    positions = np.arange(starts[-1]) + (computed - starts[:-1])[token_row]
    wanted = np.where(planned["samples"] == 1, planned["drafts"] + 1, 0).astype(np.int64)[entry]
    offsets = np.cumsum(wanted) - wanted
    sampled = np.repeat(starts[1:] - wanted - offsets, wanted) + np.arange(int(wanted.sum()))
    slots = np.stack([slots_of(core, group, row[token_row], positions) for group in range(len(core.groups))])
    return StepBatch(core, row, entry, computed, tokens, starts, positions, slots, sampled)


def on_device(
    batch: StepBatch, token_ids: NDArray[np.int64], device: torch.device
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Token ids, positions and sampled places."""
    ids, positions, sampled = (torch.from_numpy(array) for array in (token_ids, batch.positions, batch.sampled))
    return ids.to(device), positions.to(device), sampled.to(device)
