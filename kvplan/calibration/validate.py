"""The simulator beside a run that somebody else measured, on the same requests and settings."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from kvplan.calibration.compare import Comparison, compare
from kvplan.calibration.observed import Observed
from kvplan.errors import InputError

if TYPE_CHECKING:
    import pandas as pd

    from kvplan.scenario import Scenario
    from kvplan.trace.trace import Trace


_MAKERS = {"nvidia", "geforce", "tesla", "amd"}
_EDITION = re.compile(r"\d+gb|hbm\w+|blackwell|server|workstation|edition|generation")
"""What a driver adds to a GPU's name without meaning another GPU."""


@dataclass(frozen=True, eq=False)
class Validation:
    """A comparison, the scenario it was simulated with, and the tables behind it."""

    comparison: Comparison
    scenario: Scenario
    requests: pd.DataFrame
    timeline: pd.DataFrame

    def as_json(self) -> dict[str, Any]:
        """What ``validation.json`` holds."""
        return {"schema_version": 1, **self.comparison.as_json(), "scenario": self.scenario.to_mapping()}


def validate_observed(
    observed: Observed, trace_path: str | Path | None = None, overrides: Mapping[str, Any] | None = None
) -> Validation:
    """Simulate what was served and compare.

    Args:
        trace_path: the run's input, for what the results do not hold: which prompts share a prefix, or,
        where they
            hold no single requests, all of it. Its lengths must be those of the results, request by request.
        overrides: scenario leaves by dotted key; they win over what the run's own files say.

    Raises:
        InputError: no model or GPU is named anywhere; trace and results do not fit.
    """
    from kvplan.metrics.tables import requests_table, timeline_table
    from kvplan.resolve import resolve
    from kvplan.simulation import run_replica, workload_of

    scenario = scenario_of(observed, overrides or {})
    trace = trace_of(observed, trace_path)
    deployment = resolve(scenario)
    replica, _, _ = run_replica(deployment, workload_of(trace), trace)
    requests = requests_table("base", replica.core, trace)
    timeline = timeline_table("base", replica.record, deployment.settings.total_slots)
    warnings = list(deployment.timing.warnings) + list(deployment.notes)
    unfinished = int((requests["status"] != "finished").sum())
    if unfinished:
        warnings.append(f"{unfinished} requests did not finish in the simulation")
    if trace_path is None:
        warnings.append("no --trace: no two prompts share a prefix in the simulation")
    comparison = compare(observed, requests, timeline, tuple(warnings))
    return Validation(comparison, scenario, requests, timeline)


def scenario_of(observed: Observed, overrides: Mapping[str, Any]) -> Scenario:
    """The settings that the run's files name, with ``overrides`` in front.

    Raises:
        InputError: what is missing, or what cannot be together.
    """
    from kvplan.scenario import Scenario

    leaves = {**observed.settings, **overrides}
    if "gpu" in observed.settings and "gpu" not in overrides:
        leaves["gpu"] = _catalogued(str(observed.settings["gpu"]), observed.source)
    for key in ("model", "gpu"):
        if leaves.get(key) is None:
            raise InputError(f"the run does not name its {key}", field=key, source=observed.source, hint=f"--{key}")
    nested: dict[str, Any] = {}
    for key, value in leaves.items():
        home = nested
        *sections, leaf = key.split(".")
        for section in sections:
            home = home.setdefault(section, {})
        home[leaf] = value
    return Scenario.build(nested)


def _catalogued(driver_name: str, source: str) -> str:
    """The catalogue's GPU that a driver calls so: without the maker and the product line.

    Raises:
        InputError: the catalogue has none; the user has to say what it is.
    """
    from kvplan.catalog import load_gpu

    words = [word for word in driver_name.split() if word.lower() not in _MAKERS]
    shorter = [word for word in words if not _EDITION.fullmatch(word.lower())]
    for chosen in (words, shorter):
        try:
            return load_gpu("-".join(chosen)).name
        except InputError:
            continue
    raise InputError(
        "the run's GPU is not in the catalogue",
        field="gpu",
        value=driver_name,
        source=source,
        hint="--gpu NAME, or --gpu '{base: NAME, memory_gib: ..., hbm_bytes_per_s: ...}'",
    )


def trace_of(observed: Observed, trace_path: str | Path | None) -> Trace:
    """What came in: the results' arrivals and lengths, with the sharing that the trace knows of.

    Raises:
        InputError: neither holds what is needed, or the two do not fit.
    """
    from kvplan.trace import read_trace
    from kvplan.trace.trace import Origin, Trace

    if trace_path is None:
        if observed.arrival_s is None or observed.prompt_tokens is None or observed.output_tokens is None:
            raise InputError(
                "these results do not say which requests came in, and when",
                field="--trace",
                source=observed.source,
                hint="give the run's input with --trace",
            )
        origin = Origin(path=observed.source, format=observed.format)
        return Trace(observed.arrival_s, observed.prompt_tokens, observed.output_tokens, origin=origin)
    trace = read_trace(trace_path)
    if observed.prompt_tokens is None or observed.output_tokens is None:
        return trace
    if len(trace) != len(observed):
        raise InputError(
            f"the trace has {len(trace):,} requests, the results {len(observed):,}",
            field="--trace",
            source=str(trace_path),
        )
    different = np.flatnonzero(trace.prompt_tokens != observed.prompt_tokens)
    if len(different):
        at = int(different[0])
        raise InputError(
            f"request {at} has {trace.prompt_tokens[at]:,} prompt tokens in the trace and "
            f"{observed.prompt_tokens[at]:,} in the results: not the same run",
            field="--trace",
            source=str(trace_path),
        )
    arrivals = trace.arrival_s if observed.arrival_s is None else observed.arrival_s
    return replace(trace, arrival_s=arrivals, output_tokens=observed.output_tokens)
