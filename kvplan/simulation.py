"""`kvplan.simulate`: a scenario through the compiled core, run by run."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

import kvplan
from kvplan.core.replica import Replica, Workload
from kvplan.errors import InputError
from kvplan.metrics.summary import run_summary
from kvplan.metrics.tables import memory_map_table, requests_table, timeline_table
from kvplan.resolve import Deployment, resolve
from kvplan.result import Result
from kvplan.scenario import Scenario, load_scenario
from kvplan.steps import run_logging_steps

if TYPE_CHECKING:
    import pandas as pd

    from kvplan.trace.trace import Trace

SCHEMA_VERSION = 1

Progress = Callable[[str, int, int], None]
"""Called with the run's name, the requests done (finished or refused), and their total."""


def simulate(
    scenario: Scenario | Mapping[str, Any] | str | Path,
    *,
    progress: Progress | None = None,
    steps: str | Path | None = None,
    skip: bool = True,
) -> Result:
    """Replays the requests of a scenario against its deployment and its variants.

    Args:
        scenario: a `Scenario`, a mapping with its keys, or the path of a file.
        steps: writes one JSON line a step of the base run there (every step singly, so it takes longer).
        skip: walk stretches of pure decode in one jump; False takes every step singly, with the same result.

    Raises:
        InputError: the scenario or its trace cannot be understood.
        InfeasibleError: a deployment cannot start, with the reason and the nearest one that can.
    """
    if isinstance(scenario, str | Path):
        scenario = load_scenario(scenario, {})
    elif not isinstance(scenario, Scenario):
        scenario = Scenario.build(dict(scenario))
    trace = scenario.trace()
    if len(trace) == 0:
        raise InputError("the trace has no requests", field="workload", source=trace.origin.path or None)
    runs = [(name, run, resolve(run)) for name, run in scenario.runs()]
    summaries, frames = [], []
    workload = workload_of(trace)
    for index, (name, run, deployment) in enumerate(runs):
        log = steps if index == 0 else None
        replica, wall_s, warnings = run_replica(
            deployment, workload, trace, name, progress=progress, steps=log, skip=skip
        )
        requests = requests_table(name, replica.core, trace)
        summaries.append(run_summary(name, run, deployment, replica, requests, wall_s, warnings))
        frames.append(
            (
                requests,
                timeline_table(name, replica.record, deployment.settings.total_slots),
                memory_map_table(name, replica.record),
            )
        )
    return assembled(scenario, trace, summaries, frames)


def assembled(
    scenario: Scenario,
    trace: Trace,
    summaries: list[dict[str, Any]],
    frames: list[tuple[pd.DataFrame, pd.DataFrame, pd.DataFrame]],
) -> Result:
    """The result of runs on one trace: their summaries, and their tables (requests, timeline, map) end to end."""
    summary = {
        "schema_version": SCHEMA_VERSION,
        "kvplan": kvplan.__version__,
        "scenario": scenario.to_mapping(),
        "trace": {
            "requests": len(trace),
            "path": trace.origin.path,
            "format": trace.origin.format,
            "notes": list(trace.origin.notes),
            "bad_rows": trace.origin.bad_rows,
        },
        "runs": summaries,
    }
    import pandas as pd  # a second to import, and only needed here

    tables = [pd.concat(parts, ignore_index=True) for parts in zip(*frames, strict=True)]
    return Result(summary, *tables)


def run_replica(
    deployment: Deployment,
    workload: Workload,
    trace: Trace,
    name: str = "base",
    *,
    progress: Progress | None = None,
    steps: str | Path | None = None,
    skip: bool = True,
) -> tuple[Replica, float, list[str]]:
    """One deployment through all of a workload.

    Returns the replica as it is at the end, the seconds that took, and where its step times left what was measured.
    """
    settings = replace(deployment.settings, skip=skip and steps is None)
    replica = Replica(settings, workload)
    tables = deployment.timing.compiled()
    begin = time.perf_counter()
    report = None if progress is None else lambda done, total: progress(name, done, total)
    if steps is not None:
        run_logging_steps(replica, tables, trace, Path(steps), progress=report)
    else:
        replica.run(tables, progress=report)
    wall_s = time.perf_counter() - begin
    return replica, wall_s, [*deployment.timing.warnings, *deployment.timing.beyond(tables)]


def workload_of(trace: Trace) -> Workload:
    """The columns of a trace that the core reads. Arrivals are taken as they are, ascending."""
    content = trace.content
    beams = trace.beam_width
    samples = trace.n
    sequences = None
    if samples is not None or beams is not None:
        ones = np.ones(len(trace), np.int32)
        sequences = np.maximum(ones if samples is None else samples, ones if beams is None else beams).astype(np.int32)
    shared: dict[str, Any] = {}
    if content is not None:
        shared = {
            "segment_ptr": content.segment_ptr,
            "segment_source": np.ascontiguousarray(content.segment_source),  # compiled code is compiled for such
            "segment_start": content.segment_start,
            "segment_tokens": content.segment_tokens,
            "output_source": content.output_source,
        } | ({} if content.output_start is None else {"output_start": content.output_start})
    return Workload(
        arrival_s=trace.arrival_s,
        prompt_tokens=trace.prompt_tokens,
        output_tokens=trace.output_tokens,
        priority=trace.priority,
        sequences=sequences,
        beams=None if beams is None else beams > 0,
        **{key: np.ascontiguousarray(value, np.int64) for key, value in shared.items()},
    )
