"""Token ids for a trace that has none: equal identities get equal ids, all others their own.

A trace says which tokens are equal (`kvplan.trace.Content`) and the core's prefix cache believes it. The engine must
therefore make it true, or a hit would hand one request another's keys: an id is a hash of the token's identity, modulo
the vocabulary. What a request generates is greedy, except where a later prompt can name it (``output_source``): then
the generated tokens are given by their identity too, as a replayed conversation's are.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from kvplan.core.content import OWN_OUTPUT, OWN_PROMPT
from kvplan.core.replica import Workload

Ids = NDArray[np.int64]


def identity_ids(source: int, start: int, count: int, vocab_size: int) -> Ids:
    """int64 [count]: ids of the tokens (source, start), (source, start + 1), ... Splitmix64 of the pair."""
    with np.errstate(over="ignore"):
        x = np.arange(start, start + count, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        x += np.uint64(source) * np.uint64(0xD1342543DE82EF95) + np.uint64(0x632BE59BD9B4E019)
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        x ^= x >> np.uint64(31)
        ids: Ids = (x % np.uint64(vocab_size)).astype(np.int64)
    return ids


class TokenIds:
    """The ids of a workload's prompts, and of outputs where they are given."""

    def __init__(self, workload: Workload, vocab_size: int) -> None:
        self._workload = workload
        self._vocab_size = vocab_size

    def prompt(self, request: int) -> Ids:
        """int64 [prompt tokens]"""
        w = self._workload
        parts = []
        covered = 0
        if len(w.segment_ptr):
            for segment in range(int(w.segment_ptr[request]), int(w.segment_ptr[request + 1])):
                count = int(w.segment_tokens[segment])
                source, start = int(w.segment_source[segment]), int(w.segment_start[segment])
                parts.append(identity_ids(source, start, count, self._vocab_size))
                covered += count
        own = int(w.prompt_tokens[request]) - covered
        parts.append(identity_ids(int(OWN_PROMPT) + request, covered, own, self._vocab_size))
        return np.concatenate(parts)

    def given_output(self, request: int) -> Ids | None:
        """int64 [output tokens] where another prompt can name them, else None: greedy."""
        w = self._workload
        if not len(w.output_source) or w.output_source[request] < 0:
            return None
        start = int(w.output_start[request]) if len(w.output_start) else 0
        return identity_ids(int(w.output_source[request]), start, int(w.output_tokens[request]), self._vocab_size)

    def drafts(self, request: int, start: int, count: int) -> Ids:
        """int64 [count]: what a draft model proposes for the outputs from ``start`` on."""
        given = self.given_output(request)
        if given is not None:
            return given[start : start + count]
        return identity_ids(int(OWN_OUTPUT) + request, start, count, self._vocab_size)
