"""Keys of the schema whose machinery this release does not have: refused by name, never accepted and ignored.

The one place that knows; an entry goes when its machinery comes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kvplan.scenario.schema import Scenario


@dataclass(frozen=True)
class NotYet:
    """``key`` is refused where ``is_asked`` says that its value asks for what is missing."""

    key: str
    is_asked: Callable[[Any], bool]
    message: str
    hint: str

    def refuse(self, scenario: Scenario) -> None:
        value: Any = scenario
        for step in self.key.split("."):
            value = getattr(value, step)
        if self.is_asked(value):
            raise scenario.error(self.key, self.message, value=value, hint=self.hint)


NOT_YET: tuple[NotYet, ...] = (
    NotYet(
        "parallel.data_parallel_size",
        lambda size: size > 1,
        "more than one replica is not simulated yet in one run",
        "`kvplan plan` routes a trace over several; here, simulate one replica with its share of the requests",
    ),
    NotYet(
        "sweep",
        bool,
        "many runs are not one simulation",
        "run them with `kvplan sweep`, or take the key out",
    ),
)
