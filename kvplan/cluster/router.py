"""Which replica a request goes to."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from kvplan.errors import InputError

Longs = NDArray[np.int64]


class Candidate(Protocol):
    """What a router may ask of a replica at the moment of an arrival."""

    index: int

    def outstanding(self, now: float) -> int:
        """Requests that it has and that have not left."""

    def kv_used(self, now: float) -> float:
        """Fraction of its pool that live sequences hold."""


class Router:
    """One of `spec.ROUTERS`, with its own counter and draws.

    `round_robin` counts over the replicas that are up. `random` and `power_of_two` draw; the latter takes the one
    of two with fewer outstanding requests. `least_outstanding` and `least_kv` take the smallest, ties to the first.
    `prefix_aware` sends equal keys to the same replica by rendezvous hashing, so that a failure moves only the keys
    of the replica that failed.
    """

    def __init__(self, name: str, seed: int = 0) -> None:
        self.name = name
        self._draws = np.random.default_rng([0x524F55544552, seed])
        self._turn = 0

    def choose(self, key: int, candidates: Sequence[Candidate], now: float) -> int:
        """The place in `candidates` (at least one) for a request with `key` that arrives at `now`."""
        count = len(candidates)
        if self.name == "round_robin":
            self._turn += 1
            return (self._turn - 1) % count
        if self.name == "random":
            return int(self._draws.random() * count)
        if self.name == "prefix_aware":
            ids = np.array([candidate.index for candidate in candidates])
            return int(_rendezvous(np.array([key]), ids)[0])
        if self.name == "power_of_two":
            first = int(self._draws.random() * count)
            second = (first + 1 + int(self._draws.random() * (count - 1))) % count
            pair = (first, second) if count > 1 else (first,)
            return min(pair, key=lambda place: candidates[place].outstanding(now))
        if self.name == "least_kv":
            return min(range(count), key=lambda p: (candidates[p].kv_used(now), candidates[p].outstanding(now)))
        return min(range(count), key=lambda place: candidates[place].outstanding(now))

    def assign(self, keys: Longs, replicas: int) -> Longs:
        """int64[R]: the replica of each request, by a blind rule, all `replicas` being up.

        The same as `choose` one by one; a next call goes on where this one ends.

        Raises:
            InputError: the rule looks at the replicas.
        """
        if self.name == "round_robin":
            chosen = (self._turn + np.arange(len(keys))) % replicas
            self._turn += len(keys)
            return chosen.astype(np.int64)
        if self.name == "random":
            return (self._draws.random(len(keys)) * replicas).astype(np.int64)
        if self.name == "prefix_aware":
            return _rendezvous(keys, np.arange(replicas))
        raise InputError("looks at the replicas, so requests are routed one by one", field="router", value=self.name)


def _rendezvous(keys: Longs, ids: Longs) -> Longs:
    """For each key the place of the id that scores highest with it (Thaler and Ravishankar, 1998)."""
    best = np.zeros(len(keys), np.int64)
    highest = np.zeros(len(keys), np.uint64)
    for place, replica in enumerate(ids):
        score = _mixed(_mixed(keys.astype(np.uint64)) ^ _mixed(np.array([replica + 1], np.uint64)))
        better = score > highest
        best[better], highest[better] = place, score[better]
    return best


def _mixed(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """splitmix64's finalizer."""
    x = (x + np.uint64(0x9E3779B97F4A7C15)).astype(np.uint64)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))
