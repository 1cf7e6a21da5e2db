"""Runs a workload on the engine and holds every logit against transformers' own forward pass."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch

from kvplan.core.check import check
from kvplan.core.replica import Replica, Workload
from kvplan.core.settings import Settings
from kvplan.core.state import Core
from kvplan.engine.engine import Engine, EngineOptions
from kvplan.engine.executor import TorchExecutor
from kvplan.engine.loop import run_steps
from kvplan.engine.pool import pool_shape
from tests.engine.models import Pair

SECONDS = 0.01


@dataclass(eq=False)
class Watched:
    """An executor whose clock is fixed, so that a run repeats, and which notes what each step computed."""

    inner: TorchExecutor
    seen: list[tuple[int, int, int, torch.Tensor, torch.Tensor]] = field(default_factory=list)
    """(request, sequence, position, the tokens up to there, logits)."""

    def execute(self, core: Core) -> float:
        self.inner.execute(core)
        for request, sequence, position, logits in self.inner.logits:
            tokens = self.inner._histories[request].tokens[sequence, : position + 1]
            self.seen.append((request, sequence, position, torch.from_numpy(tokens.copy()), logits))
        return SECONDS

    def committed(self, core: Core) -> None:
        self.inner.committed(core)
        check(core)

    def waited(self) -> None:
        pass


@dataclass(frozen=True, eq=False)
class Ran:
    replica: Replica
    watched: Watched
    lines: list[dict[str, Any]]

    def count(self, name: str) -> int:
        return int(self.replica.core.scalars[name][0])

    def answer(self, request: int, sequence: int = 0) -> list[int]:
        history = self.watched.inner._histories[request]
        return history.tokens[sequence, history.prompt : history.known].tolist()

    def prompt(self, request: int) -> torch.Tensor:
        history = self.watched.inner._histories[request]
        return torch.from_numpy(history.tokens[0, : history.prompt].copy())


def workload(prompts: list[int], outputs: list[int], **columns: Any) -> Workload:
    return Workload(np.zeros(len(prompts)), np.array(prompts, np.int64), np.array(outputs, np.int64), **columns)


def run(
    pair: Pair, settings: Settings, work: Workload, *, shuffled: int | None = None, attention: str = "torch"
) -> Ran:
    """Executes ``work``; ``shuffled``: a seed by which the physical blocks are handed out in another order."""
    settings = replace(settings, groups=pair.groups) if settings.paged else settings
    pool = pool_shape(pair.shape, settings, pair.members, torch.float32)
    engine = Engine(pair.shape, settings, pool, EngineOptions(attention=attention), pair.weights)
    engine.pool.tensor.fill_(float("nan"))  # a slot that nobody wrote must not be read
    engine.pool.host.fill_(float("nan"))
    replica = Replica(settings, work)
    if shuffled is not None:
        _shuffle_free_queue(replica, shuffled)
    watched = Watched(engine.executor(work, keep=True, last_logits=True))
    lines: list[dict[str, Any]] = []
    run_steps(replica, watched, names=[str(i) for i in range(len(work))], log=lines.append)
    return Ran(replica, watched, lines)


def _shuffle_free_queue(replica: Replica, seed: int) -> None:
    blocks = replica.core.blocks
    sentinel = len(blocks) - 1
    order = np.random.default_rng(seed).permutation(np.arange(1, sentinel))
    ring = np.concatenate(([sentinel], order, [sentinel]))
    blocks["next"][ring[:-1]] = ring[1:]
    blocks["prev"][ring[1:]] = ring[:-1]


def worst_error(pair: Pair, ran: Ran) -> float:
    """The largest |ours - theirs| of all logits that were sampled from, as a share of the largest of theirs."""
    worst, known = 0.0, {}
    for request, sequence, position, tokens, logits in ran.watched.seen:
        if ran.replica.settings.num_speculative_tokens:  # proposals were not known yet; the last look is the true one
            tokens = torch.from_numpy(ran.watched.inner._histories[request].tokens[sequence, : position + 1].copy())
            known[request, sequence, position] = tokens, logits
        else:
            known[tuple(tokens.tolist()), id(logits)] = tokens, logits
    theirs = _Theirs(pair)
    for tokens, logits in known.values():
        expected = theirs.last(tokens)
        error = float((logits - expected).abs().max() / expected.abs().max())
        worst = worst if error <= worst else error  # a NaN, which no comparison lets through, stays
    return worst


class _Theirs:
    """Transformers' logits after a prefix; a pass over a sequence answers for all its prefixes."""

    def __init__(self, pair: Pair) -> None:
        self._pair = pair
        self._passes: list[tuple[list[int], torch.Tensor]] = []

    def last(self, tokens: torch.Tensor) -> torch.Tensor:
        ids = tokens.tolist()
        for former, logits in self._passes:
            if former[: len(ids)] == ids:
                return logits[len(ids) - 1]
        logits = self._pair.logits(tokens)
        self._passes.append((ids, logits))
        return logits[-1]
