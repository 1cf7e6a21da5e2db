"""Where the points of a sweep run: a pool of processes, or a Ray cluster. Nothing of scheduling is made here."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvplan.errors import InputError
from kvplan.planning.sweep import Row, here, run_point

if TYPE_CHECKING:
    from kvplan.scenario import Scenario

_scenario: Scenario | None = None
"""Of a worker process: read once, its trace with it."""


class Processes:
    """A pool of `workers` processes, started afresh (a fork would copy locks of threads that draw the progress bar)."""

    def __init__(self, workers: int) -> None:
        self.workers = workers

    def __call__(self, scenario: Scenario, numbers: list[int]) -> Iterator[tuple[int, Row]]:
        if self.workers == 1 or len(numbers) == 1:
            yield from here(scenario, numbers)
            return
        context = multiprocessing.get_context("spawn")
        mapping = scenario.to_mapping(relative_to=Path.cwd())
        pool = ProcessPoolExecutor(min(self.workers, len(numbers)), context, _begin, (mapping,))
        try:
            futures = {pool.submit(_work, number): number for number in numbers}
            for future in as_completed(futures):
                yield futures[future], future.result()
        finally:
            pool.shutdown(cancel_futures=True)


def _begin(mapping: dict[str, Any]) -> None:
    from kvplan.scenario import Scenario

    global _scenario
    _scenario = Scenario.build(mapping)


def _work(number: int) -> Row:
    assert _scenario is not None
    return run_point(_scenario, number)


class Ray:
    """Tasks on a Ray cluster: that at `address`, or one on this machine that is started for the sweep.

    Raises:
        InputError: Ray is not installed, or the cluster cannot be reached.
    """

    def __init__(self, address: str | None = None) -> None:
        try:
            import ray
        except ImportError as error:
            raise InputError("needs Ray", field="--engine", value="ray", hint="pip install 'kvplan[ray]'") from error
        self._ray = ray
        self.address = address

    def __call__(self, scenario: Scenario, numbers: list[int]) -> Iterator[tuple[int, Row]]:
        ray = self._ray
        started = not ray.is_initialized()
        if started:
            try:
                ray.init(self.address, log_to_driver=False, include_dashboard=False if self.address is None else None)
            except ConnectionError as error:
                raise InputError(f"no Ray cluster answers: {error}", field="--address", value=self.address) from error
        try:
            trace = scenario.trace()
            shared = ray.put((scenario.to_mapping(), trace))
            task = ray.remote(_on_ray)
            waiting = {task.remote(shared, number): number for number in numbers}
            while waiting:
                ready, _ = ray.wait(list(waiting), num_returns=1)
                yield waiting.pop(ready[0]), ray.get(ready[0])
        finally:
            if started:
                ray.shutdown()


def _on_ray(shared: tuple[dict[str, Any], Any], number: int) -> Row:
    """One task; the trace comes with it, so a worker on another machine needs no file."""
    from kvplan.scenario import Scenario

    mapping, trace = shared
    scenario = Scenario.build(mapping)
    scenario._traces.append(trace)
    return run_point(scenario, number)
