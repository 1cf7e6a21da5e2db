"""The engine's executor, watched: what each step was asked to compute, and on which clock it took how long."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np

from kvplan.core.replay import measure_load
from kvplan.core.state import Core
from kvplan.core.step_time import STEP_LOAD
from kvplan.engine.executor import TorchExecutor


class Metered:
    """An executor around the engine's (see `kvplan.engine.executor.Executor`). A step's seconds are those since the
    former step ended, less what watching took.

    Args:
        clock: of `stopwatch.CLOCKS`.
        after: called after each commit with the core and the seconds of the step, None where nothing was executed.
    """

    def __init__(
        self,
        inner: TorchExecutor,
        clock: Callable[[], float] = time.perf_counter,
        after: Callable[[Core, float | None], None] | None = None,
    ) -> None:
        self._inner = inner
        self._clock = clock
        self._after = after
        self._mark = clock()
        self._seconds: float | None = None
        self.loads: list[Any] = []

    @property
    def compute_s(self) -> float:
        """Seconds of wall time in which steps themselves ran."""
        return self._inner.compute_s

    def execute(self, core: Core) -> float:
        begin = self._clock()
        load = np.zeros(1, STEP_LOAD)
        load["block_bytes"] = int(core.config["block_bytes"][0])
        measure_load(core, load)
        self.loads.append(load)
        self._mark += self._clock() - begin
        self._inner.execute(core)
        end = self._clock()
        seconds, self._mark = end - self._mark, end
        self._seconds = seconds
        return seconds

    def committed(self, core: Core) -> None:
        self._inner.committed(core)
        if self._after is not None:
            begin = self._clock()
            self._after(core, self._seconds)
            self._mark += self._clock() - begin
        self._seconds = None

    def waited(self) -> None:
        self._inner.waited()
        self._mark = self._clock()
