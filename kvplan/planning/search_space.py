"""What a search chooses from: deployments of one replica that start, each with its settings changed from the base."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from kvplan.cluster.spec import Server
from kvplan.errors import InfeasibleError, InputError
from kvplan.resolve import Deployment, resolve

if TYPE_CHECKING:
    from kvplan.scenario import Scenario

Axes = Mapping[str, Sequence[Any]]
"""Dotted key of a scenario to the values to try, the preferred one first."""

POOL_ONLY = frozenset({"cache.gpu_memory_utilization", "cache.num_gpu_blocks_override", "cache.kv_cache_memory_bytes"})
"""Keys that change nothing but the size of the pool: more of it never carries less."""

DEFAULT_AXES: Axes = {
    "parallel.tensor_parallel_size": (1, 2, 4, 8),
    "scheduler.max_num_batched_tokens": (None, 2048),
    "scheduler.max_num_seqs": (None, 64),
    "cache.gpu_memory_utilization": (None, 0.95),
}


@dataclass(frozen=True, eq=False)
class Candidate:
    """``changes``: dotted key to value, where it differs from the scenario. ``order``: its place in the preference."""

    order: int
    gpu: str
    changes: Mapping[str, Any]
    scenario: Scenario
    deployment: Deployment

    @property
    def server(self) -> Server:
        return Server.of(self.deployment, self.gpu)

    @property
    def gpus(self) -> int:
        """Of one replica."""
        return self.server.gpus

    @property
    def family(self) -> tuple[Any, ...]:
        """Equal for candidates that differ in the size of the pool alone."""
        settings = replace(self.deployment.settings, num_gpu_blocks=2, pool_slots=1)
        return (self.gpu, self.gpus, settings, self.scenario.cache.kv_cache_dtype)


@dataclass(frozen=True)
class Refused:
    """A combination that cannot start, or cannot hold the longest request."""

    gpu: str
    changes: Mapping[str, Any]
    reason: str
    hint: str | None


def candidates(
    base: Scenario, gpus: Sequence[str], axes: Axes, *, longest: int
) -> tuple[list[Candidate], list[Refused]]:
    """Every combination, GPUs first, in order of preference; one of several that come to the same settings.

    Args:
        longest: tokens of the longest request: what cannot hold it is refused.

    Raises:
        InputError: a key or value that no scenario has.
    """
    found: list[Candidate] = []
    refused: list[Refused] = []
    known: set[tuple[Any, ...]] = set()
    for gpu in gpus:
        for values in itertools.product(*axes.values()):
            changes = {key: value for key, value in zip(axes, values, strict=True) if value is not None}
            run = variant(base, {"gpu": gpu, **changes})
            try:
                deployment = resolve(run)
            except InfeasibleError as error:
                refused.append(Refused(gpu, changes, error.message, error.hint))
                continue
            if longest > deployment.settings.max_model_len:
                limit = deployment.settings.max_model_len
                reason = f"the longest request has {longest:,} tokens, and no more than {limit:,} fit"
                refused.append(Refused(gpu, changes, reason, None))
                continue
            one = Candidate(len(found), gpu, changes, run, deployment)
            key = (one.family, deployment.settings.num_gpu_blocks, deployment.settings.pool_slots)
            if key not in known:
                known.add(key)
                found.append(one)
    return found, refused


def variant(base: Scenario, changes: Mapping[str, Any]) -> Scenario:
    """The scenario with some keys changed.

    Raises:
        InputError: see `Scenario.build`.
    """
    from kvplan.scenario.merge import merged, nested
    from kvplan.scenario.schema import Variant

    overrides: dict[str, Any] = {}
    for key, value in changes.items():
        overrides = merged(overrides, nested(key, value))
    try:
        chosen = Variant.model_validate({"name": "candidate", **overrides})
    except ValueError as error:
        raise InputError(f"is no setting of a deployment: {error}", field=", ".join(changes)) from error
    return base.model_copy(update={"variants": (chosen,), "sweep": {}}).runs()[1][1]
