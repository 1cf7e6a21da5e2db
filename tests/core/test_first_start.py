"""A first start compiles on two processors, and computes what every later start does."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kvplan.core import first_start
from kvplan.core.replica import Replica, Workload
from kvplan.core.settings import Settings
from kvplan.timing import constant

ROOT = Path(__file__).resolve().parents[2]
FUNCTIONS = ("scheduler.plan", "scheduler.commit", "replay.skip", "replay.step_seconds", "replay.measure_load",
             "recorder.record_step", "recorder.record_tokens")  # fmt: skip


def finished_s() -> list[float]:
    """When each of a few requests ends."""
    work = Workload(np.array([0.0, 0.0, 0.5]), np.array([40, 3, 17]), np.array([9, 30, 2]))
    replica = Replica(Settings(num_gpu_blocks=9, max_model_len=64), work)
    replica.run(constant(0.25).compiled())
    return [float(end) for end in replica.core.requests["finish_s"]]


def facts() -> dict[str, Any]:
    """What this process compiled, and what it computed."""
    from kvplan.core import recorder, replay, scheduler

    modules = {"recorder": recorder, "replay": replay, "scheduler": scheduler}
    ends = finished_s()
    found = {name: getattr(modules[name.split(".")[0]], name.split(".")[1]) for name in FUNCTIONS}
    return {
        "ends": ends,
        "versions": {name: len(function.overloads) for name, function in found.items()},
        "plan_from_cache": sum(scheduler.plan.stats.cache_hits.values()),
        "replay_from_cache": sum(replay.replay.stats.cache_hits.values()),
    }


def started(cache: Path) -> dict[str, Any]:
    code = f"import json; from {__name__} import facts; print(json.dumps(facts()))"
    environment = {**os.environ, "XDG_CACHE_HOME": str(cache), "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])}
    run = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, cwd=ROOT)
    assert run.returncode == 0, run.stderr
    return dict(json.loads(run.stdout))


@pytest.mark.slow
def test_the_second_process_saves_the_first_its_work(tmp_path: Path) -> None:
    first = started(tmp_path)
    # Another type of argument than replay's own would compile a function twice and save nothing.
    assert first["versions"] == dict.fromkeys(FUNCTIONS, 1)
    assert first["plan_from_cache"] == (1 if first_start._processors() > 1 else 0)
    assert first["ends"] == finished_s()
    later = started(tmp_path)
    assert later["replay_from_cache"] == 1
    assert later["ends"] == first["ends"]


@pytest.mark.parametrize("fault", ["no interpreter", "cannot be started", "dies"])
def test_without_a_second_process_one_does_it_all(fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled: list[str] = []
    monkeypatch.setattr(first_start, "_tried", False)
    monkeypatch.setattr(first_start, "CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(first_start, "_processors", lambda: 2)
    monkeypatch.setattr(first_start, "_compile_rest", lambda *_: compiled.append("the rest"))
    executables = {"no interpreter": "", "cannot be started": str(tmp_path / "python"), "dies": sys.executable}
    monkeypatch.setattr(sys, "executable", executables[fault])
    if fault == "dies":
        monkeypatch.setattr(first_start, "_COMPILE_PLAN", "raise SystemExit(1)")
    assert finished_s()[1] > 0
    assert compiled == (["the rest"] if fault == "dies" else [])
