"""The diagnosis names the constraint that a case was built around; its numbers are what simulating gives."""

from __future__ import annotations

from typing import Any

import pytest

import kvplan
from kvplan.planning.diagnosis import diagnose
from kvplan.scenario import Scenario
from kvplan.scenario.merge import merged

from .cases import CASES, Case, deployment, requests


@pytest.fixture(scope="module")
def found() -> dict[str, dict[str, Any]]:
    return {case.name: diagnose(Scenario.build(case.scenario)) for case in CASES}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_it_names_what_binds(case: Case, found: dict[str, dict[str, Any]]) -> None:
    assert found[case.name]["binds"] == list(case.binds), case.why


@pytest.mark.parametrize("case", CASES[:7], ids=lambda case: case.name)
def test_the_gain_it_predicts_is_the_gain_of_simulating(case: Case, found: dict[str, dict[str, Any]]) -> None:
    best = next(change for change in found[case.name]["changes"] if change["best"] and change["overrides"])
    now = kvplan.simulate(Scenario.build(merged(case.scenario, best["overrides"]))).summary["runs"][0]
    was = kvplan.simulate(Scenario.build(case.scenario)).summary["runs"][0]
    assert best["output_tokens_per_s"] == now["throughput"]["output_tokens_per_s"]
    assert best["concurrency_gain"] == now["concurrency"]["mean"] / was["concurrency"]["mean"] - 1
    assert best["ttft_p99_s_gain"] == now["latency"]["ttft_s"]["p99"] / was["latency"]["ttft_s"]["p99"] - 1


def test_each_cause_has_its_own_sentence(found: dict[str, dict[str, Any]]) -> None:
    openings = {case.binds: found[case.name]["verdict"].split(":")[0].split(".")[0] for case in CASES}
    assert len(set(openings.values())) == len(openings)
    assert openings[()] == "Nothing holds this deployment back at this load"
    assert openings[("memory",)] == "Memory as such holds this deployment back"


def test_quantization_says_its_risk_and_paging_what_it_leaves(found: dict[str, dict[str, Any]]) -> None:
    rows = {row["key"]: row for row in found["extents of max_model_len"]["changes"]}
    assert "Quality may suffer" in rows["fp8"]["risk"]
    assert "the bytes of a token" in rows["paged"]["unchanged"]
    assert "holes" in rows["fp8"]["unchanged"]


def test_a_change_that_cannot_run_says_why_and_does_not_stop_the_others() -> None:
    scenario = deployment(requests(8, 64, 64), pool_tokens=1 << 14)
    scenario["model"] = {
        "num_hidden_layers": 4,
        "hidden_size": 512,
        "num_attention_heads": 3,
        "num_key_value_heads": 3,
        "head_dim": 64,
        "intermediate_size": 1024,
        "vocab_size": 1000,
        "max_position_embeddings": 4096,
    }
    rows = {row["key"]: row for row in diagnose(Scenario.build(scenario))["changes"]}
    assert rows["gpus"]["status"] == "cannot run"
    assert rows["gpus"]["outcome"]
    assert rows["fp8"]["status"] == "simulated"


def test_the_flags_hold_the_mend(found: dict[str, dict[str, Any]]) -> None:
    assert "--max-num-seqs 16" in found["four at a time in an empty pool"]["flags"]
    assert "--kv-cache-dtype fp8" in found["twice too small a pool"]["flags"]
    assert "--enable-prefix-caching" in found["one system prompt before every question"]["flags"]
