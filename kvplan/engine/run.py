"""`run_scenario`: a scenario on the real engine, with the results that `kvplan.simulate` gives."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvplan.core.replica import Workload
from kvplan.engine.architecture import Architecture, architecture, config_of
from kvplan.engine.engine import Engine, EngineOptions
from kvplan.engine.loop import StepLog
from kvplan.engine.pool import CACHE_DTYPES, PoolShape, pool_shape
from kvplan.errors import InputError
from kvplan.files import atomic_write
from kvplan.memory.kv_dtype import model_kv_format
from kvplan.metrics.summary import run_summary
from kvplan.metrics.tables import memory_map_table, requests_table, timeline_table
from kvplan.resolve import Deployment, resolve
from kvplan.result import Result
from kvplan.scenario import Scenario
from kvplan.simulation import Progress, assembled, workload_of
from kvplan.timing import StepTimes
from kvplan.timing.step_times import Term

if TYPE_CHECKING:
    from kvplan.trace.trace import Trace


def run_scenario(
    scenario: Scenario,
    options: EngineOptions,
    *,
    time_scale: float = 1.0,
    progress: Progress | None = None,
    steps: str | Path | None = None,
) -> Result:
    """Executes the requests of a scenario on its deployment and on its variants.

    Args:
        time_scale: the arrivals are multiplied by it: 0.1 replays the trace ten times as fast.
        steps: writes one JSON line a step of the base run there.

    Raises:
        InputError: the scenario cannot be understood, or the engine does not execute it.
        InfeasibleError: a deployment cannot start, or does not fit the device.
    """
    trace = scenario.trace()
    if len(trace) == 0:
        raise InputError("the trace has no requests", field="workload", source=trace.origin.path or None)
    trace = replace(trace, arrival_s=trace.arrival_s * time_scale)
    workload = workload_of(trace)
    deployments = [(name, run, deploy(run)) for name, run in scenario.runs()]
    summaries, frames = [], []
    for index, (name, run, deployment) in enumerate(deployments):
        summary, tables = _one_run(
            name, run, deployment, trace, workload, options, progress, steps if index == 0 else None
        )
        summaries.append(summary)
        frames.append(tables)
    return assembled(scenario, trace, summaries, frames)


def deploy(run: Scenario) -> tuple[Deployment, Architecture, PoolShape]:
    """A run's deployment, and what its model and pool look like to the engine.

    Raises:
        InputError: the engine does not execute this model, cache or parallelism.
    """
    deployment = resolve(run)
    plan = deployment.memory
    if plan.tensor_parallel_size * plan.pipeline_parallel_size * run.parallel.data_parallel_size > 1:
        raise InputError("the engine runs on one device", field="parallel", hint="give 1 for each size")
    shape = architecture(deployment.model, config_of(run.model_source))
    form = model_kv_format(deployment.model, run.cache.kv_cache_dtype, run.engine.name).name
    stored = deployment.model.dtype if form.startswith("auto") else "fp8" if form.startswith("fp8_e4m3") else form
    if stored not in CACHE_DTYPES:
        raise InputError(
            "the engine has no such cache",
            field="cache.kv_cache_dtype",
            value=form,
            hint="one of " + ", ".join(CACHE_DTYPES),
        )
    members = [[member.index for member in group.members] for group in plan.cache_groups]
    pool = pool_shape(shape, deployment.settings, members, CACHE_DTYPES[stored])
    assert not deployment.settings.paged or pool.block_bytes == plan.bytes_per_block, "the pool differs from its plan"
    return deployment, shape, pool


def _one_run(
    name: str,
    run: Scenario,
    parts: tuple[Deployment, Architecture, PoolShape],
    trace: Trace,
    workload: Workload,
    options: EngineOptions,
    progress: Progress | None,
    steps: str | Path | None,
) -> tuple[dict[str, Any], tuple[Any, Any, Any]]:
    deployment, shape, pool = parts
    engine = Engine(shape, deployment.settings, pool, options)
    engine.warm_up()
    begin = time.perf_counter()
    with _step_log(steps) as log:
        executed = engine.run(
            workload,
            names=[trace.name(row) for row in range(len(trace))],
            log=log,
            progress=None if progress is None else lambda done, total: progress(name, done, total),
        )
    wall_s = time.perf_counter() - begin
    facts = executed.facts(engine)
    measured = replace(deployment, timing=_executed_times(facts))
    requests = requests_table(name, executed.replica.core, trace)
    summary = run_summary(name, run, measured, executed.replica, requests, wall_s, [])
    tables = (
        requests,
        timeline_table(name, executed.replica.record, deployment.settings.total_slots),
        memory_map_table(name, executed.replica.record),
    )
    return {**summary, "engine": facts}, tables


def _executed_times(facts: dict[str, Any]) -> StepTimes:
    """Where the step times came from, in the words of a step-time model."""
    source = f"measured on {facts['device']} with {facts['attention']} attention"
    return StepTimes(
        "executed",
        (
            Term("compute_s", facts["compute_s"], "s", source),
            Term("host_s", facts["host_s"], "s", "measured: planning, committing, recording"),
        ),
    )


@contextmanager
def _step_log(path: str | Path | None) -> Iterator[StepLog | None]:
    if path is None:
        yield None
        return
    with atomic_write(path, "w") as file:
        yield lambda line: print(json.dumps(line, separators=(",", ":")), file=file)
