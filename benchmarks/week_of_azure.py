"""A week of the Azure 2024 shape: 44 million requests over 64 replicas, in bounded memory.

The 2024 trace itself is not part of this repository: its volume is kept, and the rest is assumed and stands here.
Lengths are those of the shipped fits of the 2023 traces, 17 of 44 requests being code; the rate swings threefold over
a day, and weekends have half of it.

    python benchmarks/week_of_azure.py                       # the whole: about half an hour of one core
    python benchmarks/week_of_azure.py --requests 1000000
"""

from __future__ import annotations

import argparse
import resource
import sys
import time
from collections.abc import Iterator

import numpy as np
from _rows import write_rows

from kvplan.cluster.spec import ClusterSpec, Server
from kvplan.cluster.stream import stream_cluster
from kvplan.cluster.traffic import Traffic
from kvplan.core.replica import Workload
from kvplan.resolve import resolve
from kvplan.scenario import Scenario, load_scenario
from kvplan.trace import synthesize

WEEK_S = 7 * 86_400.0
CODE_SHARE = 17 / 44
DRAWN = 200_000
"""Pairs of lengths drawn of each kind; a window draws from these."""


def lengths(name: str, seed: int) -> np.ndarray:
    """int64[DRAWN, 2]: prompts and outputs."""
    scenario = load_scenario(name)
    assert scenario.workload is not None
    assert scenario.workload.synthetic is not None
    trace = synthesize({**scenario.workload.synthetic, "requests": DRAWN, "seed": seed})
    return np.stack([trace.prompt_tokens, trace.output_tokens], axis=1)


def shape(t: np.ndarray) -> np.ndarray:
    """Relative rate at `t` seconds into a week that begins on a Monday."""
    day = np.where(t // 86_400 % 7 < 5, 1.0, 0.5)
    return day * (2 - np.cos(2 * np.pi * (t / 86_400 - 0.125))) / 2


def week(requests: int, window_s: float, seed: int) -> Iterator[Traffic]:
    """Windows of the week; a smaller number of requests is the beginning of the week at its full rate."""
    draws = np.random.default_rng(seed)
    kinds = [lengths("azure-conversation", seed), lengths("azure-code", seed)]
    begins = np.arange(0.0, WEEK_S, window_s)
    weights = shape(begins + window_s / 2)
    means = 44e6 * weights / weights.sum()
    left = requests
    for begin, mean in zip(begins, means, strict=True):
        count = min(left, int(draws.poisson(mean)))
        if count == 0:
            return
        left -= count
        arrivals = begin + np.sort(draws.random(count)) * window_s
        kind = (draws.random(count) < CODE_SHARE).astype(np.int64)
        pairs = np.stack([k[draws.integers(0, DRAWN, count)] for k in kinds])[kind, np.arange(count)]
        yield Traffic(Workload(arrivals, pairs[:, 0].copy(), pairs[:, 1].copy()), np.arange(count))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=44_000_000)
    parser.add_argument("--replicas", type=int, default=64)
    parser.add_argument("--price", type=float, default=2.5, help="of a GPU hour")
    parser.add_argument("--window", type=float, default=900.0, help="seconds")
    options = parser.parse_args()
    deployment = resolve(
        Scenario.build({"model": "llama-3.1-8b", "gpu": "h100-sxm", "scheduler": {"max_model_len": 16384}})
    )
    spec = ClusterSpec((Server.of(deployment),) * options.replicas)
    begin, cpu = time.perf_counter(), time.process_time()

    def say(done: int) -> None:
        if sys.stderr.isatty():
            print(f"\r{done:,} requests, {time.perf_counter() - begin:.0f} s", end="", file=sys.stderr)

    result = stream_cluster(spec, week(options.requests, options.window, seed=1), longest=16_384, progress=say)
    wall, cpu = time.perf_counter() - begin, time.process_time() - cpu
    millions = result.requests / 1e6
    row = {
        "requests": result.requests,
        "replicas": options.replicas,
        "finished": result.finished,
        "refused": result.refused,
        "wall_s": wall,
        "cpu_s": cpu,
        "cpu_s_per_million": cpu / millions,
        "peak_memory_gib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20,
        "simulated_days": result.span_s / 86_400,
        "gpu_hours": result.gpu_seconds / 3600,
        "price_per_gpu_hour": options.price,
        "cost_per_million_requests": result.gpu_seconds / 3600 * options.price / millions,
        "ttft_p99_s": result.latency["ttft_s"]["p99"],
        "tpot_p99_s": result.latency["tpot_s"]["p99"],
    }
    assert result.finished + result.refused == result.requests
    assert row["peak_memory_gib"] < 4
    for name, value in row.items():
        print(f"{name:28} {value:,.4g}" if isinstance(value, float) else f"{name:28} {value:,}")
    if options.requests == parser.get_default("requests"):
        write_rows("week_of_azure", [row])


if __name__ == "__main__":
    main()
