"""vLLM 0.33.0's own scheduler and block pool, step for step: tokens, queues, free blocks, preemptions, prefix hits,
physical block ids, ends."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kvplan.core.check import check
from kvplan.core.replica import Replica
from tests.conftest import SHARED_DATA
from tests.core.reference import first_difference, read_log, repeat_step, settings_of, workload_of

REFERENCE = SHARED_DATA / "reference"
STEPS = sorted((REFERENCE / "vllm_0.33_steps").glob("*.json.gz"))
REAL = sorted((REFERENCE / "vllm_0.33_real_traces").glob("azure-*.json.gz"))


def test_all_reference_runs_are_found(shared_data: Path) -> None:
    assert (len(STEPS), len(REAL)) == (32, 3)


@pytest.mark.parametrize("path", STEPS, ids=lambda path: path.name.removesuffix(".json.gz"))
def test_a_run_of_vllm_is_repeated_step_for_step(path: Path) -> None:
    log = read_log(path)
    workload, names = workload_of(log["requests"])
    replica = Replica(settings_of(log["config"]), workload)
    assert first_difference(log, replica, names) is None
    check(replica.core)
    s = replica.core.scalars[0]
    assert int(s["finished"]) == log["summary"]["finished"]
    assert int(s["preemptions"]) == log["summary"]["preemptions"]
    assert int(s["free_blocks"]) == log["summary"]["free_blocks_end"]


@pytest.mark.parametrize("path", REAL, ids=lambda path: path.name.removesuffix(".json.gz"))
def test_a_real_trace_runs_as_in_vllm(path: Path) -> None:
    log = read_log(path)
    workload, names = workload_of(log["requests"])
    replica = Replica(settings_of(log["config"]), workload)
    assert first_difference(log, replica, names) is None
    assert int(replica.core.scalars["preemptions"][0]) == log["summary"]["preemptions"]


def test_sharegpt_with_prefix_blocks_runs_as_in_vllm(shared_data: Path) -> None:
    """6,139 steps, 183 preemptions; prompts by the block hashes of the run's own input file."""
    log = read_log(shared_data / "reference/vllm_0.33_real_traces/sharegpt-300-prefix.json.gz")
    source = shared_data / "traces/llmservingsim/sharegpt-llama-3.1-8b-300-sps10.hash16.jsonl"
    rows = [json.loads(line) for line in source.read_text().splitlines()]
    hashes = {f"r{i}": row["hash_ids"] for i, row in enumerate(rows)}
    segments = [[(2 + block, 0, 16) for block in hashes[r["id"]]] for r in log["requests"]]
    workload, names = workload_of(log["requests"], segments)
    replica = Replica(settings_of(log["config"]), workload)
    assert first_difference(log, replica, names) is None
    s = replica.core.scalars[0]
    assert (int(s["preemptions"]), int(s["step"])) == (183, len(log["steps"]))


def test_the_state_is_sound_after_every_step_of_a_run(shared_data: Path) -> None:
    for name in ("03-tight-prefix", "12-hybrid-prefix", "15-async-prefix"):
        log = read_log(shared_data / f"reference/vllm_0.33_steps/{name}.json.gz")
        workload, names = workload_of(log["requests"])
        replica = Replica(settings_of(log["config"]), workload)
        for step in log["steps"]:
            repeat_step(replica, names, step["step"])
            check(replica.core)
