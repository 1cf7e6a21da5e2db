"""How fast one core simulates, layout by layout, and how the cost grows.

Each case runs in a process of its own, so that its peak memory is its own. The trace is the Azure conversation trace
of 2023 repeated to the asked length (``../shared/data``; where that is missing, the generator of
``workloads/azure-conversation.yaml``, which states its distance to it); prefix caching also runs on shared
prefixes: of those lengths, and of ``workloads/mooncake.yaml`` with its prompts of 12,000 tokens. Seconds are of the
process's own CPU: replay alone, and whole (reading nothing, summing up everything). Started alone; other work on the
machine makes it slower.

    python benchmarks/simulate_speed.py [--requests 1000000]
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "kernels")]

AZURE = ROOT.parent / "shared" / "data" / "traces" / "azure-2023" / "AzureLLMInferenceTrace_conv.csv"
SINGLE_STEPS = 50_000

CASES: dict[str, dict[str, Any]] = {
    "paged": {"enable_prefix_caching": False},
    "paged, every step singly": {"enable_prefix_caching": False, "skip": False},
    "paged, prefix caching": {"enable_prefix_caching": True},
    "paged, prefix caching, Azure lengths, half of the prompt tokens shared": {"enable_prefix_caching": True},
    "paged, prefix caching, Mooncake lengths and prefixes": {"enable_prefix_caching": True},
    "contiguous, max": {"layout": "contiguous", "reservation": "max", "enable_prefix_caching": False},
    "contiguous, oracle": {"layout": "contiguous", "reservation": "oracle", "enable_prefix_caching": False},
    "contiguous, grow": {"layout": "contiguous", "reservation": "grow", "enable_prefix_caching": False},
}


def repeated(trace: Any, requests: int) -> Any:
    """A trace played again and again, until it has ``requests`` requests. Shared content stays shared."""
    from kvplan.core.replica import Workload
    from kvplan.simulation import workload_of

    base = workload_of(trace)
    times = -(-requests // len(base))
    span = float(base.arrival_s[-1]) + float(np.diff(base.arrival_s).mean())
    arrival = np.concatenate([base.arrival_s + span * i for i in range(times)])[:requests]
    shared: dict[str, Any] = {}
    if len(base.segment_ptr):
        counts = np.tile(np.diff(base.segment_ptr), times)[:requests]
        pointer = np.concatenate([[0], np.cumsum(counts)])
        # Each round has contents of its own, as new conversations would.
        stride = int(base.segment_source.max(initial=0)) + 1
        source = np.concatenate([base.segment_source + stride * i for i in range(times)])
        end = int(pointer[-1])
        shared = {
            "segment_ptr": pointer.astype(np.int64),
            "segment_source": source[:end],
            "segment_start": np.tile(base.segment_start, times)[:end],
            "segment_tokens": np.tile(base.segment_tokens, times)[:end],
            "output_source": np.full(requests, -1, np.int64),
        }
    return Workload(
        arrival_s=arrival,
        prompt_tokens=np.tile(base.prompt_tokens, times)[:requests],
        output_tokens=np.tile(base.output_tokens, times)[:requests],
        **shared,
    )


def with_prefixes(workload: Any, requests: int) -> Any:
    """Seven requests in ten begin with one of 6 texts of late, for four fifths of their prompt: Mooncake-like
    prefixes on other lengths (half of the prompt tokens hit)."""
    from dataclasses import replace as changed

    rng = np.random.default_rng(0)
    shares = rng.random(requests) < 0.7
    length = np.where(shares, (workload.prompt_tokens * 0.8).astype(np.int64), 0)
    source = np.arange(requests) // 256 * 8 + rng.integers(0, 6, requests)
    kept = length > 0
    return changed(
        workload,
        segment_ptr=np.concatenate([[0], np.cumsum(kept)]).astype(np.int64),
        segment_source=source[kept],
        segment_start=np.zeros(int(kept.sum()), np.int64),
        segment_tokens=length[kept],
        output_source=np.full(requests, -1, np.int64),
    )


def measure(case: str, requests: int) -> dict[str, Any]:
    """One case, in this process."""
    from kvplan.core.replica import Replica
    from kvplan.metrics.summary import run_summary
    from kvplan.metrics.tables import requests_table
    from kvplan.resolve import resolve
    from kvplan.scenario import load_scenario
    from kvplan.trace import read_trace
    from kvplan.trace.trace import Trace

    mooncake = "Mooncake" in case
    name = "mooncake" if mooncake else "azure-conversation"
    scenario = load_scenario(str(ROOT / "workloads" / f"{name}.yaml"), {})
    scenario = scenario.runs()[0][1]
    trace = read_trace(AZURE) if AZURE.exists() and not mooncake else scenario.trace()
    deployment = resolve(scenario)
    settings = replace(deployment.settings, **CASES[case])
    tables = deployment.timing.compiled()
    workload = repeated(trace, requests)
    if "shared" in case:
        workload = with_prefixes(workload, requests)
    Replica(settings, repeated(trace, 10)).run(tables)  # compiled, or read from the cache
    whole = time.process_time()
    replica = Replica(settings, workload)
    begin = time.process_time()
    replica.run(tables)
    seconds = time.process_time() - begin
    played = Trace(workload.arrival_s, workload.prompt_tokens, workload.output_tokens)
    table = requests_table("base", replica.core, played)
    run_summary("base", scenario, deployment, replica, table, seconds, [])
    s = replica.core.scalars[0]
    return {
        "case": case,
        "requests": requests,
        "seconds": seconds,
        "seconds_with_summary": time.process_time() - whole,
        "requests_per_s": requests / seconds,
        "peak_memory_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "steps": int(s["step"]),
        "steps_skipped": int(s["steps_skipped"]),
        "hit_rate": int(s["hit_tokens"]) / max(1, int(s["query_tokens"])),
        "finished": int(s["finished"]),
        "refused": int(s["refused"]),
    }


def in_a_process(*arguments: str, cache: str | None = None) -> dict[str, Any]:
    environment = os.environ | ({"XDG_CACHE_HOME": cache} if cache else {})
    command = [sys.executable, __file__, *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def starts() -> list[dict[str, Any]]:
    """From an empty cache, and again: wall-clock seconds until a ten-request run is done, imports included."""
    rows = []
    with tempfile.TemporaryDirectory() as cache:
        for case in ("first start (compiles)", "next start (from the cache)"):
            begin = time.perf_counter()
            in_a_process("--case", "paged", "--requests", "10", cache=cache)
            rows.append({"case": case, "requests": 10, "seconds": time.perf_counter() - begin})
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--requests", type=int, default=1_000_000)
    parser.add_argument("--case", choices=list(CASES), help="only this one, in this process; prints a JSON row")
    arguments = parser.parse_args()
    if arguments.case:
        print(json.dumps(measure(arguments.case, arguments.requests)))
        return
    from benchmarks._rows import write_rows

    rows = []
    for case in CASES:
        requests = min(arguments.requests, SINGLE_STEPS) if "singly" in case else arguments.requests
        rows.append(in_a_process("--case", case, "--requests", str(requests)))
        print(f"{case}: {rows[-1]['requests_per_s']:,.0f} requests/s, {rows[-1]['peak_memory_mib']:,.0f} MiB")
    sizes = [size for size in (10_000, 100_000) if size < arguments.requests]
    growth = [in_a_process("--case", "paged", "--requests", str(size)) for size in sizes] + [rows[0]]
    exponent = np.polyfit(np.log([r["requests"] for r in growth]), np.log([r["seconds"] for r in growth]), 1)[0]
    rows += [row | {"case": f"paged, {row['requests']:,}"} for row in growth[:-1]]
    rows[0]["growth_exponent"] = float(exponent)
    plain = next(row for row in rows if "singly" in row["case"])
    rows[0]["times_single_steps"] = rows[0]["requests_per_s"] / plain["requests_per_s"]
    print(f"growth exponent {exponent:.3f}; {rows[0]['times_single_steps']:.1f} times single steps")
    rows += starts()
    print(f"first start {rows[-2]['seconds']:.1f} s, next {rows[-1]['seconds']:.2f} s")
    print(write_rows("simulate_speed", rows))


if __name__ == "__main__":
    main()
