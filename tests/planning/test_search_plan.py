"""`kvplan plan` and `kvplan sweep` as they are typed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import yaml

from kvplan.cli import main

TRACE = {
    "requests": 150,
    "arrivals": {"rate": 10.0},
    "prompt": {"lognormal": {"median": 400, "sigma": 0.8, "max": 2500}},
    "output": {"lognormal": {"median": 60, "sigma": 0.8, "max": 400}},
}


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "scenario.yaml"
    path.write_text(
        yaml.safe_dump(
            {
                "model": "llama-3.1-8b",
                "gpu": "h100-sxm",
                "scheduler": {"max_model_len": 4096},
                "parallel": {"tensor_parallel_size": 1},
                "workload": {"synthetic": TRACE},
            }
        )
    )
    return path


def plan(capsys: pytest.CaptureFixture[str], trace: Path, *more: str) -> dict[str, Any]:
    assert main(["plan", str(trace), "--json", "--max-num-seqs", "64", *more]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_the_cheapest_of_two_gpus_comes_first_with_what_to_paste(capsys, trace: Path, tmp_path: Path) -> None:
    prices = ["--price", "h100-sxm=3", "--price", "l40s=1"]
    found = plan(
        capsys,
        trace,
        "--gpu",
        "h100-sxm",
        "--gpu",
        "l40s",
        *prices,
        "--slo",
        "ttft_s.p99=2",
        "-o",
        str(tmp_path / "out"),
    )
    best = found["best"]
    assert [best["gpu"], found["others"][0]["gpu"]] == ["l40s", "h100-sxm"]
    assert best["price_per_hour"] == best["gpus"] * 1.0
    assert best["measured"]["ttft_s.p99"] <= 2
    assert best["largest_rate"] >= found["rate"]
    assert "--max-num-seqs 64" in best["flags"]
    deployed = yaml.safe_load_all((tmp_path / "out" / "kubernetes.yaml").read_text())
    pods = next(iter(deployed))["spec"]
    assert pods["replicas"] == best["replicas"]
    assert pods["template"]["spec"]["containers"][0]["args"][:1] == ["MODEL"]
    composed = yaml.safe_load((tmp_path / "out" / "compose.yaml").read_text())["services"]["vllm"]
    assert "--max-num-seqs" in composed["command"]
    assert composed["deploy"]["replicas"] == best["replicas"]


def test_growth_and_survival_cost_gpus(capsys, trace: Path) -> None:
    slo = ["--slo", "tpot_s.p95=0.02", "--rate", "60"]
    least = plan(capsys, trace, *slo)["best"]["gpus"]
    assert plan(capsys, trace, *slo, "--growth", "3")["best"]["gpus"] > least
    assert plan(capsys, trace, *slo, "--survive", "1")["best"]["gpus"] == least + 1


def test_every_seed_and_window_must_be_carried(capsys, trace: Path) -> None:
    found = plan(capsys, trace, "--slo", "ttft_s.p99=2", "--seeds", "2", "--windows", "3")
    assert len(found["best"]["windows"]) == 6
    assert max(window["ttft_s.p99"] for window in found["best"]["windows"]) <= 2


@pytest.mark.parametrize(
    ("asked", "says", "nearest"),
    [
        (["--model", "llama-3.1-405b", "--tensor-parallel-size", "1"], "no memory is left", "tensor_parallel_size 16"),
        (["--slo", "tpot_s.p99=0.0001"], "a request by itself breaks the SLO", "the nearest that is kept"),
        (["--max-model-len", "1024"], "the longest request has", ""),
        (["--gpu", "a10", "--max-model-len", "4096", "--num-gpu-blocks-override", "20"], "", "what would start"),
        (["--rate", "5000", "--max-gpus", "1", "--slo", "ttft_s.p99=1"], "1 GPUs do not carry 5000", "carry"),
    ],
)
def test_what_cannot_work_ends_with_3_the_reason_and_the_nearest(capsys, trace, asked, says, nearest) -> None:
    assert main(["plan", str(trace), *asked]) == 3
    error = capsys.readouterr().err
    assert says in error
    assert nearest in error
    assert "Traceback" not in error


@pytest.mark.parametrize(
    ("asked", "field"),
    [
        (["--rate", "0"], "--rate"),
        (["--router", "fastest"], "--router"),
        (["--windows", "0"], "--windows"),
        (["--try", "cache.blok=1"], "--try"),
        (["--price", "a10=1"], "--price"),
        (["--price", "cheap"], "--price"),
        (["--windows", "50"], "--windows"),
        (["--try", "cache.kv_cache_dtype=fp9"], "cache"),
    ],
)
def test_what_is_not_understood_ends_with_2(capsys, trace, asked, field) -> None:
    assert main(["plan", str(trace), *asked]) == 2
    error = capsys.readouterr().err
    assert field in error
    assert "Traceback" not in error


def test_the_printed_plan_says_what_to_buy_and_how_much_is_left(capsys, trace: Path) -> None:
    assert main(["plan", str(trace), "--max-num-seqs", "64", "--slo", "ttft_s.p99=2"]) == 0
    out = capsys.readouterr().out
    assert "requests/s take 1 x h100-sxm: 1 replica of 1" in out
    assert "margin:" in out
    assert "vllm serve MODEL" in out


def test_sweep_prints_the_front_and_writes_the_table(capsys, trace: Path, tmp_path: Path) -> None:
    out = tmp_path / "swept"
    asked = ["sweep", str(trace), "--set", "scheduler.max_num_seqs=4,64", "--set", "cache.block_size=16,32"]
    assert main([*asked, "--workers", "1", "-o", str(out)]) == 0
    table = pd.read_parquet(out / "sweep.parquet")
    assert table["scheduler.max_num_seqs"].tolist() == [4, 4, 64, 64]
    assert table["pareto"].any()
    assert "Pareto front" in capsys.readouterr().out
    assert "plotly" in (out / "sweep.html").read_text(encoding="utf-8").lower()


@pytest.mark.parametrize(
    ("asked", "field"),
    [
        ([], "sweep"),
        (["--set", "cache.blok=1"], "cache.blok"),
        (["--set", "cache.block_size"], "--set"),
        (["--set", "cache.block_size=16", "--engine", "dask"], "--engine"),
        (["--set", "cache.block_size=16", "--figure", "gpu"], "--figure"),
        (["--set", "cache.block_size=16", "--metric", "beauty"], "beauty"),
        (["--set", "cache.block_size=16", "--address", "auto"], "--address"),
    ],
)
def test_a_sweep_that_is_not_understood_ends_with_2(capsys, trace, tmp_path, asked, field) -> None:
    assert main(["sweep", str(trace), "--workers", "1", "-o", str(tmp_path / "swept"), *asked]) == 2
    assert field in capsys.readouterr().err
