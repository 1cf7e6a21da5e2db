"""Every kernel variant compiled for four architectures: no spill, wide copies, matrix instructions.

In a process of its own, since interpreted functions cannot be compiled.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "kernels_aot.py"


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> list[dict]:
    path = tmp_path_factory.mktemp("aot") / "rows.json"
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, str(SCRIPT), "--json", str(path)], env=environment, capture_output=True, text=True
    )
    assert path.exists(), done.stderr
    return json.loads(path.read_text())


@pytest.mark.slow
def test_no_variant_has_a_fault(rows):
    assert [f"{row['variant']} on {row['target']} {fault}" for row in rows for fault in row["faults"]] == []


@pytest.mark.slow
def test_every_kernel_is_compiled_for_every_architecture(rows):
    kernels = {"decode_kernel", "join_kernel", "prefill_kernel", "mla_kernel", "write_kernel", "move_kernel"}
    targets = {"sm_80", "sm_90", "sm_100", "gfx942"}
    assert {(row["kernel"], row["target"]) for row in rows} == {(k, t) for k in kernels for t in targets}


@pytest.mark.slow
def test_the_paged_tile_costs_no_shared_memory_over_the_contiguous_one(rows):
    """The block table is pipelined in a few hundred bytes, so the indirection takes no program off a
    multiprocessor."""
    hopper = {row["variant"]: row for row in rows if row["target"] == "sm_90" and row["kernel"] == "decode_kernel"}
    paged = hopper["paged decode 32q8kv d128 bf16/bf16 B16"]
    contiguous = hopper["contiguous decode 32q8kv d128 bf16/bf16"]
    assert paged["shared_bytes"] - contiguous["shared_bytes"] < 1024
    assert paged["programs_per_sm"] == contiguous["programs_per_sm"]


def test_cpu_tensors_without_the_interpreter_are_refused_in_words():
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment["PYTHONPATH"] = str(SCRIPT.parents[1] / "kernels")
    script = "import torch as t, kvplan_kernels as k; k.copy_blocks(t.zeros(1, 2, 16), t.zeros(1, 2).long())"
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True)
    assert "source: must lie on a GPU; for a CPU set TRITON_INTERPRET=1" in done.stderr
