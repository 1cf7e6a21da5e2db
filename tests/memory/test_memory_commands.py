"""``kvplan memory``, ``reconcile``, ``models`` and ``gpus`` as a person calls them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kvplan.cli import main

FIELDS = [
    "total_gib",
    "requested_gib",
    "weights_gib",
    "non_torch_gib",
    "activation_gib",
    "cuda_graphs_gib",
    "kv_cache_gib",
    "kv_bytes_per_token",
    "bytes_per_block",
    "num_gpu_blocks",
    "kv_cache_size_tokens",
    "max_concurrency",
]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    def call(*arguments: str) -> tuple[int, str, str]:
        capsys.readouterr()
        code = main(list(arguments))
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return call


def test_memory_as_json_has_the_promised_fields(run: Callable[..., tuple[int, str, str]]) -> None:
    code, out, err = run("memory", "--model", "llama-3.1-8b", "--gpu", "h100-sxm", "--max-model-len", "8K", "--json")
    summary = json.loads(out)
    assert (code, err) == (0, "")
    assert list(summary)[: len(FIELDS)] == FIELDS
    terms = sum(summary[name] for name in FIELDS[2:6])
    assert summary["requested_gib"] - terms == pytest.approx(summary["kv_cache_gib"])
    assert summary["settings"]["max_model_len"] == 8192


def test_memory_as_a_table(run: Callable[..., tuple[int, str, str]]) -> None:
    code, out, _ = run("memory", "gemma-3-27b", "h100", "--for-requests", "2", "--at-length", "4096")
    assert code == 0
    for words in ("weights", "activation peak", "CUDA graphs", "usable", "by the other definition", "± "):
        assert words in out
    assert "--num-gpu-blocks-override" in out


def test_every_term_can_be_given(run: Callable[..., tuple[int, str, str]]) -> None:
    given = {"total": 80.0, "weights": 16.0, "non-torch": 1.0, "activation": 2.0, "cuda-graphs": 1.0}
    flags = [word for name, gib in given.items() for word in (f"--{name}-gib", str(gib))]
    code, out, _ = run("memory", "llama-3.1-8b", "h100", *flags, "--gpu-memory-utilization", "0.9", "--json")
    summary = json.loads(out)
    assert code == 0
    assert summary["kv_cache_gib"] == pytest.approx(80 * 0.9 - 16 - 1 - 2 - 1)
    assert {name for name, origin in summary["origins"].items() if origin == "given"} == {
        "total",
        "weights",
        "non_torch",
        "activation",
        "cuda_graphs",
    }


def test_what_does_not_fit_ends_with_3_and_a_way_out(run: Callable[..., tuple[int, str, str]]) -> None:
    code, out, err = run("memory", "deepseek-v3", "h100", "-tp", "2", "--max-model-len", "32K")
    assert code == 3
    assert "weights" in out
    assert "tensor_parallel_size 16" in out
    assert "tensor_parallel_size 16" in err
    code, out, err = run("memory", "llama-3.1-70b", "h100", "-tp", "2", "--json")
    summary = json.loads(out)
    assert code == 3
    assert summary["feasible"] is False
    assert summary["would_start"]["tensor_parallel_size"] == 4
    assert summary["would_start"]["max_model_len"] < 131_072
    assert "needs 8192 blocks" in err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["llama-3.1-8c", "h100"], "nearest: llama-3.1-8b"),
        (["llama-3.1-8b", "h1000"], "nearest: h100"),
        (["llama-3.1-8b"], "which GPU?"),
        ([], "which model?"),
        (["llama-3.1-8b", "h100", "--kv-cache-dtype", "fp9"], "unknown KV cache type"),
        (["llama-3.1-8b", "h100", "--max-model-len", "long"], "not a number"),
        (["llama-3.1-8b", "h100", "--quantization", "fp3"], "unknown quantization"),
        (["llama-3.1-8b", "h100", "--engine-name", "tgi"], "unknown engine"),
        (["llama-3.1-8b", "h100", "--at-length", "10"], "--for-requests"),
        (["llama-3.1-8b", "h100", "--pp-layer-partition", "1,x"], "separated by commas"),
        (["llama-3.1-8b", "h100", "-pp", "2", "--pp-layer-partition", "1,2"], "sum to 32 layers"),
        (["llama-3.1-8b", "{memory_gib: 24}"], "a custom GPU needs it"),
    ],
)
def test_what_is_not_understood_ends_with_2(
    arguments: list[str], words: str, run: Callable[..., tuple[int, str, str]]
) -> None:
    code, out, err = run("memory", *arguments)
    assert (code, out) == (2, "")
    assert words in err


def test_types_and_quantization_on_the_command_line(run: Callable[..., tuple[int, str, str]]) -> None:
    """Llama-3.1-8B logged 29.98 GiB in float32 and 8.49 under --quantization fp8."""

    def weights(*flags: str) -> float:
        return float(json.loads(run("memory", "llama-3.1-8b", "h100", *flags, "--json")[1])["weights_gib"])

    assert weights("--dtype", "float32") == pytest.approx(29.98, rel=0.001)
    assert weights("--quantization", "fp8") == pytest.approx(8.49, rel=0.001)


LOG = """\
INFO 04-22 16:06:59 [core.py:1] Initializing a V1 LLM engine (v0.19.0) with config: \
model='meta-llama/Llama-3.1-8B-Instruct', dtype=torch.bfloat16, max_seq_len=8192, tensor_parallel_size=1
INFO 04-22 16:07:22 [w.py:1] Model loading took 14.99 GiB memory and 7.41 seconds
DEBUG 04-22 16:07:30 [w.py:2] Memory profiling takes 17.96 seconds. Total non KV cache memory: 17.12GiB; torch peak \
memory increase: 1.89GiB; non-torch forward increase memory: 0.25GiB; weights memory: 14.99GiB.
INFO 04-22 16:07:31 [w.py:3] Available KV cache memory: 58.11 GiB
INFO 04-22 16:07:31 [k.py:1] GPU KV cache size: 476,016 tokens
INFO 04-22 16:07:31 [k.py:2] Maximum concurrency for 8,192 tokens per request: 58.11x
"""


def test_reconcile_reads_saves_and_predicts(tmp_path: Path, run: Callable[..., tuple[int, str, str]]) -> None:
    log, kept = tmp_path / "server.log", tmp_path / "measured.yaml"
    log.write_text(LOG)
    flags = ("--gpu", "h100", "--gpu-memory-utilization", "0.95", "--save", str(kept))
    code, out, err = run("reconcile", str(log), *flags)
    assert (code, err) == (0, "")
    assert "the figures agree" in out
    code, out, _ = run("reconcile", str(log), *flags, "--json")
    summary = json.loads(out)
    pool = next(term for term in summary["terms"] if term["name"] == "kv_cache")
    assert summary["verdict"] == "agrees"
    assert abs(pool["error"]) < 0.001
    code, out, _ = run(
        "memory", "llama-3.1-8b", "h100", "--overrides", str(kept), "--engine-version", "0.19.0",
        "--gpu-memory-utilization", "0.95", "--max-model-len", "8192", "--json",
    )  # fmt: skip
    assert json.loads(out)["num_gpu_blocks"] == pytest.approx(29_751, rel=0.001)


def test_reconcile_takes_structured_reports(tmp_path: Path, run: Callable[..., tuple[int, str, str]]) -> None:
    report: dict[str, Any] = {
        "id": "r",
        "model": "meta-llama/Llama-3.1-8B-Instruct",
        "gpu": "1x H100 80GB (79.19 GiB)",
        "tp": 1,
        "pp": 1,
        "block_size": 16,
        "reported": {"available_kv_gib": 58.11, "kv_tokens": 476_016, "gpu_blocks": 29_751},
    }
    path = tmp_path / "report.json"
    path.write_text(json.dumps([report, {**report, "reported": {}}]))
    code, out, _ = run("reconcile", str(path), "--json")
    rows = json.loads(out)
    assert (code, [row["verdict"] for row in rows]) == (0, ["agrees", "nothing to check"])
    path.write_text("[1]")
    assert run("reconcile", str(path))[0] == 2


def test_reconcile_of_nothing(tmp_path: Path, run: Callable[..., tuple[int, str, str]]) -> None:
    (tmp_path / "empty.log").write_text("")
    code, _, err = run("reconcile", str(tmp_path / "empty.log"))
    assert code == 2
    assert "no start-up line" in err
    assert run("reconcile", str(tmp_path / "none.log"))[0] == 2


def test_models_and_gpus(run: Callable[..., tuple[int, str, str]]) -> None:
    code, out, _ = run("models", "--json")
    rows = {row["name"]: row for row in json.loads(out)}
    assert code == 0
    assert rows["deepseek-v3"]["kv_bytes_per_token"] == 70_272
    assert "llama-3.1-8b" in run("models")[1]
    assert "128256" in run("models", "llama-3.1-8b")[1]
    assert json.loads(run("gpus", "--json")[1])[0]["source"]
    assert "h100-sxm" in run("gpus")[1]
