"""The shipped scenarios: each still lies as far from its real trace as its comment says, and that is not far."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
import yaml

from kvplan.trace import read_trace, synthesize
from kvplan.trace.fit import Closeness, closeness, figures
from kvplan.trace.generator_yaml import closeness_lines

WORKLOADS = Path(__file__).resolve().parents[2] / "workloads"
FITTED = {
    "azure-conversation": "azure-2023/AzureLLMInferenceTrace_conv.csv",
    "azure-code": "azure-2023/AzureLLMInferenceTrace_code.csv",
    "mooncake": "mooncake/conversation_trace.jsonl",
}


def scenario(name: str) -> dict:
    return yaml.safe_load((WORKLOADS / f"{name}.yaml").read_text())


def drawn(name: str):
    return synthesize(scenario(name)["workload"]["synthetic"])


def comment(name: str) -> list[str]:
    return [line[2:] for line in (WORKLOADS / f"{name}.yaml").read_text().splitlines() if line.startswith("# ")]


def test_there_are_five():
    assert sorted(path.stem for path in WORKLOADS.glob("*.yaml")) == [
        "alpaca",
        "azure-code",
        "azure-conversation",
        "mooncake",
        "sharegpt",
    ]


@pytest.mark.parametrize("name", FITTED)
def test_fitted_workloads_say_how_far_they_are(data, name):
    rows = closeness(read_trace(data(f"traces/{FITTED[name]}")), drawn(name))
    assert [line for line in closeness_lines(rows) if line not in comment(name)] == []
    off = {row.figure: abs(row.relative) for row in rows}
    assert (
        max(off[f"{side} {figure}"] for side in ("prompt", "output") for figure in ("mean", "p50", "p90", "p99")) < 0.01
    )
    assert off["rate (1/s)"] < 0.01
    assert off["cv of gaps"] < 0.05
    if name == "mooncake":
        assert off["prefix hit rate (tokens)"] < 0.03


@pytest.mark.parametrize(("name", "rate"), [("sharegpt", 2.0), ("alpaca", 30.0)])
def test_the_papers_workloads_follow_its_figure_11(data, name, rate):
    published = json.loads(data("reference/paper_fig11.json").read_text())
    spec = scenario(name)["workload"]["synthetic"]
    trace = drawn(name)
    for side, key, column in (
        ("prompt", "input", trace.prompt_tokens),
        ("output", "output", trace.output_tokens),
    ):
        figure = published[f"{name}_{key}"]
        assert spec[side]["histogram"] == {part: figure[part] for part in ("lo", "hi", "counts")}
        assert column.mean() == pytest.approx(figure["printed_mean"], rel=0.015)
        assert f"{side} mean" in "".join(comment(name))
    assert (trace.prompt_tokens + trace.output_tokens).max() <= 2048
    assert (len(trace) - 1) / trace.span_s == pytest.approx(rate, rel=1e-3)
    gaps = np.diff(trace.arrival_s)
    assert gaps.std() / gaps.mean() == pytest.approx(1, abs=0.05)


def test_sharegpt_says_how_far_a_later_cut_is(data):
    real = figures(read_trace(data("traces/etalon/sharegpt_8k_filtered_stats_llama2_tokenizer.csv")))
    mine = figures(drawn("sharegpt"))
    rows = [
        Closeness(f"{side} {at}", real[f"{side} {at}"], mine[f"{side} {at}"])
        for side in ("prompt", "output")
        for at in ("mean", "p50", "p90", "p99")
    ]
    assert [line for line in closeness_lines(rows) if line not in comment("sharegpt")] == []


def test_the_demo_has_about_twenty_thousand_requests_and_a_contiguous_variant():
    document = scenario("azure-conversation")
    assert (document["model"], document["gpu"], len(drawn("azure-conversation"))) == (
        "llama-3.1-8b",
        "h100-sxm",
        20_000,
    )
    assert document["variants"][0]["cache"]["layout"] == "contiguous"


def test_no_workload_names_a_machine_or_an_address():
    for path in WORKLOADS.glob("*.yaml"):
        assert not re.search(r"https?://|/work|/opt|/home", path.read_text())
