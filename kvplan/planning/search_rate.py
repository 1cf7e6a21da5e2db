"""The largest rate that a deployment carries: bisection on the time scale of its traffic."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable

import numpy as np

from kvplan.cluster.spec import Server
from kvplan.cluster.traffic import Traffic
from kvplan.core.step_time import STEP_LOAD, step_seconds

RUNG = 2 ** (1 / 32)
"""Rates are searched on a ladder of these steps (2.2%)."""
_STRIDE = 16
_FARTHEST = 32 * 14


def at_speed(traffic: Traffic, speed: float) -> Traffic:
    """The same requests, arriving `speed` times as fast."""
    workload = traffic.workload
    begin = workload.arrival_s[:1].sum()
    arrivals = begin + (workload.arrival_s - begin) / speed
    return dataclasses.replace(traffic, workload=dataclasses.replace(workload, arrival_s=arrivals))


def rate_of(traffic: Traffic) -> float:
    """Requests per second over the span of the arrivals; infinite where all come at once."""
    arrivals = traffic.workload.arrival_s
    span = float(arrivals[-1] - arrivals[0])
    return (len(arrivals) - 1) / span if span > 0 else math.inf


def largest(carries: Callable[[float], bool], start: float) -> float:
    """The largest number start * RUNG^k for which `carries` is true, taken to be true up to there; 0 for none."""

    def rung(k: int) -> float:
        return float(start * RUNG**k)

    low, stride = 0, _STRIDE
    if carries(rung(0)):
        while carries(rung(low + stride)):
            low += stride
            stride *= 2
            if low > _FARTHEST:
                return rung(low)
        high = low + stride
    else:
        high = 0
        while not carries(rung(high - stride)):
            high -= stride
            stride *= 2
            if high < -_FARTHEST:
                return 0.0
        low = high - stride
    while high - low > 1:
        middle = (low + high) // 2
        if carries(rung(middle)):
            low = middle
        else:
            high = middle
    return rung(low)


def estimate(server: Server, traffic: Traffic, tpot_s: float = math.inf) -> float:
    """Requests per second that one replica might carry: where a search begins, never what it ends with.

    Full batches of average requests: as many as the pool and max_num_seqs hold and as `tpot_s` allows, each request
    costing its own prefill and its share of the decode steps.
    """
    settings, tables = server.settings, server.timing.compiled()
    prompt = float(np.mean(traffic.workload.prompt_tokens))
    output = float(np.mean(traffic.workload.output_tokens))
    load = np.zeros(1, STEP_LOAD)
    step = load[0]
    step["rows"], step["samples"], step["prefill_rows"] = 1, 1, 1
    step["tokens"] = step["prefill_tokens"] = step["prefill_context"] = int(prompt)
    step["prefill_pairs"] = int(prompt * (prompt + 1) / 2)
    prefill_s = float(step_seconds(tables, load))
    context = prompt + output / 2
    most = int(max(1, min(settings.max_num_seqs, settings.total_slots / (prompt + output))))

    def decode_s(rows: int) -> float:
        load[:] = np.zeros(1, STEP_LOAD)
        step["rows"] = step["tokens"] = step["samples"] = step["decode_rows"] = rows
        step["decode_context"] = int(rows * context)
        step["decode_context_squares"] = int(rows * context * context)
        step["decode_context_max"] = int(context)
        return float(step_seconds(tables, load))

    rows = most
    while rows > 1 and decode_s(rows) > tpot_s:
        rows = rows * 3 // 4
    return 1 / (prefill_s + output * decode_s(rows) / rows)
