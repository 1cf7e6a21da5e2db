"""Every step takes the same time: for tests, and for questions about memory alone."""

from __future__ import annotations

import math

from kvplan.errors import InputError
from kvplan.timing.step_times import StepTimes, Term


def constant(seconds: float) -> StepTimes:
    """A model in which every step takes ``seconds``.

    Raises:
        InputError: not a finite number above 0.
    """
    if not (math.isfinite(seconds) and seconds > 0):
        raise InputError("a step must take a finite time above 0", field="timing.constant", value=seconds)
    return StepTimes("constant", (Term("constant", seconds, "s", "given"),), host_step_s=seconds)
