"""What a run is: the YAML schema, its defaults, and messages that point at the line.

One scenario, from the file to the runs::

    text ──► document ──► schema (sections, rules) ──► Scenario ──► runs()   base, variants
             values with    explain: pydantic's             │
             their marks    findings as InputError          └──► trace()  the requests in columns
    flags ──► leaves ─────────────┘
"""

from kvplan.scenario.leaves import Leaf
from kvplan.scenario.load import load_scenario
from kvplan.scenario.schema import Scenario, Variant
from kvplan.scenario.shipped import shipped_workloads

__all__ = ["Leaf", "Scenario", "Variant", "load_scenario", "shipped_workloads"]
