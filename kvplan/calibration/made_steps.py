"""Steps that no trace asked for: any rows of any lengths, laid into a real core and a real pool."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from kvplan.core.replica import Replica, Workload
from kvplan.core.settings import Settings
from kvplan.engine.batch import StepBatch, step_batch

Row = tuple[int, int]
"""(tokens computed before, tokens of the step)."""


class MadeSteps:
    """Makes batches for an engine of these settings. Each gets blocks (or extents) of its own, drawn anew.

    Args:
        longest: tokens of the longest context that will be asked for.
    """

    def __init__(self, settings: Settings, longest: int, seed: int) -> None:
        rows = settings.max_num_seqs
        work = Workload(np.zeros(rows), np.full(rows, longest, np.int64), np.ones(rows, np.int64))
        self._settings = settings
        self._core = Replica(settings, work).core
        self._random = np.random.default_rng(seed)

    def fits(self, rows: Sequence[Row]) -> bool:
        """Whether the deployment could ever run such a step: pool, sequences and token budget suffice."""
        s = self._settings
        tokens = [computed + count for computed, count in rows]
        size = s.block_size if s.paged else 1
        held = sum(-(-count // size) * size for count in tokens)
        budget = sum(count for _, count in rows)
        return (
            len(rows) <= s.max_num_seqs
            and budget <= s.max_num_batched_tokens
            and max(tokens) < s.max_model_len
            and held <= s.total_slots
        )

    def batch(self, rows: Sequence[Row]) -> StepBatch:
        """A step of these rows; valid until the next call."""
        core = self._core
        core.scalars["num_planned"][0] = len(rows)
        for i, (computed, tokens) in enumerate(rows):
            core.planned[i] = (i, i, 1, computed, tokens, 1, 0, 0)
        lengths = [computed + tokens for computed, tokens in rows]
        if self._settings.paged:
            self._lay_blocks(lengths)
        else:
            self._lay_extents(lengths)
        return step_batch(core)

    def _lay_blocks(self, lengths: Sequence[int]) -> None:
        s, core = self._settings, self._core
        counts = [-(-length // s.block_size) for length in lengths]
        blocks = self._random.permutation(s.num_gpu_blocks - 1).astype(np.int32) + 1
        wanted = np.resize(blocks, len(core.groups) * sum(counts))  # windowed groups hold less: blocks may repeat
        at = 0
        for group in range(len(core.groups)):
            for row, count in enumerate(counts):
                core.tables[group, row, :count] = wanted[at : at + count]
                at += count

    def _lay_extents(self, lengths: Sequence[int]) -> None:
        core = self._core
        spare = self._settings.pool_slots - sum(lengths)
        start = int(self._random.integers(spare + 1))
        for row in self._random.permutation(len(lengths)).tolist():
            core.extents["start"][row + 1] = start
            core.extent_of[row] = row + 1
            start += lengths[row]
