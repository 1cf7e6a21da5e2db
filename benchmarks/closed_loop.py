"""A served batch of a fixed size: whenever a request ends, the next one arrives. Requests are all alike.

What load generators do under ``--max-concurrency``, with vLLM's scheduling (running first, then waiting,
chunked prefill within a token budget) and memory enough for all. Enough to turn step times into TTFT and
TPOT.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit

from kvplan.core.step_time import STEP_LOAD, TimingTables, step_seconds


class Served(NamedTuple):
    """Means over all requests, in seconds."""

    ttft_s: float
    tpot_s: float


def closed_loop(
    tables: TimingTables, *, concurrency: int, prompt: int, output: int, requests: int, budget: int = 8192
) -> Served:
    """Serve ``requests`` requests of ``prompt`` and ``output`` tokens, ``concurrency`` at a time."""
    load = np.zeros(1, STEP_LOAD)
    return Served(*_serve(tables, load, concurrency, prompt, output, requests, budget))


@njit  # no cache on disk: Numba would not notice an edit of step_time.py
def _serve(tables, load, concurrency, prompt, output, requests, budget):
    computed = np.zeros(concurrency, np.int64)  # by place in the running list
    arrived = np.zeros(concurrency)
    first = np.zeros(concurrency)
    chunk = np.zeros(concurrency, np.int64)
    begun = min(concurrency, requests)
    for i in range(begun, concurrency):
        computed[i] = -1
    now, ttft, tpot, done = 0.0, 0.0, 0.0, 0
    while done < requests:
        step = load[0]
        left = budget
        steps = 1 << 40
        load[:] = np.zeros(1, STEP_LOAD)
        for running in (True, False):  # decodes and begun prefills, then whoever has not begun
            for i in range(concurrency):
                if computed[i] < 0 or (computed[i] > 0) != running:
                    continue
                chunk[i] = min(max(prompt - computed[i], 1), left)
                left -= chunk[i]
                if chunk[i] == 0:
                    steps = 1
                elif computed[i] >= prompt:
                    context = computed[i] + 1
                    step.decode_rows += 1
                    step.decode_context += context
                    step.decode_context_squares += context * context
                    step.decode_context_max = max(step.decode_context_max, context)
                    steps = min(steps, prompt + output - 1 - computed[i])
                else:
                    steps = 1
                    step.prefill_rows += 1
                    step.prefill_tokens += chunk[i]
                    step.prefill_prior += computed[i]
                    step.prefill_context += computed[i] + chunk[i]
                    step.prefill_pairs += chunk[i] * computed[i] + chunk[i] * (chunk[i] + 1) // 2
                    step.samples += computed[i] + chunk[i] == prompt
        step.samples += step.decode_rows
        step.rows = step.decode_rows + step.prefill_rows
        step.tokens = step.decode_rows + step.prefill_tokens
        # Until the next request ends, every row grows by a token a step: the middle step stands for all.
        half = (steps - 1) / 2.0
        if steps > 1:
            rows, context = step.decode_rows, step.decode_context
            step.decode_context_squares += np.int64(2 * half * context + half * half * rows)
            step.decode_context += np.int64(half * rows)
            step.decode_context_max += np.int64(half)
        now += steps * step_seconds(tables, load)
        for i in range(concurrency):
            if computed[i] < 0 or chunk[i] == 0:
                continue
            before = computed[i]
            computed[i] += chunk[i] if before < prompt else steps
            chunk[i] = 0
            if before < prompt <= computed[i]:
                first[i] = now
            if computed[i] == prompt + output - 1:
                ttft += first[i] - arrived[i]
                tpot += (now - first[i]) / (output - 1)
                done += 1
                computed[i] = -1
                if begun < requests:
                    computed[i] = 0
                    arrived[i] = now
                    begun += 1
    return ttft / requests, tpot / requests
