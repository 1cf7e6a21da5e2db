"""The command with the simulator behind it: small scenarios, whole answers."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Ended

Cli = Callable[..., Ended]
PARTS = ("used", "reserved", "internal", "external", "cached", "free")


def without_clocks(summary: dict[str, Any]) -> dict[str, Any]:
    summary = copy.deepcopy(summary)
    for run in summary["runs"]:
        for key in [key for key in run["sim"] if "wall" in key]:
            del run["sim"][key]
    return summary


def test_the_summary_adds_up_and_can_be_fed_back(kvplan: Cli, scenario_file: Path, tmp_path: Path) -> None:
    first = kvplan("simulate", scenario_file, "--json", "--max-model-len", "8K", "-o", tmp_path / "out")
    assert first.code == 0, first.err
    summary = json.loads(first.out)
    assert [run["name"] for run in summary["runs"]] == ["base", "contiguous"]
    for run in summary["runs"]:
        assert run["requests"]["finished"] + run["requests"]["refused"] == run["requests"]["total"] == 1
        for moment in ("mean", "peak"):
            assert sum(run["memory"][moment][part] for part in PARTS) == pytest.approx(1, abs=1e-9)
    assert summary["scenario"]["scheduler"]["max_model_len"] == 8192
    again = kvplan("simulate", tmp_path / "out" / "summary.json", "--json")
    assert again.code == 0, again.err
    assert without_clocks(json.loads(again.out))["runs"] == without_clocks(summary)["runs"]


def test_the_results_folder_holds_what_the_table_names_and_nothing_of_anyone_else_is_touched(
    kvplan: Cli, scenario_file: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "notes.txt").write_text("mine")
    earlier = {"schema_version": 1, "kvplan": "0.0.1", "scenario": {}, "runs": []}
    (out / "summary.json").write_text(json.dumps(earlier))
    ended = kvplan("simulate", scenario_file, "-o", out)
    assert ended.code == 0, ended.err
    assert f"results: {out}   report: {out / 'report.html'}\n" in ended.out
    assert (out / "notes.txt").read_text() == "mine"
    assert json.loads((out / "summary.json").read_text())["runs"]
    assert {"requests.parquet", "timeline.parquet", "report.html"} <= {path.name for path in out.iterdir()}
    assert not [path.name for path in out.iterdir() if "tmp" in path.name]


def test_a_line_a_step(kvplan: Cli, scenario_file: Path, tmp_path: Path) -> None:
    ended = kvplan("simulate", scenario_file, "--steps", tmp_path / "steps.jsonl")
    assert ended.code == 0, ended.err
    steps = [json.loads(line) for line in (tmp_path / "steps.jsonl").read_text().splitlines()]
    assert sum(sum(step["tokens"].values()) for step in steps) == 512 + 128 - 1
    assert [step["finished"] for step in steps if step["finished"]] == [["0"]]


def test_when_every_request_is_refused_the_json_still_says_why(kvplan: Cli, tmp_path: Path) -> None:
    (tmp_path / "s.yaml").write_text(
        "model: llama-3.1-8b\ngpu: h100-sxm\nscheduler: {max_model_len: 1024}\n"
        "requests: [{prompt: 4096, output: 16}, {prompt: 1025, output: 1}]\n"
    )
    ended = kvplan("simulate", tmp_path / "s.yaml", "--json")
    assert ended.code == 0, ended.err
    requests = json.loads(ended.out)["runs"][0]["requests"]
    assert (requests["total"], requests["refused"], requests["finished"]) == (2, 2, 0)
    assert sum(requests["refused_reasons"].values()) == 2
    assert "Nothing ran: all 2 requests were refused: " in kvplan("simulate", tmp_path / "s.yaml").out


def test_a_model_that_does_not_fit_ends_with_3_and_the_nearest_that_does(kvplan: Cli, scenario_file: Path) -> None:
    ended = kvplan("simulate", scenario_file, "--model", "llama-3.1-70b")
    assert (ended.code, ended.out) == (3, "")
    assert "hint:" in ended.err


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--model", "llama-3.1-8c"), ("--model: ", "llama-3.1-8b")),
        (("--gpu", "h100-smx"), ("--gpu: ", "h100-sxm")),
    ],
)
def test_an_unknown_name_lists_the_nearest(
    flags: tuple[str, ...], words: tuple[str, ...], kvplan: Cli, scenario_file: Path
) -> None:
    ended = kvplan("simulate", scenario_file, *flags)
    assert ended.code == 2
    assert all(word in ended.err for word in words), ended.err


def test_an_unknown_name_in_the_file_has_its_line(kvplan: Cli, scenario_file: Path) -> None:
    scenario_file.write_text(scenario_file.read_text().replace("h100-sxm", "h100-smx"))
    assert f"{scenario_file}:2:6: gpu: " in kvplan("simulate", scenario_file).err
