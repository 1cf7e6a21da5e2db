"""A trace on the real engine and on the simulator, with the same scheduler settings: how far apart they are.

Two layers are kept apart. Given the measured step times, the simulator must plan what the engine ran (`same_plans`):
any difference is a bug. With the profile's step times the errors are the timing model's.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from kvplan.calibration.compare import Figure, compare
from kvplan.calibration.metered import Metered
from kvplan.calibration.observed import MEASURES, Observed
from kvplan.calibration.same_plans import SeenStep, differences, seen_step
from kvplan.calibration.stopwatch import clock_of
from kvplan.calibration.validate import Validation
from kvplan.core.replica import Replica
from kvplan.engine.device_memory import device_memory
from kvplan.engine.engine import Engine, EngineOptions, EngineRun
from kvplan.engine.loop import run_steps
from kvplan.engine.run import deploy
from kvplan.errors import InputError
from kvplan.metrics.tables import requests_table, timeline_table
from kvplan.resolve import Deployment
from kvplan.scenario import Scenario
from kvplan.simulation import run_replica, workload_of
from kvplan.timing.profile import Profile, read_profile

if TYPE_CHECKING:
    import pandas as pd

    from kvplan.trace.trace import Trace

Floats = np.ndarray[Any, np.dtype[np.float64]]


@dataclass(frozen=True, eq=False)
class Executed:
    """One run of the engine.

    Args:
        run: what `Engine.run` gives.
        steps: every step as it was after its commit.
        loads: what each executed step computed (STEP_LOAD), beside ``run.seconds``.
        facts: what a summary says of the engine.
    """

    run: EngineRun
    steps: list[SeenStep]
    loads: list[Any]
    facts: dict[str, Any]


@dataclass(frozen=True, eq=False)
class ReplayValidation(Validation):
    """A validation whose run was made here.

    Args:
        plans: what differs although the step times are the measured ones; must be empty.
        step_times: of every executed step, measured and as the profile prices that very step, in seconds.
        engine: what ran where.
    """

    plans: tuple[str, ...]
    step_times: tuple[Floats, Floats]
    engine: dict[str, Any]

    def as_json(self) -> dict[str, Any]:
        measured, priced = self.step_times
        off = np.abs(priced / measured - 1.0)
        return {
            **super().as_json(),
            "plans_given_measured_times": {
                "steps": len(measured),
                "equal": not self.plans,
                "differences": [*self.plans],
            },
            "step_times": {
                "sum_s": Figure("", "", float(priced.sum()), float(measured.sum())).as_json(),
                "median_error": float(np.median(off)),
                "p90_error": float(np.percentile(off, 90)),
            },
            "engine": self.engine,
        }


def validate_replay(
    scenario: Scenario,
    options: EngineOptions,
    *,
    time_scale: float = 1.0,
    progress: Callable[[int, int], None] | None = None,
) -> ReplayValidation:
    """Replays a scenario's trace on the engine and compares the simulator, timed by the scenario's profile, with it.

    The engine's clock runs on the seconds its steps take, on the clock that the profile was measured on, and jumps
    over stretches in which nothing could run.

    Args:
        time_scale: the arrivals are multiplied by it.

    Raises:
        InputError: the scenario names no profile, or the engine does not execute it.
        InfeasibleError: the deployment cannot start, or does not fit the device.
    """
    if scenario.profile_path is None:
        raise InputError(
            "give the profile whose predictions are to be judged", field="--profile", hint="kvplan calibrate"
        )
    profile = read_profile(scenario.profile_path)
    trace = scenario.trace()
    trace = replace(trace, arrival_s=trace.arrival_s * time_scale)
    deployment, shape, pool = deploy(scenario)
    engine = Engine(shape, deployment.settings, pool, options)
    executed = execute(engine, trace, str(profile.machine.get("clock", "wall")), progress)
    return judge(scenario, deployment, profile, trace, executed)


def execute(
    engine: Engine, trace: Trace, clock: str = "wall", progress: Callable[[int, int], None] | None = None
) -> Executed:
    """One run of a trace on the engine, every step of it seen."""
    engine.warm_up()
    workload = workload_of(trace)
    steps: list[SeenStep] = []
    metered = Metered(
        engine.executor(workload),
        clock_of(clock, engine.device),
        lambda core, seconds: steps.append(seen_step(core, seconds)),
    )
    replica = Replica(engine.settings, workload)
    begin = time.perf_counter()
    seconds = run_steps(replica, metered, progress=progress)
    wall_s = time.perf_counter() - begin
    run = EngineRun(replica, tuple(seconds), metered.compute_s, engine.at_start, device_memory(engine.device))
    return Executed(run, steps, metered.loads, {**run.facts(engine), "clock": clock, "wall_s": wall_s})


def judge(
    scenario: Scenario, deployment: Deployment, profile: Profile, trace: Trace, executed: Executed
) -> ReplayValidation:
    """The comparison of one executed run with its simulation."""
    settings, workload = deployment.settings, workload_of(trace)
    replica, _, warnings = run_replica(deployment, workload, trace)
    requests = requests_table("base", replica.core, trace)
    timeline = timeline_table("base", replica.record, settings.total_slots)
    ran = executed.run.replica
    theirs = requests_table("base", ran.core, trace), timeline_table("base", ran.record, settings.total_slots)
    observed = _observed(trace, *theirs, executed)
    memory = Figure("peak_memory_bytes", "", _peak_bytes(profile, executed), float(executed.run.at_end.peak_bytes))
    notes = (*warnings, *deployment.notes, *mismatches(profile, executed.facts))
    comparison = compare(observed, requests, timeline, notes)
    comparison = replace(comparison, figures=(*comparison.figures, memory))
    plans = differences(settings, workload, executed.steps)
    times = np.array(executed.run.seconds), _priced(deployment, executed.loads)
    return ReplayValidation(comparison, scenario, requests, timeline, tuple(plans), times, executed.facts)


def mismatches(profile: Profile, facts: dict[str, Any]) -> list[str]:
    """One sentence for each way in which the profile was measured otherwise than the engine ran; the form of the KV
    cache, which a profile may hold several of, is told by the timing model."""
    found = [
        f"the profile was measured with {name} {profile.source[name]}, the engine ran with {facts[name]}"
        for name in ("attention", "dtype")
        if name in profile.source and profile.source[name] != facts[name]
    ]
    threads = profile.machine.get("threads")
    if threads not in (None, facts["threads"]):
        found.append(f"the profile was measured with {threads} threads, the engine ran with {facts['threads']}")
    return found


def _observed(trace: Trace, requests: pd.DataFrame, timeline: pd.DataFrame, executed: Executed) -> Observed:
    """What the engine did, as `kvplan validate` sees any run."""
    done = requests[requests["status"] == "finished"]
    middle = timeline["t_s"] + timeline["dt_s"] / 2
    return Observed(
        source=trace.origin.path or "a generated trace",
        format="kvplan engine",
        arrival_s=done["arrival_s"].to_numpy(np.float64),
        prompt_tokens=done["prompt_tokens"].to_numpy(np.int64),
        output_tokens=done["output_tokens"].to_numpy(np.int64),
        measured={name: done[name].to_numpy(np.float64) for name in MEASURES},
        series={
            "t_s": middle.to_numpy(np.float64),
            "kv_used": (timeline["used"] + timeline["reserved"] + timeline["internal"]).to_numpy(np.float64),
            "running": timeline["running"].to_numpy(np.float64),
            "waiting": timeline["waiting"].to_numpy(np.float64),
        },
        counters={
            "preemptions": float(requests["preemptions"].sum()),
            "hit_tokens": float(timeline["hit_tokens"].sum()),
            "peak_running": float(timeline["running_max"].max()),
        },
        notes=(f"{executed.facts['steps']:,} steps on {executed.facts['device']}",),
    )


def _peak_bytes(profile: Profile, executed: Executed) -> float | None:
    """What the profile says the device's peak will be: what stood when it was measured, with this run's pool."""
    names = ("weights_bytes", "activation_peak_bytes", "runtime_bytes")
    if any(name not in profile.memory for name in names):
        return None
    memory = executed.facts["memory"]
    on_gpu = executed.run.at_end.source != "process"
    parts = [profile.memory[name] for name in (names[:2] if on_gpu else names)]
    pools = memory["pool_bytes"] + (0 if on_gpu else memory["host_pool_bytes"])
    return float(sum(parts) + pools)


def _priced(deployment: Deployment, loads: Sequence[Any]) -> Floats:
    from kvplan.core.step_time import step_seconds

    tables = deployment.timing.compiled()
    return np.array([float(step_seconds(tables, load)) for load in loads])
