"""Goes over the points of a plan, again and again, until the budget is spent."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np

from kvplan.calibration.plan import Point
from kvplan.calibration.samples import Samples

MOST_SAMPLES = 25
SAVE_EVERY_S = 2.0

Progress = Callable[[str, int, int], None]
"""Called with the name of the pass, the points done in it, and their number."""


class Sampler(Protocol):
    """`meter.Meter`, or in a test something with known times."""

    def sample(self, point: Point) -> dict[str, float]: ...


def measure(
    sampler: Sampler, points: Sequence[Point], samples: Samples, budget_s: float, progress: Progress | None = None
) -> None:
    """Every point once, whatever that takes; then over all of them again while the budget lasts.

    A point's samples lie far apart in time, so that their median forgets what else the machine did meanwhile. A point
    that fails (for want of memory, say) is noted and not tried again. The file of ``samples`` is kept up to date, also
    when this is interrupted.
    """
    end = time.monotonic() + budget_s
    saved = 0.0
    order = np.random.default_rng(0)
    try:
        for round_ in range(MOST_SAMPLES):
            due = [p for p in points if samples.count(p.key) <= round_ and p.key not in samples.failed]
            for done, index in enumerate(order.permutation(len(due)).tolist()):
                if round_ > 0 and time.monotonic() > end:
                    return
                if progress is not None:
                    progress(f"pass {round_ + 1}", done, len(due))
                point = due[index]
                try:
                    samples.add(point.key, sampler.sample(point))
                except RuntimeError as error:  # what torch raises, out of memory included
                    samples.failed[point.key] = str(error).splitlines()[0]
                if time.monotonic() - saved > SAVE_EVERY_S:
                    samples.save()
                    saved = time.monotonic()
    finally:
        samples.save()
