"""`kvplan.simulate` on an hour of real traffic, layout by layout; and what a result promises."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import kvplan
from kvplan.memory import MemoryOverrides, save_overrides

AZURE = "traces/azure-2023/AzureLLMInferenceTrace_conv.csv"
SPLIT = ["used", "reserved", "internal", "external", "cached", "free"]
LAYOUTS: dict[str, dict[str, Any]] = {
    "paged": {"enable_prefix_caching": False},
    "paged, prefix caching": {"enable_prefix_caching": True},
    "paged, block 1": {"block_size": 1, "enable_prefix_caching": False},
    "paged, block 256": {"block_size": 256},
    **{
        f"contiguous, {reservation}, {placement}": {
            "layout": "contiguous",
            "reservation": reservation,
            "placement": placement,
        }
        for reservation in ("max", "pow2", "oracle", "grow")
        for placement in ("buddy", "first-fit", "best-fit")
    },
}


def scenario(trace: Path, cache: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {
        "model": "llama-3.1-8b",
        "gpu": "h100-sxm",
        "cache": cache,
        "scheduler": {"max_model_len": 16384},
        "workload": {"file": str(trace)},
        **more,
    }


@pytest.mark.parametrize("name", LAYOUTS)
def test_an_hour_of_real_traffic_is_accounted_for(shared_data: Path, name: str) -> None:
    """19,366 requests: the parts of the pool add up at every recorded moment, and nobody is lost."""
    result = kvplan.simulate(scenario(shared_data / AZURE, LAYOUTS[name]))
    run = result.summary["runs"][0]
    parts = result.timeline[SPLIT].to_numpy()
    assert parts.min() >= 0
    np.testing.assert_allclose(parts.sum(axis=1), 1.0, rtol=0, atol=1e-9)
    for moment in ("mean", "peak"):
        assert sum(run["memory"][moment].values()) == pytest.approx(1.0, abs=1e-9)
    requests = run["requests"]
    assert requests["finished"] + requests["refused"] == requests["total"] == 19_366
    assert int(result.timeline["output_tokens"].sum()) == int(
        result.requests.loc[result.requests["status"] == "finished", "output_tokens"].sum()
    )


def test_the_parts_add_up_under_pressure(shared_data: Path) -> None:
    """A pool of 2,000 blocks: a long queue, preemptions, prefix hits evicted; the same sums."""
    cache = {"num_gpu_blocks_override": 2000}
    result = kvplan.simulate(scenario(shared_data / AZURE, cache, timing={"constant": 0.03}))
    assert result.summary["runs"][0]["requests"]["preemptions"] > 100
    np.testing.assert_allclose(result.timeline[SPLIT].to_numpy().sum(axis=1), 1.0, rtol=0, atol=1e-9)
    assert result.timeline[SPLIT].to_numpy().min() >= 0


def test_the_same_run_twice_gives_the_same_bytes(shared_data: Path, tmp_path: Path) -> None:
    folders = [tmp_path / "a", tmp_path / "b"]
    for folder in folders:
        kvplan.simulate(scenario(shared_data / AZURE, {})).save(folder)
    for name in ("requests.parquet", "timeline.parquet", "memory_map.parquet"):
        assert (folders[0] / name).read_bytes() == (folders[1] / name).read_bytes()
    first, second = (json.loads((folder / "summary.json").read_text()) for folder in folders)
    for summary in (first, second):
        for run in summary["runs"]:
            del run["sim"]["wall_s"], run["sim"]["requests_per_wall_s"]
    assert first == second


def test_single_steps_give_the_same_summary(shared_data: Path) -> None:
    asked = scenario(shared_data / AZURE, {}, workload={"file": str(shared_data / AZURE), "limit": 2000})
    skipped, single = (kvplan.simulate(asked, skip=skip).summary["runs"][0] for skip in (True, False))
    assert skipped["sim"]["steps_skipped"] > 0 == single["sim"]["steps_skipped"]
    assert skipped["sim"]["steps"] == single["sim"]["steps"]
    for part in ("requests", "prefix_cache"):
        assert skipped[part] == single[part]
    assert skipped["memory"]["mean"] == pytest.approx(single["memory"]["mean"], abs=1e-12)
    for metric, figures in skipped["latency"].items():
        assert figures == pytest.approx(single["latency"][metric], rel=1e-9), metric


def test_a_summary_can_be_fed_back(tmp_path: Path) -> None:
    asked = {
        "model": "llama-3.1-8b",
        "gpu": "h100-sxm",
        "requests": [{"arrival": 0.0, "prompt": 512, "output": 128}],
        "variants": [{"name": "contiguous", "cache": {"layout": "contiguous"}}],
    }
    first = kvplan.simulate(asked)
    again = kvplan.simulate(first.summary["scenario"])
    assert [run["latency"] for run in again.summary["runs"]] == [run["latency"] for run in first.summary["runs"]]


def test_latencies_are_what_the_definitions_say() -> None:
    """One request, steps of 10 ms: prefill, then two more tokens. Worked by hand."""
    asked = {
        "model": "llama-3.1-8b",
        "gpu": "h100-sxm",
        "timing": {"constant": 0.01},
        "requests": [{"arrival": 1.0, "prompt": 100, "output": 3}],
    }
    latency = kvplan.simulate(asked).summary["runs"][0]["latency"]
    means = {metric: figures["mean"] for metric, figures in latency.items()}
    assert means == pytest.approx(
        {
            "queue_s": 0.0,
            "ttft_s": 0.01,
            "itl_s": 0.01,
            "tpot_s": 0.01,
            "e2e_s": 0.03,
            "normalized_s_per_token": 0.01,
        }
    )
    assert latency["itl_s"]["p50"] == pytest.approx(0.01, rel=1 / 1024)


def test_a_step_log_has_the_words_of_vllm(tmp_path: Path) -> None:
    """Two requests in a pool of five usable blocks of 16; the log, line by line."""
    asked = {
        "model": "llama-3.1-8b",
        "gpu": "h100-sxm",
        "cache": {"num_gpu_blocks_override": 6, "enable_prefix_caching": False},
        "scheduler": {"max_model_len": 64},
        "timing": {"constant": 1.0},
        "requests": [
            {"id": "a", "arrival": 0.0, "prompt": 32, "output": 2},
            {"id": "b", "arrival": 0.0, "prompt": 33, "output": 1},
        ],
    }
    path = tmp_path / "steps.jsonl"
    kvplan.simulate(asked, steps=path)
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    words = ("t", "tokens", "running", "waiting", "free_blocks", "blocks", "finished", "free_after")
    assert [{word: line[word] for word in words} for line in lines] == [
        {
            "t": 0.0,
            "tokens": {"a": 32, "b": 33},
            "running": 2,
            "waiting": 0,
            "free_blocks": 0,
            "blocks": {"a": [1, 2], "b": [3, 4, 5]},
            "finished": ["b"],
            "free_after": 3,
        },
        {
            "t": 1.0,
            "tokens": {"a": 1},
            "running": 1,
            "waiting": 0,
            "free_blocks": 2,
            "blocks": {"a": [1, 2, 5]},
            "finished": ["a"],
            "free_after": 5,
        },
    ]


def test_what_can_never_run_is_refused_with_its_reason() -> None:
    asked = {
        "model": "llama-3.1-8b",
        "gpu": "h100-sxm",
        "cache": {"num_gpu_blocks_override": 9},
        "scheduler": {"max_model_len": 128},
        "requests": [
            {"arrival": 0.0, "prompt": 100, "output": 100},
            {"arrival": 0.0, "prompt": 100, "output": 20},
        ],
    }
    result = kvplan.simulate(asked)
    assert result.requests["status"].tolist() == ["refused", "finished"]
    assert result.summary["runs"][0]["requests"]["refused_reasons"] == {"prompt + output exceeds max_model_len": 1}


def test_measured_terms_size_the_pool_of_a_simulation(tmp_path: Path) -> None:
    """What `kvplan reconcile --save` keeps from a server's log: here 2 GiB of activations instead of the formula's."""
    asked = {"model": "llama-3.1-8b", "gpu": "h100-sxm", "requests": [{"arrival": 0.0, "prompt": 8, "output": 2}]}
    plain = kvplan.simulate(asked).summary["runs"][0]["memory"]["plan"]
    path = tmp_path / "measured.yaml"
    save_overrides(MemoryOverrides(activation_bytes=2 << 30, origin="a log"), path)
    measured = kvplan.simulate({**asked, "engine": {"memory_overrides": str(path)}}).summary["runs"][0]["memory"][
        "plan"
    ]
    assert measured["activation_bytes"] == 2 << 30 != plain["activation_bytes"]
    difference = measured["activation_bytes"] - plain["activation_bytes"]
    assert measured["kv_cache_bytes"] == plain["kv_cache_bytes"] - difference
