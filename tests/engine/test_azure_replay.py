"""Two hundred requests of the Azure conversation trace, scaled down, computed for real on this CPU: given the measured
step times, the simulator makes every one of the engine's plans, block ids and all."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import kvplan.steps
from kvplan.core.replica import Replica, Workload
from kvplan.core.settings import Settings
from kvplan.core.state import FINISHED
from kvplan.engine.engine import Engine, EngineOptions
from kvplan.engine.pool import CACHE_DTYPES, pool_shape
from kvplan.timing import constant
from kvplan.trace import read_trace
from tests.engine.models import Pair

REQUESTS = 200
PROMPT_SCALE, OUTPUT_SCALE, TIME_SCALE = 12, 12, 0.002
PAGED = Settings(block_size=8, num_gpu_blocks=160, enable_prefix_caching=True)
CONTIGUOUS = Settings(layout="contiguous", pool_slots=1272, reservation="grow", placement="first-fit")


@pytest.mark.parametrize("layout", ["paged", "async", "contiguous"])
def test_every_plan_equals_the_simulators(
    pairs: dict[str, Pair], shared_data: Path, layout: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    trace = read_trace(shared_data / "traces" / "azure-2023" / "AzureLLMInferenceTrace_conv.csv", limit=REQUESTS)
    work = Workload(
        trace.arrival_s * TIME_SCALE,
        np.maximum(1, trace.prompt_tokens // PROMPT_SCALE),
        np.maximum(1, trace.output_tokens // OUTPUT_SCALE),
    )
    settings = _settings(layout)
    names = [str(i) for i in range(REQUESTS)]
    pair = pairs["qwen3"]
    pool = pool_shape(pair.shape, settings, pair.members, CACHE_DTYPES["float32"])
    engine = Engine(pair.shape, settings, pool, EngineOptions(), pair.weights)
    engine.warm_up()
    computed: list[dict[str, Any]] = []
    ran = engine.run(work, names=names, log=computed.append)

    measured = iter(ran.seconds)
    monkeypatch.setattr(kvplan.steps, "step_seconds", lambda timing, load: next(measured))
    replica = Replica(settings, work)
    simulated = list(kvplan.steps.logged_steps(replica, constant(1.0).compiled(), names))

    assert ran.replica.core.scalars["preemptions"][0] > 0
    assert len(computed) == len(simulated) > 100
    for ours, theirs in zip(computed, simulated, strict=True):
        assert ours == theirs
    assert (ran.replica.core.requests == replica.core.requests).all(), "lengths, counts and clocks"
    assert (ran.replica.core.requests["status"] == FINISHED).all()


def _settings(layout: str) -> Settings:
    base = CONTIGUOUS if layout == "contiguous" else PAGED
    return replace(
        base,
        async_scheduling=layout == "async",
        max_model_len=512,
        max_num_seqs=24,
        max_num_batched_tokens=256,
        skip=False,
    )
