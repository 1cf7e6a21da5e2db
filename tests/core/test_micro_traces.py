"""Tiny runs of vLLM 0.33.0's own scheduler, one rule a paragraph, told again by kvplan.

The file lists what happened, not what was asked for: requests and settings are reconstructed here from the heading
and the steps. Lines of a paragraph that the file leaves out are not compared, nor are the figures a line leaves out;
queues, preemptions, hits and ends that a line does not mention are empty in it.
"""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import pytest

from kvplan.core.check import check
from kvplan.core.replica import Replica
from kvplan.core.settings import CacheGroup, Settings
from kvplan.core.state import REFUSALS
from tests.conftest import SHARED_DATA
from tests.core.reference import repeat_step, workload_of

FILE = SHARED_DATA / "reference/vllm_0.33_micro_traces.txt"
SILENT = {"waiting": 0, "preempted": [], "finished": [], "hit_tokens": 0, "query_tokens": 0, "tokens": {}, "blocks": {}}
"""What a line means that does not mention a figure."""

HYBRID = (CacheGroup(), CacheGroup("sliding_window", 32))
A100_B50 = [("A", 100, 3), ("B", 50, 3)]
"""(name, prompt, output[, arrival step[, prefix id]])"""

STORIES: dict[str, tuple[dict[str, Any], list[tuple[Any, ...]]]] = {
    "R1": ({"num_gpu_blocks": 10}, [("0", 16, 1)]),
    "R1b": ({"num_gpu_blocks": 10}, [("0", 16, 2)]),
    "R1c": ({"num_gpu_blocks": 10}, [("0", 15, 3)]),
    "R2": ({"num_gpu_blocks": 10}, [("A", 40, 1), ("B", 20, 2), ("C", 70, 1, 3)]),
    "R3": (
        {"num_gpu_blocks": 12, "enable_prefix_caching": True},
        [("A", 40, 1), ("B", 20, 2), ("C", 150, 1, 3)],
    ),
    "R4": (
        {"num_gpu_blocks": 12, "enable_prefix_caching": True},
        [("A", 32, 1, 0, (32, "p")), ("B", 32, 1, 2, (32, "p")), ("C", 33, 1, 4, (32, "p"))],
    ),
    "R5": (
        {"num_gpu_blocks": 12, "enable_prefix_caching": True},
        [("A", 33, 20, 0, (33, "p")), ("B", 53, 1, 25, (33, "p"), 20)],
    ),
    "R5b": (
        {"num_gpu_blocks": 12, "enable_prefix_caching": True},
        [("A", 33, 1, 0, (33, "p")), ("B", 33, 1, 0, (33, "p"))],
    ),
    "R6": ({"num_gpu_blocks": 9}, [("A", 48, 40), ("B", 48, 40), ("C", 16, 40), ("D", 16, 40, 1)]),
    "R6b": ({"num_gpu_blocks": 9, "enable_prefix_caching": True}, [("A", 48, 40), ("B", 48, 40)]),
    "R7": ({"num_gpu_blocks": 40, "max_num_batched_tokens": 64}, A100_B50),
    "R7b": ({"num_gpu_blocks": 9, "max_num_batched_tokens": 64}, A100_B50),
    "R7c": ({"num_gpu_blocks": 9, "max_num_batched_tokens": 64, "scheduler_reserve_full_isl": False}, A100_B50),
    "R8": ({"num_gpu_blocks": 40, "long_prefill_token_threshold": 20}, A100_B50),
    "R9": ({"num_gpu_blocks": 9}, [("A", 64, 4), ("BIG", 100, 2, 1), ("S", 5, 2, 1)]),
    "R10": ({"num_gpu_blocks": 10, "async_scheduling": True}, [("A", 16, 3)]),
    "R11": ({"num_gpu_blocks": 30, "groups": HYBRID}, [("A", 100, 20)]),
    "R7d": ({"num_gpu_blocks": 9, "max_num_batched_tokens": 64}, [("A", 40, 3), ("B", 100, 2)]),
    "R7e": (
        {"num_gpu_blocks": 9, "max_num_batched_tokens": 64, "scheduler_reserve_full_isl": False},
        [("A", 40, 3), ("B", 100, 2)],
    ),
    "R12": ({"num_gpu_blocks": 9, "watermark": 0.25}, [("A", 64, 2), ("B", 48, 2)]),
    "R13": (
        {"num_gpu_blocks": 9, "scheduling_policy": "priority"},
        [("C", 16, 20), ("B", 48, 20), ("A", 48, 20)],
    ),
    "R14": ({"num_gpu_blocks": 40, "max_num_seqs": 2}, [(str(i), 10, 3) for i in range(5)]),
    # The heading says a prompt of 100; the steps are those of 60.
    "R15": (
        {"num_gpu_blocks": 40, "max_num_batched_tokens": 32},
        [("0", 8, 6), ("1", 8, 6), ("2", 8, 6), ("P", 60, 2, 1)],
    ),
}
REFUSED = {
    "R16": ({"num_gpu_blocks": 9}, [("A", 200, 5)]),
    "R17": ({"num_gpu_blocks": 9}, [("A", 120, 20)]),
}
"""Where vLLM is stuck for ever. kvplan differs by design: what can never fit is refused when it arrives."""


def paragraphs() -> list[tuple[str, list[dict[str, Any]]]]:
    found: list[tuple[str, list[dict[str, Any]]]] = []
    for line in FILE.read_text().splitlines() if FILE.exists() else []:
        if line.startswith("## "):
            found.append((line[3:].split()[0].rstrip(":"), []))
        elif line.strip():
            found[-1][1].append(ast.literal_eval(line.strip()))
    return found


def replica_of(chosen: dict[str, Any], asked: list[tuple[Any, ...]]) -> tuple[Replica, list[str]]:
    """A replica with the requests of a story; a priority of 1 is that of the last request (it is the victim)."""
    requests, segments = [], []
    for place, (name, prompt, output, *more) in enumerate(asked):
        arrival = more[0] if more else 0
        length, _ = more[1] if len(more) > 1 else (0, "")
        answer = more[2] if len(more) > 2 else 0  # tokens of the shared output that follow the shared prompt
        requests.append(
            {"id": name, "arrival_step": arrival, "prompt_len": prompt, "output_len": output, "priority": place}
        )
        segments.append([(7, 0, length)] * (length > 0) + [(1, 0, answer)] * (answer > 0))
    workload, names = workload_of(requests, segments)
    return Replica(Settings(**chosen), workload), names


def test_every_paragraph_has_its_story(shared_data: Path) -> None:
    assert {name for name, _ in paragraphs()} == STORIES.keys() | REFUSED.keys()


@pytest.mark.parametrize(("name", "lines"), [p for p in paragraphs() if p[0] in STORIES], ids=lambda p: str(p)[:6])
def test_a_micro_trace_is_repeated(name: str, lines: list[dict[str, Any]]) -> None:
    replica, names = replica_of(*STORIES[name])
    listed = {line["step"]: line for line in lines}
    for step in range(max(listed) + 1):
        ours = repeat_step(replica, names, step)
        check(replica.core)
        theirs = listed.get(step, {})
        expected = {key: theirs.get(key, SILENT.get(key)) for key in theirs.keys() | SILENT.keys()} if theirs else {}
        assert {key: ours[key] for key in expected} == expected


@pytest.mark.parametrize("name", REFUSED)
def test_where_vllm_is_stuck_kvplan_refuses_at_arrival(name: str) -> None:
    """R16 asks for more than the pool; R17 would outgrow it alone and preempt itself for ever."""
    replica, names = replica_of(*REFUSED[name])
    line = repeat_step(replica, names, 0)
    reason = REFUSALS[int(replica.core.requests["reason"][0])]
    assert (line["running"], line["waiting"], line["free_blocks"], replica.idle) == (0, 0, 8, True)
    assert reason == "needs more KV cache than the whole pool"
