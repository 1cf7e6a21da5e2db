"""Predicted beside executed on this machine's CPU: a small model, real traffic, paged and contiguous.

    python benchmarks/validate_cpu.py [--budget S] [--runs N] [--clock cpu|wall]

Calibrates a Llama of 4 million weights on one thread, replays 300 requests of the Azure conversation trace of 2023
(lengths an eighth, arrivals twenty times as fast; drawn by a generator of the same shape where the data is not beside
the repository), and holds the simulator against it. Exits 1 where plans differ given the measured step times, or
where the median error of throughput or of mean TPOT is above 10%.

Seconds are by default those that the process computed (``--clock cpu``): with one thread that is the wall clock of a
machine with nothing else to do, which a shared one is not.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks._rows import write_rows
from kvplan.calibration.calibrate import Calibration
from kvplan.calibration.deployment import calibrated_scenario
from kvplan.calibration.replay import ReplayValidation, execute, judge
from kvplan.calibration.samples import Samples
from kvplan.engine.engine import Engine, EngineOptions
from kvplan.engine.run import deploy
from kvplan.resolve import resolve
from kvplan.scenario import Scenario
from kvplan.timing.profile import write_profile
from kvplan.trace import read_trace
from kvplan.trace.edit import cut, scale
from kvplan.trace.trace import Trace

DATA = Path(__file__).resolve().parents[2] / "shared" / "data" / "traces" / "azure-2023"
REQUESTS = 300
LENGTHS, SPEED = 1 / 8, 20.0
MODEL = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 256, "intermediate_size": 688,
    "num_hidden_layers": 4, "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 32, "vocab_size": 2048,
    "max_position_embeddings": 2048, "torch_dtype": "float32",
}  # fmt: skip
SETTINGS = {
    "model": MODEL,
    "cache.block_size": 16,
    "cache.num_gpu_blocks_override": 161,
    "scheduler.max_model_len": 640,
    "scheduler.max_num_seqs": 16,
    "scheduler.max_num_batched_tokens": 256,
}
LAYOUTS: dict[str, dict[str, Any]] = {
    "paged": {},
    "contiguous": {"cache.layout": "contiguous", "cache.reservation": "max", "cache.placement": "first-fit"},
}
TOLERANCE = 0.10
JUDGED = (("output_tokens_per_s", ""), ("tpot_s", "mean"))
SHOWN = (
    *JUDGED,
    ("ttft_s", "mean"),
    ("e2e_s", "mean"),
    ("makespan_s", ""),
    ("peak_running", ""),
    ("peak_memory_bytes", ""),
)


def traffic() -> Trace:
    """The requests."""
    file = DATA / "AzureLLMInferenceTrace_conv.csv"
    if file.exists():
        trace = cut(read_trace(file), count=REQUESTS)
    else:
        print(f"{file.name} is not beside the repository: drawn by the generator of workloads/azure-conversation.yaml")
        from kvplan.scenario import load_scenario

        trace = cut(load_scenario("azure-conversation").trace(), count=REQUESTS)
    return scale(trace, prompt=LENGTHS, output=LENGTHS, speed=SPEED)


def runs(layout: str, trace: Trace, budget_s: float, count: int, clock: str) -> Iterator[ReplayValidation]:
    """Calibrates one layout and runs it so many times, by turns. The speed of a shared machine drifts by a quarter
    within a minute, so each run is judged by the profile that was measured right before and right after it."""
    options = EngineOptions("cpu", "torch")
    scenario = calibrated_scenario({**SETTINGS, **LAYOUTS[layout]}, options.torch_device())
    calibration = Calibration(scenario, options, budget_s, clock, block_sizes=())
    deployment, shape, pool = deploy(scenario)
    engine = Engine(shape, deployment.settings, pool, options)
    before = part(calibration, budget_s / (count + 1))
    for _ in range(count):
        executed = execute(engine, trace, clock)
        after = part(calibration, budget_s / (count + 1))
        calibration.samples = before.together(after)
        before = after
        profile = calibration.profile()
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "profile.json"
            write_profile(profile, path)
            timed = Scenario.build({**scenario.to_mapping(), "timing": {"profile": str(path)}})
            yield judge(timed, resolve(timed), profile, trace, executed)


def part(calibration: Calibration, budget_s: float) -> Samples:
    """A part of a calibration, measured by itself: every point at least once."""
    calibration.samples = Samples(calibration.samples.identity)
    calibration.measure(budget_s=budget_s)
    return calibration.samples


def named(figure: tuple[str, str]) -> str:
    return "_".join(filter(None, figure))


def line(row: dict[str, Any]) -> str:
    """A run as the terminal shows it."""
    speed, tpot, running = row["output_tokens_per_s"], row["tpot_s_mean"], row["peak_running"]
    return (
        f"{row['layout']:<11} {row['run']:>3}  {'equal' if row['plans_equal'] else 'DIFFER'}  {row['steps']:>6,}"
        f"  {speed['observed']:>8,.0f} {speed['error']:>+6.1%}  {tpot['observed'] * 1e3:>8.2f}  {tpot['error']:>+6.1%}"
        f"  {row['step_time_sum_error']:>+10.1%}  {row['ttft_s_mean']['error']:>+9.1%}"
        f"  {running['predicted']:>5.0f} / {running['observed']:.0f}"
    )


def row_of(layout: str, number: int, found: ReplayValidation) -> dict[str, Any]:
    document = found.as_json()
    figures = {named((m, rank)): document[m][rank] if rank else document[m] for m, rank in SHOWN}
    return {
        "case": "run", "layout": layout, "run": number, "clock": document["engine"]["clock"],
        "steps": document["plans_given_measured_times"]["steps"],
        "plans_equal": document["plans_given_measured_times"]["equal"],
        "step_time_sum_error": document["step_times"]["sum_s"]["error"],
        "step_time_median_error": document["step_times"]["median_error"],
        "preemptions": document["preemptions"], "kv_used": document["kv_used"], **figures,
        "wall_s": document["engine"]["wall_s"], "load_average": os.getloadavg()[0],
    }  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--budget", type=float, default=40.0, help="seconds a calibration")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--clock", choices=("cpu", "wall"), default="cpu")
    parser.add_argument("--no-write", action="store_true", help="leave benchmarks/results as it is")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    began, trace, rows, failed = time.monotonic(), traffic(), [], False
    print(f"{'layout':<11} run  plans   steps  tokens/s  error   TPOT ms   error  step times  TTFT mean  peak running")
    for layout in LAYOUTS:
        for number, found in enumerate(runs(layout, trace, arguments.budget, arguments.runs, arguments.clock), 1):
            row = row_of(layout, number, found)
            rows.append(row)
            print(line(row), flush=True)
            for difference in found.plans:
                print(f"  {difference}")
        mine = [row for row in rows if row["layout"] == layout]
        middle = {name: median(abs(row[name]["error"]) for row in mine) for name in map(named, JUDGED)}
        equal = all(row["plans_equal"] for row in mine)
        rows.append(
            {"case": "median", "layout": layout, "runs": len(mine), "plans_equal": equal, "absolute_error": middle}
        )
        failed |= not equal or max(middle.values()) > TOLERANCE
        print(f"{layout:<11} median error: " + ", ".join(f"{name} {value:.1%}" for name, value in middle.items()))
    print(f"{time.monotonic() - began:.0f} s; load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    if not arguments.no_write:
        print(f"wrote {write_rows('validate_cpu', rows)}")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
