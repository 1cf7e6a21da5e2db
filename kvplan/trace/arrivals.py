"""When requests arrive: a rate that changes with time, and burstiness beyond it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from kvplan.errors import InputError
from kvplan.trace.rows import number
from kvplan.trace.trace import Doubles


@dataclass(frozen=True)
class Arrivals:
    """A renewal process on a warped clock.

    Gaps are gamma distributed with mean 1 and coefficient of variation ``cv`` (1: Poisson, 0: regular, more:
    bursts); the clock runs by ``profile``, the relative rate in equal windows over the whole trace.

    Args:
        rate: requests per second, mean over the trace.
        cv: standard deviation of a gap over its mean, where the rate is constant.
        profile: relative rates, any scale; a window may be 0; empty: constant.
        tick_s: arrivals are rounded down to multiples of this (a log with a coarse clock); 0: not.
    """

    rate: float
    cv: float = 1.0
    profile: tuple[float, ...] = ()
    tick_s: float = 0.0

    def times(self, count: int, random: np.random.Generator) -> Doubles:
        """``count`` ascending arrival times in seconds, the first near 0."""
        gaps = np.ones(count) if self.cv == 0 else random.gamma(self.cv**-2, self.cv**2, count)
        # A warped clock: each request's share of all, then the time by which the profile has let that share
        # in.
        # The last share is fixed, so that the rate is met exactly and not only in the mean.
        share = np.cumsum(gaps) - gaps[0]
        share *= (count - 1) / count / (share[-1] or 1.0)
        span = count / self.rate
        weights = np.array(self.profile or (1.0,))
        let_in = np.append(0.0, np.cumsum(weights)) / weights.sum()
        arrival = np.interp(share, let_in, np.linspace(0, span, len(let_in)))
        return np.floor(arrival / self.tick_s) * self.tick_s if self.tick_s else arrival


def arrivals(spec: Any, field: str = "arrivals") -> Arrivals:
    """Arrivals from their description: a rate, or ``{rate, cv, profile, tick_s}``.

    Raises:
        InputError: an unknown key or an impossible value.
    """
    if not isinstance(spec, Mapping):
        spec = {"rate": spec}
    for key in spec:
        if key not in ("rate", "cv", "profile", "tick_s"):
            raise InputError("is not a key here", field=f"{field}.{key}", hint="rate, cv, profile, tick_s")
    rate, cv = (
        float(number(spec.get("rate"), f"{field}.rate")),
        float(number(spec.get("cv", 1.0), f"{field}.cv")),
    )
    tick_s = float(number(spec.get("tick_s", 0.0), f"{field}.tick_s"))
    profile = spec.get("profile") or ()
    if not isinstance(profile, (list, tuple)):
        raise InputError("must be a list of relative rates", field=f"{field}.profile", value=profile)
    weights = tuple(float(number(weight, f"{field}.profile")) for weight in profile)
    if rate <= 0:
        raise InputError("must be more than 0 requests per second", field=f"{field}.rate", value=rate)
    if not 0 <= cv <= 1000 or tick_s < 0:
        raise InputError(
            "must be between 0 and 1000", field=f"{field}.cv" if tick_s >= 0 else f"{field}.tick_s", value=cv
        )
    if weights and (min(weights) < 0 or sum(weights) <= 0):
        raise InputError("must be relative rates >= 0, not all 0", field=f"{field}.profile", value=list(weights))
    return Arrivals(rate, cv, weights, tick_s)
