"""kvplan: KV-cache memory simulation and capacity planning for LLM serving.

``kvplan.simulate(scenario)`` is the whole of it in Python; `kvplan.scenario` says what a scenario is. Nothing
heavy is imported before it is used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kvplan.result import Result
    from kvplan.scenario import Scenario, load_scenario
    from kvplan.simulation import simulate

__version__ = "0.1.0"
__all__ = ["Result", "Scenario", "__version__", "load_scenario", "simulate"]

_HOMES = {
    "Result": "kvplan.result",
    "Scenario": "kvplan.scenario",
    "load_scenario": "kvplan.scenario",
    "simulate": "kvplan.simulation",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'kvplan' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES])
