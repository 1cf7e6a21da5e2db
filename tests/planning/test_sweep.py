"""Sweeps: the table, and that a sweep that was killed comes to the same one."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pandas as pd
import pytest

from kvplan.errors import InputError
from kvplan.planning.sweep import here, pareto, points, run_point, sweep
from kvplan.planning.sweep_engines import Processes, Ray
from kvplan.scenario import Scenario

SWEEP = {"cache.block_size": [16, 32], "scheduler.max_num_seqs": [4, 16], "cache.gpu_memory_utilization": [0.05, 0.9]}


def scenario(requests: int = 200, **more: object) -> Scenario:
    return Scenario.build(
        {
            "model": "llama-3.1-8b",
            "gpu": "h100-sxm",
            "scheduler": {"max_model_len": 4096},
            "workload": {"synthetic": {"requests": requests, "arrivals": {"rate": 20.0}, "prompt": 200, "output": 40}},
            "sweep": SWEEP,
            **more,
        }
    )


def test_a_row_a_point_and_those_that_cannot_run_say_why(tmp_path: Path) -> None:
    table = sweep(scenario(), tmp_path, here)
    assert table["point"].tolist() == list(range(8))
    assert table[list(SWEEP)].to_dict("records") == points(scenario())
    ran = table["cache.gpu_memory_utilization"] == 0.9
    assert table["status"].tolist() == ["done" if r else "cannot run" for r in ran]
    assert table.loc[~ran, "reason"].str.contains("no memory is left").all()
    pd.testing.assert_frame_equal(pd.read_parquet(tmp_path / "sweep.parquet"), table)


def test_a_row_is_that_of_simulate() -> None:
    import kvplan

    one = scenario(sweep={"cache.block_size": [32]})
    run = kvplan.simulate(scenario(sweep={}, cache={"block_size": 32})).summary["runs"][0]
    row = run_point(one, 0)
    assert row["ttft_s.p99"] == run["latency"]["ttft_s"]["p99"]
    assert row["steps"] == run["sim"]["steps"]


def test_interrupted_and_resumed_it_runs_only_what_is_missing(tmp_path: Path) -> None:
    whole = sweep(scenario(), tmp_path / "whole", here)

    class Killed(Exception):
        pass

    def three_then_dead(one: Scenario, numbers: list[int]):
        yield from here(one, numbers[:3])
        raise Killed

    with pytest.raises(Killed):
        sweep(scenario(), tmp_path / "parts", three_then_dead)
    ran: list[int] = []

    def noted(one: Scenario, numbers: list[int]):
        ran.extend(numbers)
        return here(one, numbers)

    pd.testing.assert_frame_equal(sweep(scenario(), tmp_path / "parts", noted), whole)
    assert ran == [3, 4, 5, 6, 7]


@pytest.mark.slow
def test_killed_without_warning_and_resumed_it_gives_the_same_table(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "kvplan", "sweep", "azure-conversation", "--workers", "2", "--set"]
    command += ["scheduler.max_num_seqs=64,96,128,160,192,224,256,288", "-o"]
    root = Path(__file__).resolve().parents[2]
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    subprocess.run([*command, str(whole)], cwd=root, check=True, timeout=500)
    killed = subprocess.Popen([*command, str(parts)], cwd=root, start_new_session=True)
    for _ in range(3000):
        if len(list(parts.glob("points/*.parquet"))) >= 2:
            break
        time.sleep(0.05)
    os.killpg(killed.pid, signal.SIGKILL)
    killed.wait()
    assert 2 <= len(list(parts.glob("points/*.parquet"))) < 8
    subprocess.run([*command, str(parts)], cwd=root, check=True, timeout=500)
    pd.testing.assert_frame_equal(pd.read_parquet(parts / "sweep.parquet"), pd.read_parquet(whole / "sweep.parquet"))


@pytest.mark.slow
def test_a_pool_of_processes_gives_the_same_table(tmp_path: Path) -> None:
    one = sweep(scenario(), tmp_path / "one", here)
    pd.testing.assert_frame_equal(sweep(scenario(), tmp_path / "two", Processes(2)), one)


@pytest.mark.slow
def test_a_local_ray_cluster_gives_the_same_table(tmp_path: Path) -> None:
    ray = pytest.importorskip("ray", reason="the extra ray is not installed")
    ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False)
    try:
        table = sweep(scenario(), tmp_path / "ray", Ray())
    finally:
        ray.shutdown()
    pd.testing.assert_frame_equal(table, sweep(scenario(), tmp_path / "one", here))


def test_another_sweeps_folder_is_refused(tmp_path: Path) -> None:
    sweep(scenario(sweep={"cache.block_size": [16]}), tmp_path, here)
    with pytest.raises(InputError, match="holds another sweep"):
        sweep(scenario(requests=201, sweep={"cache.block_size": [16]}), tmp_path, here)


def test_nothing_to_sweep_is_said() -> None:
    with pytest.raises(InputError, match="names nothing to sweep"):
        points(scenario(sweep={}))


def test_the_front_is_what_nothing_beats() -> None:
    table = pd.DataFrame(
        {
            "point": range(6),
            "status": ["done"] * 5 + ["cannot run"],
            "cost": [1.0, 2.0, 2.0, 3.0, 1.0, None],
            "wait": [9.0, 5.0, 6.0, 5.0, 9.0, None],
        }
    )
    assert pareto(table, "cost", "wait").tolist() == [True, True, False, False, True, False]
