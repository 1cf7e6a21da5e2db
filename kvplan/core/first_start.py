"""The first start: two processors compile the core at once.

`plan` takes about as long to compile as all else that `replay` calls. Where nothing is in the cache on disk yet, a
second process compiles it into that cache while this one compiles the rest; `replay` then finds it there.
"""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
from pathlib import Path

import numba
import numpy as np

from kvplan.core import recorder, replay, scheduler
from kvplan.core.jit import CACHE_DIR
from kvplan.core.recorder import Record
from kvplan.core.state import Core
from kvplan.core.step_time import STEP_LOAD, TimingTables

_LOADS = numba.typeof(np.zeros(1, STEP_LOAD))
_COMPILE_PLAN = "from kvplan.core.first_start import compile_plan; compile_plan()"
_tried = False


def is_compiled() -> bool:
    """Whether the cache on disk holds the core."""
    return any(Path(CACHE_DIR).rglob("replay.replay-*.nbi"))


def compile_together(core: Core, timing: TimingTables, record: Record) -> None:
    """Compiles what `replay` calls, where it has not been compiled before, on two processors.

    Without a second processor, in a worker process, or where Python cannot be started again, this does nothing:
    `replay` compiles all by itself.
    """
    global _tried
    if _tried:
        return
    _tried = True
    alone = multiprocessing.parent_process() is not None or _processors() < 2 or not sys.executable
    if alone or is_compiled():
        return
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    try:
        other = subprocess.Popen(
            [sys.executable, "-c", _COMPILE_PLAN],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
    except OSError:
        return
    with other:
        _compile_rest(core, timing, record)


def compile_plan() -> None:
    """What the second process does."""
    from kvplan.core.replica import NO_REQUESTS, Replica
    from kvplan.core.settings import Settings

    core = Replica(Settings(num_gpu_blocks=2, max_model_len=16), NO_REQUESTS).core
    scheduler.plan.compile((numba.typeof(core), numba.float64))


def _compile_rest(core: Core, timing: TimingTables, record: Record) -> None:
    """All but `plan`, with the types that `replay` calls it with."""
    state, log, times = (numba.typeof(value) for value in (core, record, timing))
    planned, count, seconds = numba.typeof(core.planned), numba.int64, numba.float64
    for function, types in (
        (scheduler.commit, (state, planned, count, seconds)),
        (recorder.record_step, (state, log, seconds, seconds, count)),
        (recorder.record_tokens, (state, log, planned, count, seconds)),
        (replay.measure_load, (state, _LOADS)),
        (replay.step_seconds, (times, _LOADS)),
        (replay.skip, (state, times, _LOADS, log, seconds)),
    ):
        function.compile(types)


def _processors() -> int:
    """Those that this process may use, where the system says."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
