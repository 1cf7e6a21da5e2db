"""Predicted against served: TTFT and TPOT of vLLM on H100, H200 and B200 at fixed concurrency.

    python benchmarks/endtoend_tpot.py ../shared/data/endtoend/vllm_ttft_tpot.csv [--fit]

Each row of the CSV is served in a closed loop (`closed_loop.py`) with the step times of the bare roofline
and, where ``aiconfigurator-core`` is installed, of its kernel tables. ``--fit`` fits the roofline's
coefficients on the dense models of two systems and judges them on the third, in turn. Rows go to
``results/endtoend_tpot.json``, the table of median absolute errors to standard output.
"""

from __future__ import annotations

import argparse
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import pandas as pd
from _rows import write_rows
from closed_loop import Served, closed_loop

from kvplan.calibration.aiconfigurator import import_aiconfigurator
from kvplan.catalog import ModelConfig, Quantization, load_gpu, load_model
from kvplan.core.step_time import TimingTables
from kvplan.errors import InputError
from kvplan.memory import plan_memory
from kvplan.timing import from_profile, roofline

ROUNDS = 10
"""Requests served for each place of the concurrency; load generators send about ten times as many."""
QUANTIZATION = {"fp8": Quantization("fp8", 8), "nvfp4": Quantization("nvfp4", 4)}
START = {
    "weight_read_efficiency": 0.8,
    "linear_flops_efficiency": 0.65,
    "kv_read_efficiency": 0.75,
    "layer_s": 12e-6,
    "host_step_s": 0.5e-3,
    "host_row_s": 5e-6,
    "all_reduce_s": 10e-6,
}
START_EXPERTS = {"expert_read_efficiency": 0.5, "expert_layer_s": 20e-6}
"""The coefficients that are fitted, and round guesses where the fit begins."""


@dataclass(frozen=True)
class Case:
    """One row: what was served where, and what was seen."""

    system: str
    model: str
    quantization: str
    tp: int
    concurrency: int
    prompt: int
    output: int
    ttft_s: float
    tpot_s: float
    overlapped: bool
    """Served by a vLLM that schedules asynchronously by default (0.14 and later)."""
    replicas_unclear: bool
    """Measured behind a router that may have spread the requests over several engines."""

    @property
    def config(self) -> ModelConfig:
        return _config(self.model, self.quantization)

    @property
    def running(self) -> int:
        """The requests that fit the pool at full length, at most the concurrency: the rest wait."""
        return min(self.concurrency, _pool_tokens(self) // (self.prompt + self.output))


def cases(path: Path) -> Iterator[Case]:
    """The rows of the CSV."""
    for row in pd.read_csv(path).itertuples():
        name = re.sub(r"-instruct.*$", "", str(row.model_path).rsplit("/", 1)[-1].lower())
        quantization = row.gemm_quant_mode if isinstance(row.gemm_quant_mode, str) else ""
        yield Case(
            system=str(row.system),
            model=name,
            quantization=str(quantization),
            tp=int(row.tp_size),
            concurrency=int(row.batch_size),
            prompt=int(row.isl),
            output=int(row.osl),
            ttft_s=row.silicon_ttft_ms * 1e-3,
            tpot_s=row.silicon_tpot_ms * 1e-3,
            overlapped=_release(row.backend_version) >= (0, 14),
            replicas_unclear="dynamo" in str(row.silicon_data_source) or "8B-Instruct-FP8" in str(row.model_path),
        )


def _release(version: Any) -> tuple[int, ...]:
    """The CSV leaves out the version of the oldest rows, of October 2025: vLLM 0.11."""
    return tuple(int(word) for word in version.split(".")[:2]) if isinstance(version, str) else (0, 11)


@cache
def _config(model: str, quantization: str) -> ModelConfig:
    config = load_model(model)
    # gpt-oss's experts are MXFP4 whatever the rest is called.
    return config if config.is_moe or not quantization else replace(config, quantization=QUANTIZATION[quantization])


@cache
def _pool_tokens_of(system: str, model: str, quantization: str, tp: int) -> int:
    plan = plan_memory(
        _config(model, quantization), load_gpu(system.replace("_", "-")), tensor_parallel_size=tp, max_model_len=16384
    )
    return plan.num_gpu_blocks * plan.block_size


def _pool_tokens(case: Case) -> int:
    return _pool_tokens_of(case.system, case.model, case.quantization, case.tp)


def roofline_tables(case: Case, coefficients: Mapping[str, float] | None = None) -> TimingTables:
    gpu = load_gpu(case.system.replace("_", "-"))
    times = roofline(
        case.config,
        gpu,
        tensor_parallel_size=case.tp,
        async_scheduling=case.overlapped,
        coefficients=coefficients,
    )
    return times.compiled()


@cache
def _kernel_tables(system: str, model: str, quantization: str, tp: int) -> TimingTables | None:
    config = _config(model, quantization)
    try:
        profile = import_aiconfigurator(system, config, tensor_parallel_sizes=(tp,))
    except InputError as error:
        print(f"no tables for {system} {model} {quantization}: {error}")
        return None
    return from_profile(profile, config, tensor_parallel_size=tp).compiled()


def kernel_tables(case: Case) -> TimingTables | None:
    return _kernel_tables(case.system, case.model, case.quantization, case.tp)


def serve(case: Case, tables: TimingTables, rounds: int = ROUNDS) -> Served:
    return closed_loop(
        tables,
        concurrency=case.running,
        prompt=case.prompt,
        output=case.output,
        requests=rounds * case.running,
    )


def loss(chosen: list[Case], coefficients: Mapping[str, float]) -> float:
    """Mean |log(predicted / observed)| of TPOT."""
    made: dict[Any, TimingTables] = {}
    total = 0.0
    for case in chosen:
        key = (case.system, case.model, case.quantization, case.tp, case.overlapped)
        if key not in made:
            made[key] = roofline_tables(case, coefficients)
        total += abs(math.log(serve(case, made[key], rounds=2).tpot_s / case.tpot_s))
    return total / len(chosen)


def fit(every: list[Case]) -> dict[str, float]:
    """All of `START` on the dense models, then how experts are read on the MoE ones."""
    clear = [case for case in every if not case.replicas_unclear]
    found = descend([case for case in clear if not case.config.is_moe], START, list(START))
    moe = [case for case in clear if case.config.is_moe]
    return descend(moe, {**found, **START_EXPERTS}, list(START_EXPERTS))


def descend(chosen: list[Case], start: Mapping[str, float], names: list[str]) -> dict[str, float]:
    """Coordinate descent in the logarithm, steps halved until they no longer help."""
    at = dict(start)
    best = loss(chosen, at)
    step = 0.4
    while step > 0.04:
        moved = False
        for name in names:
            for factor in (math.exp(step), math.exp(-step)):
                tried = {**at, name: at[name] * factor}
                if name.endswith("efficiency"):
                    tried[name] = min(tried[name], 0.95)
                value = loss(chosen, tried)
                if value < best - 1e-5:
                    at, best, moved = tried, value, True
                    break
        step = step if moved else step / 2
    return {name: float(f"{value:.3g}") for name, value in at.items()}


def grouped(rows: pd.DataFrame, kinds: list[str]) -> list[dict[str, Any]]:
    """Errors of TPOT by system, model, weights and TP, then over all dense models and all MoE."""
    keys = ["system", "model", "quantization", "tp"]
    groups = [(dict(zip(keys, key, strict=True)), group) for key, group in rows.groupby(keys, sort=True)]
    clear = rows[~rows["replicas_unclear"]]
    groups.append(({"system": "all", "model": "dense"}, clear[~clear["moe"]]))
    groups.append(({"system": "all", "model": "MoE"}, clear[clear["moe"]]))
    found = []
    for name, group in groups:
        row = {**name, "rows": len(group)}
        for kind in kinds:
            row[f"{kind}: median absolute error"] = round(float(group[kind].abs().median()), 4)
            row[f"{kind}: median error"] = round(float(group[kind].median()), 4)
        found.append(row)
    return found


def markdown(groups: list[dict[str, Any]], kinds: list[str]) -> str:
    """The same as a table: median absolute error, and in brackets the median signed one."""
    head = ["system", "model", "weights", "TP", "rows", *kinds]
    lines = ["| " + " | ".join(head) + " |", "|" + " --- |" * len(head)]
    for row in groups:
        cells = [
            row["system"],
            row["model"],
            row.get("quantization") or "bf16",
            str(row.get("tp", "")),
            str(row["rows"]),
        ]
        if row["system"] == "all":
            cells[2] = ""
        for kind in kinds:
            cells.append(f"{row[f'{kind}: median absolute error']:.1%} ({row[f'{kind}: median error']:+.1%})")
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("csv", type=Path)
    parser.add_argument("--fit", action="store_true", help="also fit on two systems and judge on the third")
    arguments = parser.parse_args()
    every = list(cases(arguments.csv))
    judged: dict[str, dict[str, float]] = {}
    if arguments.fit:
        for system in sorted({case.system for case in every}):
            judged[system] = fit([case for case in every if case.system != system])
            print(f"fitted without {system}: {judged[system]}", flush=True)
    rows = []
    for case in every:
        row = {
            **vars(case),
            "running": case.running,
            "moe": case.config.is_moe,
        }
        models = {"roofline": roofline_tables(case), "tables": kernel_tables(case)}
        if case.system in judged:
            models["roofline, fitted elsewhere"] = roofline_tables(case, judged[case.system])
        for kind, tables in models.items():
            if tables is None:
                continue
            served = serve(case, tables)
            row[kind] = served.tpot_s / case.tpot_s - 1
            row[f"{kind} TTFT"] = served.ttft_s / case.ttft_s - 1
        rows.append(row)
    frame = pd.DataFrame(rows)
    kinds = [kind for kind in ("roofline", "roofline, fitted elsewhere", "tables") if kind in frame]
    groups = grouped(frame, kinds)
    print(markdown(groups, kinds))
    for system, coefficients in judged.items():
        groups.append({"system": system, "coefficients fitted elsewhere": coefficients})
    write_rows("endtoend_tpot", groups)


if __name__ == "__main__":
    main()
