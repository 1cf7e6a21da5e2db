"""Absolute moments in SimPy, which knows delays only."""

from __future__ import annotations

import numpy as np
import simpy


def until(env: simpy.Environment, moment: float) -> simpy.Event:
    """An event at `moment` exactly (or now, where that is past): env.now + delay rounds to the very float.

    A sum off by one unit in the last place would let a step that begins at an arrival run without it.
    """
    delay = max(0.0, moment - env.now)
    while env.now + delay < moment:
        delay = float(np.nextafter(delay, np.inf))
    while delay > 0 and env.now + delay > moment:
        delay = float(np.nextafter(delay, 0.0))
    return env.timeout(delay)
