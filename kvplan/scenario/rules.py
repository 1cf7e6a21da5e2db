"""What a scenario's keys must be to each other; each alone is checked by its type."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from kvplan.scenario.explain import explained, nearest
from kvplan.scenario.leaves import sweepable_keys
from kvplan.scenario.merge import merged, nested
from kvplan.scenario.origin import Origin

if TYPE_CHECKING:
    from kvplan.scenario.schema import Scenario


def check_rules(scenario: Scenario) -> None:
    """Raises:
    InputError: at the key that must change.
    """
    _one_source_of_requests(scenario)
    _swap_has_room(scenario)
    _names_differ(scenario)
    _sweep_has_values(scenario)


def _one_source_of_requests(scenario: Scenario) -> None:
    if scenario.requests is not None and scenario.workload is not None:
        raise scenario.error("workload", "requests and workload exclude each other", hint="keep one of them")
    if scenario.requests is not None and not len(scenario.requests):
        raise scenario.error("requests", "is empty", hint="name at least one request: {prompt: 512, output: 128}")


def _swap_has_room(scenario: Scenario) -> None:
    if scenario.scheduler.preemption == "swap" and scenario.cache.swap_space == 0:
        raise scenario.error(
            "scheduler.preemption",
            "swap needs host memory, and cache.swap_space is 0",
            value="swap",
            hint="set cache.swap_space (GiB), or preemption: recompute",
        )


def _names_differ(scenario: Scenario) -> None:
    taken = {scenario.name}
    for place, variant in enumerate(scenario.variants):
        if variant.name in taken:
            raise scenario.error(("variants", place, "name"), "two runs have this name", value=variant.name)
        taken.add(variant.name)


def _sweep_has_values(scenario: Scenario) -> None:
    known = sweepable_keys(type(scenario))
    for key, values in scenario.sweep.items():
        if key not in known:
            close = nearest(key, known) or next((k for k in known if k.split(".")[-1] == key), None)
            raise scenario.error(
                ("sweep", key),
                "is no key that can be swept",
                at_key=True,
                hint=f"did you mean {close!r}?" if close else f"such keys are {', '.join(known[:4])}, ...",
            )
        if not values:
            raise scenario.error(("sweep", key), "has no values", value=values)
        for place, value in enumerate(values):
            _check_swept(scenario, key, place, value)


def _check_swept(scenario: Scenario, key: str, place: int, value: Any) -> None:
    mapping = merged({"model": scenario.model, "gpu": scenario.gpu}, nested(key, value))
    try:
        type(scenario).model_validate(mapping)
    except ValidationError as error:
        found = explained(error, type(scenario), Origin())
        raise scenario.error(("sweep", key, place), found.message, value=value, hint=found.hint) from error
