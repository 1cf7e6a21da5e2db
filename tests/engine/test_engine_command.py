"""`kvplan engine`: the same files as the simulator, and every refusal a sentence."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from kvplan.cli import main
from tests.engine.models import Pair

TIGHT = ["--max-model-len", "128", "--max-num-batched-tokens", "64", "--num-gpu-blocks-override", "30"]
BIG = "{name: big, memory_bytes: 3000000000000, hbm_bytes_per_s: 1e12, bf16_flops: 1e15}"
SCENARIO: dict[str, Any] = {
    "gpu": "h100-sxm",
    "requests": [
        {"id": "a", "arrival": 0.0, "prompt": 50, "output": 12},
        {"id": "b", "arrival": 0.0, "prompt": 40, "output": 9, "n": 2},
        {"id": "c", "arrival": 1000.0, "prompt": 90, "output": 5},
        {"id": "long", "arrival": 1000.0, "prompt": 127, "output": 5},
    ],
    "variants": [{"name": "contiguous", "cache": {"layout": "contiguous"}}],
}


@pytest.fixture
def scenario(tmp_path: Path, pairs: dict[str, Pair]) -> Path:
    path = tmp_path / "scenario.json"
    path.write_text(json.dumps({"model": str(pairs["qwen3"].folder), **SCENARIO}))
    return path


def test_it_writes_what_the_simulator_writes(
    scenario: Path, pairs: dict[str, Pair], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    weights = ["--weights", str(pairs["qwen3"].folder), "--threads", "1"]
    steps = ["--steps", str(tmp_path / "steps.jsonl")]
    assert main(["engine", str(scenario), *TIGHT, *weights, *steps, "-o", str(tmp_path / "real"), "--json"]) == 0
    summary = json.loads(capsys.readouterr().out)
    assert main(["simulate", str(scenario), *TIGHT, "-o", str(tmp_path / "simulated"), "--json"]) == 0
    simulated = json.loads(capsys.readouterr().out)

    real_files, simulated_files = (
        {path.name for path in (tmp_path / folder).iterdir()} for folder in ("real", "simulated")
    )
    assert real_files == simulated_files
    for real, other in zip(summary["runs"], simulated["runs"], strict=True):
        assert set(real) - {"engine"} == set(other)
        assert real["requests"] == other["requests"]
        assert real["requests"]["finished"] == 3
    requests = pd.read_parquet(tmp_path / "real" / "requests.parquet")
    assert requests["finish_s"].max() > 1000.0, "the wait is on the clock, though nobody sat through it"
    base = summary["runs"][0]["engine"]
    assert base["memory"]["pool_bytes"] == 30 * 16 * summary["runs"][0]["memory"]["kv_bytes_per_token"]
    assert base["memory"]["at_end"]["allocated_bytes"] > base["memory"]["pool_bytes"]
    lines = [json.loads(line) for line in (tmp_path / "steps.jsonl").read_text().splitlines()]
    assert len(lines) >= base["steps"]
    assert sum(sum(line["tokens"].values()) for line in lines) == 50 + 11 + 40 + 2 * 8 + 90 + 4


@pytest.mark.parametrize(
    ("options", "code", "said"),
    [
        (["--device", "tpu"], 2, "--device: unknown device"),
        (["--attention", "flash"], 2, "--attention: unknown attention backend"),
        (["--time-scale", "0"], 2, "--time-scale: must be a finite number above 0"),
        (["--weights", "nowhere"], 2, "has no *.safetensors file"),
        (["--model", "gemma-2-9b"], 2, "the engine does not run model type 'gemma2'"),
        (["--model", "llama-3.1-405b", "--gpu", BIG], 3, "does not fit into"),
        (["--kv-cache-dtype", "int8"], 2, "the engine has no such cache"),
        (["--tensor-parallel-size", "2"], 2, "the engine runs on one device"),
    ],
)
def test_refusals(scenario: Path, capsys: pytest.CaptureFixture[str], options: list[str], code: int, said: str) -> None:
    assert main(["engine", str(scenario), *TIGHT, *options]) == code
    assert said in capsys.readouterr().err
