"""The tokens of every live sequence: its prompt and what it has generated.

The sequences of one request differ where they part: the i-th takes the i-th most likely first token, all go on
greedily. In beam search a beam that gave up continues from the one whose blocks it has adopted, each of that beam's
followers with the next likely token.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kvplan.engine.tokens import Ids, TokenIds


@dataclass(eq=False)
class History:
    """One request's tokens, for each of its sequences: [sequences, prompt + output]; the first ``known`` are set."""

    tokens: NDArray[np.int64]
    prompt: int
    known: int
    given: Ids | None

    @property
    def generated(self) -> int:
        return self.known - self.prompt

    def append(self, new: NDArray[np.int64]) -> None:
        """``new``: [sequences, count], the tokens after the known ones."""
        count = new.shape[1]
        self.tokens[:, self.known : self.known + count] = new
        if self.given is not None:  # the first sequence is the one that others' prompts name
            self.tokens[0, self.known : self.known + count] = self.given[self.generated : self.generated + count]
        self.known += count

    def adopt(self, parents: NDArray[np.int64], new: NDArray[np.int64]) -> None:
        """Each sequence continues from ``parents[i]`` with one token ``new[i]``."""
        self.tokens = self.tokens[parents]
        self.append(new[:, None])


class Histories:
    """Histories by request, made when a request first runs.

    Args:
        keep: hold on to the histories of requests that have finished (for tests and for reading the answers).
    """

    def __init__(self, ids: TokenIds, *, keep: bool = False) -> None:
        self._ids = ids
        self._keep = keep
        self._by_request: dict[int, History] = {}

    def __getitem__(self, request: int) -> History:
        return self._by_request[request]

    def begin(self, request: int, sequences: int, output: int) -> None:
        """The request runs for the first time, or again after a preemption, which costs it no token."""
        if request in self._by_request:
            return
        prompt = self._ids.prompt(request)
        tokens = np.zeros((sequences, len(prompt) + output), np.int64)
        tokens[:, : len(prompt)] = prompt
        self._by_request[request] = History(tokens, len(prompt), len(prompt), self._ids.given_output(request))

    def drafts(self, request: int, count: int) -> Ids:
        """What is proposed for the next ``count`` outputs."""
        return self._ids.drafts(request, self[request].generated, count)

    def end(self, request: int) -> None:
        if not self._keep:
            del self._by_request[request]
