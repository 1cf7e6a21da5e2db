"""Loads of a step, from what its rows compute."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from kvplan.core.step_time import STEP_LOAD, step_seconds
from kvplan.timing import StepTimes


def load_of(rows: Sequence[tuple[int, int]], *, samples: int | None = None, **moved: int) -> Any:
    """The load of a step whose rows are (tokens computed before, tokens to compute); all sample unless told."""
    step: dict[str, int] = dict.fromkeys(STEP_LOAD.names or (), 0)
    for computed, tokens in rows:
        step["rows"] += 1
        step["tokens"] += tokens
        if tokens == 1 and computed > 0:
            step["decode_rows"] += 1
            step["decode_context"] += computed + 1
            step["decode_context_squares"] += (computed + 1) ** 2
            step["decode_context_max"] = max(step["decode_context_max"], computed + 1)
        else:
            step["prefill_rows"] += 1
            step["prefill_tokens"] += tokens
            step["prefill_prior"] += computed
            step["prefill_context"] += computed + tokens
            step["prefill_pairs"] += tokens * computed + tokens * (tokens + 1) // 2
    step["samples"] = len(rows) if samples is None else samples
    load = np.zeros(1, STEP_LOAD)
    for name, value in {**step, **moved}.items():
        load[name] = value
    return load


def seconds(times: StepTimes, rows: Sequence[tuple[int, int]], **more: int) -> float:
    """How long such a step takes."""
    return float(step_seconds(times.compiled(), load_of(rows, **more)))


def decodes(rows: int, context: int) -> list[tuple[int, int]]:
    """Decode rows that attend ``context`` tokens each."""
    return [(context - 1, 1)] * rows
