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

import numpy as np
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
FITTED = (
    "weight_read_efficiency",
    "linear_flops_efficiency",
    "kv_read_efficiency",
    "layer_s",
    "step_s",
    "row_s",
    "all_reduce_s",
)


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
            replicas_unclear="dynamo" in str(row.silicon_data_source) or "8B-Instruct-FP8" in str(row.model_path),
        )


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
    return roofline(case.config, gpu, tensor_parallel_size=case.tp, coefficients=coefficients).compiled()


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
        key = (case.system, case.model, case.quantization, case.tp)
        if key not in made:
            made[key] = roofline_tables(case, coefficients)
        total += abs(math.log(serve(case, made[key], rounds=2).tpot_s / case.tpot_s))
    return total / len(chosen)


def fit(chosen: list[Case]) -> dict[str, float]:
    """Coordinate descent in the logarithm, steps halved until they no longer help."""
    at = {term.name: term.value for term in roofline_terms() if term.name in FITTED}
    at["row_s"] = 5e-6
    best = loss(chosen, at)
    step = 0.4
    while step > 0.04:
        moved = False
        for name in FITTED:
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


def roofline_terms() -> tuple[Any, ...]:
    from kvplan.timing.coefficients import RooflineCoefficients

    return RooflineCoefficients().terms()


def table(rows: pd.DataFrame, kinds: list[str]) -> str:
    """Median absolute error of TPOT by system, model, quantization and TP, as Markdown."""
    groups = rows.groupby(["system", "model", "quantization", "tp"], sort=True)
    lines = ["| system | model | weights | TP | rows | " + " | ".join(kinds) + " |", "|" + " --- |" * (5 + len(kinds))]
    for (system, model, quantization, tp), group in groups:
        errors = [f"{group[kind].abs().median():.1%} ({group[kind].median():+.1%})" for kind in kinds]
        lines.append(
            f"| {system} | {model} | {quantization or 'bf16'} | {tp} | {len(group)} | " + " | ".join(errors) + " |"
        )
    for label, chosen in (
        ("all dense", rows[~rows["moe"] & ~rows["replicas_unclear"]]),
        ("all MoE", rows[rows["moe"]]),
    ):
        errors = [f"{chosen[kind].abs().median():.1%} ({chosen[kind].median():+.1%})" for kind in kinds]
        lines.append(f"| **{label}** | | | | {len(chosen)} | " + " | ".join(errors) + " |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("csv", type=Path)
    parser.add_argument("--fit", action="store_true", help="also fit on two systems and judge on the third")
    arguments = parser.parse_args()
    every = list(cases(arguments.csv))
    judged: dict[str, dict[str, float]] = {}
    if arguments.fit:
        dense = [case for case in every if not case.config.is_moe and not case.replicas_unclear]
        for system in sorted({case.system for case in dense}):
            judged[system] = fit([case for case in dense if case.system != system])
            print(f"fitted without {system}: {judged[system]}")
        print(f"fitted on all: {fit(dense)}")
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
    print(table(frame, kinds))
    write_rows("endtoend_tpot", frame.replace({np.nan: None}).to_dict("records"))


if __name__ == "__main__":
    main()
