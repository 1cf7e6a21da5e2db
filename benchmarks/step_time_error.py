"""How right step times are, and what one costs.

    python benchmarks/step_time_error.py ../shared/data

The run of vLLM 0.19.0 on an RTX 4090 (300 ShareGPT requests) against the simulator with the profile of that
card and nothing tuned; interpolation errors of that profile; nanoseconds a call of each kind of model. Rows
go to ``results/step_time_error.json``.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from _rows import write_rows
from numba import njit

from kvplan.calibration.errors import leave_one_out
from kvplan.calibration.imports import import_folder
from kvplan.calibration.read_observed import read_observed
from kvplan.calibration.validate import validate_observed
from kvplan.catalog import load_gpu, load_model
from kvplan.core.step_time import STEP_LOAD, advance_decode, step_seconds
from kvplan.timing import constant, from_profile, roofline, write_profile

CALLS = 1_000_000
RUN = "traces/llmservingsim/RTX4090_Llama-3.1-8B"
INPUT = "traces/llmservingsim/sharegpt-llama-3.1-8b-300-sps10.hash16.jsonl"


@njit
def _walk(tables, load, calls):
    total = 0.0
    for _ in range(calls):
        total += step_seconds(tables, load)
        advance_decode(load)
    return total


def nanoseconds(tables: Any) -> float:
    """Of one call in a stretch of pure decode of 64 unequal rows; the best of three."""
    best = float("inf")
    for _ in range(3):
        load = np.zeros(1, STEP_LOAD)
        for name, value in (("rows", 64), ("tokens", 64), ("samples", 64), ("decode_rows", 64)):
            load[name] = value
        load["decode_context"], load["decode_context_max"] = 64 * 1000, 3000
        load["decode_context_squares"] = 64 * 1_300_000
        _walk(tables, load.copy(), 10)
        start = time.process_time()
        _walk(tables, load, CALLS)
        best = min(best, time.process_time() - start)
    return best / CALLS * 1e9


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    data = parser.parse_args().data
    profile = import_folder(data / "profiles" / "llmservingsim-rtx4090-llama-3.1-8b")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rtx4090.json"
        write_profile(profile, path)
        validation = validate_observed(read_observed(data / RUN), data / INPUT, {"timing": {"profile": str(path)}})
    rows: list[dict[str, Any]] = [
        {"what": "RTX 4090 run", "figure": f"{figure.measure} {figure.rank}".strip(), **figure.as_json()}
        for figure in validation.comparison.figures
    ]
    rows.append({"what": "RTX 4090 run", "figure": "kv_used", **validation.comparison.kv_used})
    rows += [{"what": "leave one out", **vars(error)} for error in leave_one_out(profile.rank(1))]
    model, gpu = load_model("llama-3.1-8b"), load_gpu("h100-sxm")
    kinds = {"constant": constant(0.01), "roofline": roofline(model, gpu), "measured": from_profile(profile, model)}
    for kind, times in kinds.items():
        rows.append({"what": "cost of a call", "kind": kind, "nanoseconds": round(nanoseconds(times.compiled()), 1)})
        print(rows[-1])
    print(write_rows("step_time_error", rows))


if __name__ == "__main__":
    main()
