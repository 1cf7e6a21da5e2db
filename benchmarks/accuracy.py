"""How right kvplan is, against what others wrote and measured. Needs ``../shared/data``.

    python benchmarks/accuracy.py

Each row is computed here, except the served TPOT (``endtoend_tpot.py``, which needs aiconfigurator-core for one of its
columns) and the paper's figures (``reports/paper-memory``, remade by ``make studies`` and compared in CI).
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "kernels")]

DATA = ROOT.parent / "shared" / "data"

Row = dict[str, Any]


def row(what: str, against: str, expected: str, found: str, error: str = "") -> Row:
    return {"what": what, "against": against, "expected": expected, "kvplan": found, "error": error or None}


def step_logs() -> Iterator[Row]:
    """Every step of vLLM's own scheduler: tokens, queues, physical block ids, preemptions, prefix hits."""
    from kvplan.core.replica import Replica
    from tests.core.reference import first_difference, read_log, settings_of, workload_of

    for folder, what in (
        ("vllm_0.33_steps", "Scheduler and block ids, 32 random workloads"),
        ("vllm_0.33_real_traces", "Scheduler on real traces (Azure chat and code)"),
    ):
        logs = [read_log(path) for path in sorted((DATA / "reference" / folder).glob("*.json.gz"))]
        logs = [log for log in logs if "hash" not in json.dumps(log["config"]) and len(log["requests"]) != 300]
        steps = sum(len(log["steps"]) for log in logs)
        equal = 0
        for log in logs:
            workload, names = workload_of(log["requests"])
            equal += first_difference(log, Replica(settings_of(log["config"]), workload), names) is None
        yield row(what, "vLLM 0.33.0's own step logs", f"{len(logs)} runs, {steps:,} steps", f"{equal} runs equal")


def blocks() -> Iterator[Row]:
    from kvplan.catalog import load_gpu, load_model
    from kvplan.memory import plan_memory

    document = json.loads((DATA / "reference" / "vllm_0.33_capacity.json").read_text())
    right = 0
    for entry in document["models"]:
        plan = plan_memory(
            load_model(entry["model"]),
            load_gpu("h100-sxm"),
            kv_cache_memory_bytes=document["pool_gib"] * 2**30,
            block_size=document["block_size"],
            kv_cache_dtype=document["kv_cache_dtype"],
            max_num_batched_tokens=document["max_in_flight_tokens"],
            max_model_len=entry["max_model_len"],
            version="0.33",
        )
        found = plan.num_gpu_blocks, plan.bytes_per_block, round(plan.max_concurrency, 3)
        right += found == (entry["num_blocks"], entry["bytes_per_block"], entry["max_concurrency"])
    number = len(document["models"])
    yield row(
        "Blocks, bytes per block, concurrency of hybrid and MLA models",
        "vLLM 0.33.0's own arithmetic",
        f"{number} models",
        f"{right} exact",
    )


def pools() -> Iterator[Row]:
    from tests.memory.test_memory_predictions import GIB, LOGGED, planned

    errors = []
    for name, version, utilization, length, tp, logged, _ in LOGGED:
        errors.append(planned(name, version, utilization, length, tp).available_bytes / GIB / logged - 1)
    worst = max(errors, key=abs)
    median = sorted(abs(error) for error in errors)[len(errors) // 2]
    yield row(
        "KV pool from model, GPU and flags alone",
        f"{len(errors)} logged vLLM starts on an H100",
        "within 5%",
        f"median {median:.2%} off",
        f"worst {worst:+.2%}",
    )


def served() -> Iterator[Row]:
    from kvplan.calibration.imports import import_folder
    from kvplan.calibration.read_observed import read_observed
    from kvplan.calibration.validate import validate_observed
    from kvplan.timing import write_profile

    run = DATA / "traces" / "llmservingsim"
    with tempfile.TemporaryDirectory() as folder:
        profile = Path(folder) / "rtx4090.json"
        write_profile(import_folder(DATA / "profiles" / "llmservingsim-rtx4090-llama-3.1-8b"), profile)
        validation = validate_observed(
            read_observed(run / "RTX4090_Llama-3.1-8B"),
            run / "sharegpt-llama-3.1-8b-300-sps10.hash16.jsonl",
            {"timing": {"profile": str(profile)}},
        )
    for figure in validation.comparison.figures:
        if figure.error is None or (figure.rank not in ("mean", "p99", "") or figure.measure == "peak_running"):
            continue
        yield row(
            f"RTX 4090, Llama-3.1-8B, 300 ShareGPT requests: {figure.measure} {figure.rank}".strip(),
            "a real vLLM 0.19.0 run, block count given",
            f"{figure.observed:.4g}",
            f"{figure.predicted:.4g}",
            f"{figure.error:+.2%}",
        )


def end_to_end() -> Iterator[Row]:
    path = ROOT / "benchmarks" / "results" / "endtoend_tpot.json"
    for group in json.loads(path.read_text()):
        if group.get("system") != "all" or "rows" not in group:
            continue
        kind = str(group["model"])
        for model, title in (("roofline", "bare roofline"), ("tables", "aiconfigurator's kernel tables")):
            error = group.get(f"{model}: median absolute error")
            if error is not None:
                yield row(
                    f"TPOT, {kind}, {title}",
                    f"{group['rows']} served points on H100, H200, B200",
                    "–",
                    "–",
                    f"median {error:.1%}",
                )


def paper() -> Iterator[Row]:
    study = json.loads((ROOT / "reports" / "paper-memory" / "summary.json").read_text())
    for entry in study["rows"]:
        expected = entry.get("published", {}).get("concurrency.mean")
        if expected is None:
            continue
        found = entry["values"]["concurrency.mean"]
        yield row(
            f"Mean batch, {entry['name']}, ShareGPT",
            "PagedAttention paper, Figure 13",
            f"{expected:.2f}",
            f"{found:.2f}",
            f"{found / expected - 1:+.1%}",
        )


def main() -> None:
    if not DATA.is_dir():
        sys.exit(f"{DATA} is missing: the reference data lie beside the repository")
    from benchmarks._rows import write_rows

    rows = []
    for part in (step_logs, blocks, pools, served, end_to_end, paper):
        for found in part():
            print(" | ".join(str(value) for value in found.values()))
            rows.append(found)
    print(write_rows("accuracy", rows))


if __name__ == "__main__":
    main()
