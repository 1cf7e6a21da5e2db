"""Small clusters for the tests of this folder."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from kvplan.cluster.spec import ClusterSpec, Server
from kvplan.cluster.traffic import Traffic
from kvplan.core.replica import Workload
from kvplan.core.settings import Settings
from kvplan.timing import constant
from kvplan.trace import synthesize

STEP_S = 0.01
SETTINGS = Settings(block_size=16, num_gpu_blocks=200, max_model_len=2048, max_num_seqs=16, max_num_batched_tokens=512)


def server(step_s: float = STEP_S, **changed: Any) -> Server:
    return Server(dataclasses.replace(SETTINGS, **changed), constant(step_s))


def cluster(count: int, router: str = "round_robin", step_s: float = STEP_S, **more: Any) -> ClusterSpec:
    return ClusterSpec((server(step_s),) * count, router, **more)


def traffic(requests: int = 600, rate: float = 8.0, seed: int = 0) -> Traffic:
    return Traffic.of(
        synthesize(
            {
                "requests": requests,
                "seed": seed,
                "arrivals": {"rate": rate, "cv": 1.5},
                "prompt": {"lognormal": {"median": 200, "sigma": 0.9, "max": 1500}},
                "output": {"lognormal": {"median": 50, "sigma": 0.8, "max": 400}},
            }
        )
    )


def of(arrivals: list[float], prompt: int = 16, output: int = 10) -> Traffic:
    count = len(arrivals)
    workload = Workload(np.array(arrivals, float), np.full(count, prompt), np.full(count, output))
    return Traffic(workload, np.arange(count, dtype=np.int64))
