"""Moments on the clock of the device that is measured."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch

from kvplan.engine.decoder import Attention
from kvplan.errors import InputError

FLUSH_BYTES = 256 * 2**20
"""Written before each timed run on a GPU: several times any L2, as a step's weights would pass through it."""


CLOCKS: dict[str, Callable[[], float]] = {"wall": time.perf_counter, "cpu": time.process_time}
"""``cpu`` counts what this process computed and not what it waited for others: with one thread it is the wall clock of
a machine on which nothing else runs."""


def clock_of(name: str, device: torch.device) -> Callable[[], float]:
    """The clock of that name.

    Raises:
        InputError: there is none, or it cannot see the device's work.
    """
    if name not in CLOCKS or (name == "cpu" and device.type != "cpu"):
        hint = "wall, or on a CPU also cpu"
        raise InputError("no such clock for this device", field="--clock", value=name, hint=hint)
    return CLOCKS[name]


class Stopwatch:
    """CUDA events on a GPU, so that no wait for the device is in a time; one of `CLOCKS` on a CPU.

    On a CPU nothing is flushed: a forward pass is timed whole, its parts within it, so that each of them finds in the
    cache what it finds there in a step of the engine.
    """

    def __init__(self, device: torch.device, clock: str = "wall") -> None:
        self._device = device
        self._clock = clock_of(clock, device)
        self._on_gpu = device.type == "cuda"
        self._flushed = torch.empty(FLUSH_BYTES if self._on_gpu else 0, dtype=torch.uint8, device=device)

    def mark(self) -> Any:
        """This moment in the device's stream."""
        if not self._on_gpu:
            return self._clock()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def cool(self) -> None:
        """Puts everything out of a GPU's cache."""
        if self._on_gpu:
            self._flushed.zero_()
            self.wait()

    def wait(self) -> None:
        """Until the device has done all it was given."""
        if self._on_gpu:
            torch.cuda.synchronize(self._device)

    def seconds(self, begin: Any, end: Any) -> float:
        """Between two marks; the device must have passed both (`wait`)."""
        elapsed: float = begin.elapsed_time(end) / 1e3 if self._on_gpu else end - begin
        return elapsed


class TimedAttention:
    """An attention that notes when each of its calls began and ended."""

    def __init__(self, inner: Attention, stopwatch: Stopwatch) -> None:
        self._inner = inner
        self._stopwatch = stopwatch
        self._marks: list[tuple[Any, Any]] = []

    def __call__(self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        begin = self._stopwatch.mark()
        out = self._inner(layer, query, key, value)
        self._marks.append((begin, self._stopwatch.mark()))
        return out

    def seconds(self) -> float:
        """Of all layers."""
        return sum(self._stopwatch.seconds(begin, end) for begin, end in self._marks)
