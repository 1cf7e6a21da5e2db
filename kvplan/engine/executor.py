"""Executors: what turns a planned step into seconds. The real one computes it; another repeats recorded times."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from kvplan.core.state import FINISHED, Core
from kvplan.engine.attention import Backend
from kvplan.engine.batch import StepBatch, step_batch
from kvplan.engine.decoder import Decoder
from kvplan.engine.histories import Histories
from kvplan.engine.moves import Moves
from kvplan.engine.pool import KvPool


class Executor(Protocol):
    """The clock of a replica that is driven step by step (`loop.run_steps`)."""

    def execute(self, core: Core) -> float:
        """Runs the step that ``core`` has planned. Returns its seconds, > 0."""
        ...

    def committed(self, core: Core) -> None:
        """The step has been committed: requests may have finished, sequences parted, drafts been rejected."""
        ...

    def waited(self) -> None:
        """Nothing ran until now; that time is no step's."""
        ...


class RecordedTimes:
    """The times of an earlier run, step for step: the simulator given measured times."""

    def __init__(self, seconds: Sequence[float]) -> None:
        self._seconds = iter(seconds)

    def execute(self, core: Core) -> float:
        return next(self._seconds)

    def committed(self, core: Core) -> None:
        pass

    def waited(self) -> None:
        pass


@dataclass(frozen=True, eq=False)
class _Sampled:
    """What a step sampled and only its commit decides on: drafts and beams.

    Args:
        request: whose.
        proposed: [sequences, drafts].
        likely: [sequences, drafts + 1, k], the k most likely tokens after each place, best first.
        blocks: [sequences], the block of group 0 that each sequence wrote into last.
    """

    request: int
    proposed: NDArray[np.int64]
    likely: NDArray[np.int64]
    blocks: NDArray[np.int64]
    column: int


class TorchExecutor:
    """Runs planned steps on a device.

    ``seconds`` of a step are those since the former step ended (or since nothing ran): planning and committing are
    part of what a client waits for. ``compute_s`` sums the part in which the step itself ran.

    Args:
        histories: the token ids.
        last_logits: keep each step's logits and the places they belong to (for tests).
    """

    def __init__(
        self, decoder: Decoder, pool: KvPool, backend: Backend, histories: Histories, *, last_logits: bool = False
    ) -> None:
        self._decoder = decoder
        self._pool = pool
        self._backend = backend
        self._histories = histories
        self._moves = Moves(pool)
        self._open: list[_Sampled] = []
        self._mark = time.perf_counter()
        self.compute_s = 0.0
        self._keeps_logits = last_logits
        self.logits: list[tuple[int, int, int, torch.Tensor]] = []
        """(request, sequence, position, logits [vocab]) of the last step, where ``last_logits`` asked for them."""

    def execute(self, core: Core) -> float:
        begin = time.perf_counter()
        self._moves.run(core)
        if int(core.scalars["num_planned"][0]):
            self._compute(core)
        elif self._pool.device.type == "cuda":
            torch.cuda.synchronize(self._pool.device)  # only blocks moved
        end = time.perf_counter()
        seconds, self._mark = end - self._mark, end
        self.compute_s += end - begin
        return seconds

    def committed(self, core: Core) -> None:
        for sampled in self._open:
            self._resolve(core, sampled)
        self._open.clear()
        for request in core.finished[: int(core.scalars["num_finished"][0])].tolist():
            self._histories.end(request)
            self._moves.forget(request)

    def waited(self) -> None:
        self._mark = time.perf_counter()

    def _compute(self, core: Core) -> None:
        planned = core.planned[: int(core.scalars["num_planned"][0])]
        for entry in planned[planned["fresh"] > 0]:
            r = core.requests[entry["request"]]
            self._histories.begin(int(entry["request"]), int(r["sequences"]), int(r["output"]))
        batch = step_batch(core)
        token_ids, proposed = self._token_ids(core, batch)
        logits = self._backend.forward(self._decoder, self._pool, batch, token_ids)
        self._sample(core, batch, proposed, logits)

    def _token_ids(self, core: Core, batch: StepBatch) -> tuple[NDArray[np.int64], dict[int, NDArray[np.int64]]]:
        """The step's token ids, and the proposed drafts by entry."""
        ids = np.empty(int(batch.starts[-1]), np.int64)
        proposed: dict[int, NDArray[np.int64]] = {}
        first_row = np.searchsorted(batch.entry, batch.entry)
        for row, (entry, start) in enumerate(zip(batch.entry.tolist(), batch.starts.tolist(), strict=False)):
            e = core.planned[entry]
            request, drafts = int(e["request"]), int(e["drafts"])
            history = self._histories[request]
            begin, end = int(e["computed"]), int(e["computed"] + e["tokens"])
            assert end - drafts <= history.known, f"request {request} runs ahead of its tokens"
            tokens = history.tokens[row - first_row[row], begin : end - drafts]
            if drafts:
                proposed[entry] = self._histories.drafts(request, drafts)
                tokens = np.concatenate((tokens, proposed[entry]))
            ids[start : start + len(tokens)] = tokens
        return ids, proposed

    def _sample(
        self, core: Core, batch: StepBatch, proposed: dict[int, NDArray[np.int64]], logits: torch.Tensor
    ) -> None:
        """Takes the most likely tokens. Those that no commit can change are known at once (async plans on them)."""
        self.logits.clear()
        if not len(batch.sampled):
            return
        planned = core.planned
        sampling = np.flatnonzero(planned["samples"][: int(core.scalars["num_planned"][0])])
        ways = int(core.requests["sequences"][planned["request"][sampling]].max())
        likely = _most_likely(logits, ways)
        if self._keeps_logits:
            self._note_logits(core, batch, logits)
        place = 0
        for entry in sampling.tolist():
            e = planned[entry]
            request, rows, drafts = int(e["request"]), int(e["sequences"]), int(e["drafts"])
            r = core.requests[request]
            own = likely[place : place + rows * (drafts + 1)].reshape(rows, drafts + 1, ways)
            place += rows * (drafts + 1)
            sequences = int(r["sequences"])
            if drafts or (rows > 1 and r["beams"]):
                column = (int(e["computed"]) + int(e["tokens"]) - 1) // int(core.config["block_size"][0])
                held = core.tables[0, e["row"] : e["row"] + rows, min(column, core.tables.shape[2] - 1)]
                drafted = np.tile(proposed.get(entry, np.zeros(0, np.int64)), (rows, 1))
                self._open.append(_Sampled(request, drafted, own, held.astype(np.int64), column))
            elif rows < sequences:  # the prompt is done: the sequences part here
                self._histories[request].append(own[0, 0, :sequences, None])
            else:
                self._histories[request].append(own[:, 0, :1])

    def _resolve(self, core: Core, sampled: _Sampled) -> None:
        """After a commit: how many drafts were taken, which beams went on."""
        history = self._histories[sampled.request]
        r = core.requests[sampled.request]
        drafts = int(r["generated"]) - history.generated - 1
        new = np.concatenate((sampled.proposed[:, :drafts], sampled.likely[:, drafts, :1]), axis=1)
        if not r["beams"] or r["status"] == FINISHED or not self._moves.paged:
            history.append(new)
            return
        row = int(r["row"])
        held = core.tables[0, row : row + len(sampled.blocks), sampled.column]
        parents = np.array([int(np.flatnonzero(sampled.blocks == block)[0]) for block in held])
        rank = np.array([0 if p == i else 1 + int((parents[:i] == p).sum() - (p < i)) for i, p in enumerate(parents)])
        history.append(new[:, :-1])
        history.adopt(parents, sampled.likely[parents, drafts, rank])

    def _note_logits(self, core: Core, batch: StepBatch, logits: torch.Tensor) -> None:
        row_of = np.searchsorted(batch.starts, batch.sampled, side="right") - 1
        first_row = np.searchsorted(batch.entry, batch.entry)
        for place, row, of in zip(batch.sampled.tolist(), row_of.tolist(), logits, strict=True):
            request = int(core.planned["request"][batch.entry[row]])
            self.logits.append((request, row - int(first_row[row]), int(batch.positions[place]), of.clone()))


def _most_likely(logits: torch.Tensor, ways: int) -> NDArray[np.int64]:
    """int64 [samples, ways], best first. Waits for the device."""
    best = logits.argmax(-1, keepdim=True) if ways == 1 else logits.topk(ways, dim=-1).indices
    ids: NDArray[np.int64] = best.cpu().numpy()
    return ids
