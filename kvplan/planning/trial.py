"""Counterfactuals: the same trace simulated under changed settings, each combination once."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kvplan.errors import InfeasibleError, InputError
from kvplan.planning.changes import Change, Overrides

if TYPE_CHECKING:
    from kvplan.scenario import Scenario

Simulate = Callable[["Scenario"], Any]


@dataclass(frozen=True)
class Outcome:
    """What a run came to, in the few figures that a diagnosis compares; or why it cannot run."""

    run: Mapping[str, Any] | None
    scenario: Mapping[str, Any]
    problem: str = ""

    def get(self, path: str) -> float | None:
        value: Any = self.run
        for part in path.split("."):
            value = value.get(part) if isinstance(value, Mapping) else None
        return value if isinstance(value, (int, float)) and math.isfinite(value) else None

    @property
    def served(self) -> float:
        """Share of the requests that were finished."""
        total = self.get("requests.total")
        return (self.get("requests.finished") or 0.0) / total if total else 0.0

    def missed(self) -> list[tuple[str, str, float, float]]:
        """(metric, quantile, value, bound) of each objective that is not met."""
        found = []
        for metric, bounds in (self.scenario.get("slo") or {}).items():
            for quantile, bound in (bounds or {}).items():
                value = self.get(f"latency.{metric}.{quantile}")
                if bound is not None and value is not None and value > bound:
                    found.append((metric, quantile, value, bound))
        return found


def relief(before: Outcome, after: Outcome) -> float:
    """How much better ``after`` is: the log of the ratio of mean end-to-end times; -inf where it cannot run.

    By Little's law the mean time in the system is the mean number in it over the arrival rate, so it feels a
    queue, a slow step and a preemption alike, whatever the trace's own pace. A run that serves requests which
    the other refuses is better by that share first, since its mean counts requests the other never saw.
    """
    if after.run is None:
        return -math.inf
    more = after.served - before.served
    if abs(more) >= 0.005:
        return 10 * more
    was, now = before.get("latency.e2e_s.mean"), after.get("latency.e2e_s.mean")
    return math.log(was / now) if was and now else 0.0


class Trials:
    """Runs combinations of changes on one scenario and remembers them.

    Args:
        base: the deployment with its requests; variants and sweep are left out.
        simulate: `kvplan.simulate`.
    """

    def __init__(self, base: Scenario, simulate: Simulate) -> None:
        self._base = base.model_copy(update={"variants": (), "sweep": {}})
        self._simulate = simulate
        self._known: dict[frozenset[str], Outcome] = {}

    def run(self, changes: Iterable[Change] = ()) -> Outcome:
        """The outcome under all of ``changes`` at once (settings win over what-ifs, later ones over earlier).

        Raises:
            InputError, InfeasibleError: the base itself cannot be simulated.
        """
        chosen = list(changes)
        key = frozenset(change.key for change in chosen)
        if key not in self._known:
            self._known[key] = self._outcome(chosen)
        return self._known[key]

    def _outcome(self, chosen: list[Change]) -> Outcome:
        try:
            result = self._simulate(self._changed(chosen))
        except (InputError, InfeasibleError) as error:
            if not chosen:
                raise
            return Outcome(None, {}, error.message)
        return Outcome(result.summary["runs"][0], result.summary["scenario"])

    def _changed(self, chosen: list[Change]) -> Scenario:
        if not chosen:
            return self._base
        from kvplan.scenario.merge import merged
        from kvplan.scenario.schema import Variant

        overrides: Overrides = {}
        for change in sorted(chosen, key=lambda one: not one.what_if):  # a what-if yields to a setting
            overrides = merged(overrides, change.overrides)
        variant = Variant.model_validate({"name": "+".join(change.key for change in chosen), **overrides})
        return self._base.model_copy(update={"variants": (variant,)}).runs()[1][1]
