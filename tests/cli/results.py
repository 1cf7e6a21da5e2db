"""A result as the simulator gives it, with round numbers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas as pd


class FakeResult:
    """Two runs of one request: paged and contiguous."""

    def __init__(self, *, refused: bool = False, names: tuple[str, ...] = ("base", "contiguous")) -> None:
        self.summary: dict[str, Any] = {
            "schema_version": 1,
            "kvplan": "0.1.0",
            "scenario": {
                "model": "llama-3.1-8b",
                "gpu": "h100-sxm",
                "engine": {"name": "vllm", "version": "0.33"},
            },
            "runs": [run(name, place, refused=refused) for place, name in enumerate(names)],
        }
        self.timeline = pd.DataFrame([bucket(name, t) for name in names for t in range(10)])

    @classmethod
    def simulate(cls, *_: Any, **__: Any) -> FakeResult:
        return cls()

    def save(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "summary.json").write_text(json.dumps(self.summary))


def bucket(name: str, t: int) -> dict[str, Any]:
    parts = {**where(t / 10, 0.05), "free": 0.95 - t / 10}
    return {"run": name, "t_s": t, "dt_s": 1, "allocated_max": t / 10, "running_max": 4 * t, "waiting_max": t, **parts}


def where(used: float, internal: float) -> dict[str, float]:
    rest = {"reserved": 0.0, "external": 0.0, "cached": 0.0, "free": 1 - used - internal}
    return {"used": used, "internal": internal, **rest}


def run(name: str, place: int = 0, *, refused: bool = False, **changes: float) -> dict[str, Any]:
    waste = 0.01 if place == 0 else 0.60
    latency = dict.fromkeys(("mean", "p50", "p90", "p95", "p99", "max"), None if refused else 0.25 * (1 + place))
    return {
        "name": name,
        "memory": {
            "pool_gib": 50.0,
            "num_gpu_blocks": 25601,
            "kv_bytes_per_token": 131072,
            "mean": where(0.3, waste),
            "peak": where(0.5, waste),
        },
        "concurrency": {"mean": 12.345, "peak": 40, "max_at_max_model_len": 3.1},
        "requests": {
            "total": 1,
            "finished": 0 if refused else 1,
            "refused": 1 if refused else 0,
            "refused_reasons": {"longer than the pool": 1} if refused else {},
            "preemptions": 0,
            "swaps": 0,
        },
        "latency": dict.fromkeys(("queue_s", "ttft_s", "itl_s", "tpot_s", "e2e_s", "normalized_s_per_token"), latency),
        "throughput": {
            "output_tokens_per_s": changes.get("throughput", 1000.0),
            "requests_per_s": 5.0,
            "goodput_requests_per_s": 4.5,
        },
        "notes": ["assumed something"],
        "prefix_cache": {"query_tokens": 0, "hit_tokens": 0, "hit_rate": None},
        "sim": {"steps": 128, "steps_skipped": 100, "wall_s": 0.01, "requests_per_wall_s": 100.0},
    }
