"""The simulator beside a run of vLLM 0.19.0 on an RTX 4090, and the formats such runs come in."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kvplan.calibration.imports import import_folder
from kvplan.calibration.observed import Observed
from kvplan.calibration.overlay import overlay
from kvplan.calibration.read_observed import read_observed
from kvplan.calibration.validate import Validation, scenario_of, trace_of, validate_observed
from kvplan.errors import InputError
from kvplan.timing import write_profile

RUN = "traces/llmservingsim/RTX4090_Llama-3.1-8B"
INPUT = "traces/llmservingsim/sharegpt-llama-3.1-8b-300-sps10.hash16.jsonl"


@pytest.fixture(scope="module")
def validation(shared_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Validation:
    path = tmp_path_factory.mktemp("profile") / "rtx4090.json"
    write_profile(import_folder(shared_data / "profiles" / "llmservingsim-rtx4090-llama-3.1-8b"), path)
    return validate_observed(read_observed(shared_data / RUN), shared_data / INPUT, {"timing": {"profile": str(path)}})


def errors_of(validation: Validation) -> dict[str, float]:
    return {f"{f.measure} {f.rank}".strip(): f.error for f in validation.comparison.figures if f.error is not None}


class TestRtx4090:
    """300 ShareGPT requests, KV cache saturated for 70 s, half an hour of preemptions; nothing tuned."""

    def test_mean_tpot_is_within_a_percent(self, validation: Validation) -> None:
        assert abs(errors_of(validation)["tpot_s mean"]) < 0.01

    @pytest.mark.parametrize("figure", ["ttft_s mean", "ttft_s p99", "e2e_s mean", "e2e_s p99", "tpot_s p99"])
    def test_latencies_are_within_a_percent_and_a_half(self, validation: Validation, figure: str) -> None:
        assert abs(errors_of(validation)[figure]) < 0.015

    def test_makespan_and_throughput_are_within_a_percent(self, validation: Validation) -> None:
        assert abs(errors_of(validation)["makespan_s"]) < 0.01
        assert abs(errors_of(validation)["output_tokens_per_s"]) < 0.01

    def test_the_pool_fills_as_it_did(self, validation: Validation) -> None:
        kv = validation.comparison.kv_used
        assert abs(kv["predicted_mean"] - kv["observed_mean"]) < 0.02
        assert kv["rms_difference"] < 0.05
        assert abs(errors_of(validation)["peak_running"]) < 0.05

    def test_the_settings_come_from_the_run_itself(self, validation: Validation) -> None:
        scenario = validation.scenario
        assert (scenario.cache.num_gpu_blocks_override, scenario.scheduler.max_num_batched_tokens) == (2588, 2048)
        assert scenario.scheduler.async_scheduling is True

    def test_the_document_has_the_fields_that_others_read(self, validation: Validation) -> None:
        document = json.loads(json.dumps(validation.as_json(), allow_nan=False))
        for measure in ("ttft_s", "tpot_s", "e2e_s"):
            for rank in ("mean", "p50", "p90", "p99"):
                figure = document[measure][rank]
                assert figure["error"] == pytest.approx(figure["predicted"] / figure["observed"] - 1)
        for name in ("makespan_s", "output_tokens_per_s", "peak_running"):
            assert set(document[name]) == {"predicted", "observed", "error"}

    def test_the_picture_lays_both_over_each_other(self, validation: Validation) -> None:
        drawn = overlay(validation)
        assert [trace.name for trace in drawn.data].count("observed") == 6
        assert [trace.name for trace in drawn.data].count("predicted") == 6


def test_the_run_reads_as_it_was_measured(shared_data: Path) -> None:
    observed = read_observed(shared_data / RUN)
    assert len(observed) == 300
    assert observed.peak_running == 49
    assert observed.makespan_s == pytest.approx(183.57, abs=0.01)
    assert observed.statistics("tpot_s")["mean"] == pytest.approx(0.032447, abs=1e-6)
    assert observed.settings["gpu"] == "NVIDIA GeForce RTX 4090"


def test_overrides_win_over_the_run(shared_data: Path) -> None:
    scenario = scenario_of(read_observed(shared_data / RUN), {"cache.num_gpu_blocks_override": 3400, "gpu": "l40s"})
    assert (scenario.cache.num_gpu_blocks_override, scenario.gpu) == (3400, "l40s")


@pytest.mark.parametrize(
    ("driver", "name"), [("NVIDIA H100 80GB HBM3", "h100-sxm"), ("Tesla T4", "t4"), ("NVIDIA L40S", "l40s")]
)
def test_the_drivers_name_of_a_gpu_is_understood(driver: str, name: str) -> None:
    observed = Observed("run", "made", settings={"model": "llama-3.1-8b", "gpu": driver})
    assert scenario_of(observed, {}).gpu == name


def test_a_gpu_that_is_not_in_the_catalogue_has_to_be_given() -> None:
    observed = Observed("run", "made", settings={"model": "llama-3.1-8b", "gpu": "NVIDIA Nonesuch 9000"})
    with pytest.raises(InputError, match=r"not in the catalogue.*\n  hint: --gpu NAME"):
        scenario_of(observed, {})


def test_a_trace_of_another_run_is_refused(shared_data: Path, tmp_path: Path) -> None:
    observed = read_observed(shared_data / RUN)
    lines = (shared_data / INPUT).read_text().splitlines()
    (tmp_path / "short.jsonl").write_text("\n".join(lines[:299]))
    with pytest.raises(InputError, match="the trace has 299 requests, the results 300"):
        trace_of(observed, tmp_path / "short.jsonl")
    longer = [lines[0].replace('"input_length":2358', '"input_length":2359'), *lines[1:]]
    (tmp_path / "longer.jsonl").write_text("\n".join(longer))
    with pytest.raises(InputError, match="not the same run"):
        trace_of(observed, tmp_path / "longer.jsonl")


def test_vllm_bench_leaves_failed_requests_out(shared_data: Path) -> None:
    observed = read_observed(shared_data / "formats" / "vllm_bench_serve_detailed.json")
    assert observed.prompt_tokens.tolist() == [512, 188]
    np.testing.assert_allclose(observed.arrival_s, [0.0, 0.22])
    np.testing.assert_allclose(observed.measured["ttft_s"], [0.192, 0.013])
    np.testing.assert_allclose(observed.measured["tpot_s"], [0.0115, 0.010])
    assert observed.notes == ("1 failed requests are left out",)


def test_a_bench_without_details_still_has_its_means(shared_data: Path) -> None:
    observed = read_observed(shared_data / "formats" / "vllm_bench_serve_summary_only.json")
    assert len(observed) == 0
    assert observed.statistics("ttft_s") == pytest.approx({"mean": 0.1025, "p50": 0.1025, "p99": 0.1902})
    with pytest.raises(InputError, match="give the run's input with --trace"):
        trace_of(observed, None)


def test_sglang_does_not_say_when_requests_arrive(shared_data: Path) -> None:
    observed = read_observed(shared_data / "formats" / "sglang_bench_serving.jsonl")
    assert (observed.format, observed.arrival_s) == ("SGLang bench_serving", None)
    np.testing.assert_allclose(observed.measured["e2e_s"], [0.215, 0.023])


def test_guidellm_times_are_by_its_own_clock(shared_data: Path) -> None:
    observed = read_observed(shared_data / "formats" / "guidellm_benchmarks_v2.json")
    assert observed.measured["ttft_s"][0] == pytest.approx(0.197, abs=1e-6)
    assert observed.measured["e2e_s"][0] == pytest.approx(0.997, abs=1e-6)
    assert observed.measured["tpot_s"][0] == pytest.approx(0.8 / 63, abs=1e-6)


def test_a_scrape_names_the_pool_and_its_gauges(shared_data: Path) -> None:
    observed = read_observed(shared_data / "formats" / "vllm_metrics.prom")
    assert observed.settings["cache.num_gpu_blocks_override"] == 573
    assert (observed.peak_running, observed.series["kv_used"].tolist()) == (4.0, [0.25])
    assert observed.counters == {"preemptions": 0.0}


def test_two_scrapes_make_a_histogram_of_what_lies_between(tmp_path: Path) -> None:
    """4 requests before, 10 more between: 8 below 0.1 s and 2 below 0.5 s, 2 s in all."""
    name = "vllm:time_to_first_token_seconds"

    def scrape(low: int, high: int, total: float) -> str:
        return (
            f'{name}_bucket{{le="0.1",engine="0"}} {low}\n{name}_bucket{{engine="0",le="0.5"}} {high}\n'
            f'{name}_bucket{{le="+Inf",engine="0"}} {high}\n{name}_sum{{engine="0"}} {total}\n'
            f'vllm:num_requests_running{{engine="0"}} {high}\n'
        )

    (tmp_path / "metrics-10.prom").write_text(scrape(4, 4, 1.0))
    (tmp_path / "metrics-25.prom").write_text(scrape(12, 14, 3.0))
    observed = read_observed(tmp_path)
    found = observed.statistics("ttft_s")
    assert found["mean"] == pytest.approx(0.2)
    assert (found["p50"], found["p90"]) == (pytest.approx(0.0625), pytest.approx(0.3))
    assert observed.series["t_s"].tolist() == [0.0, 15.0]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "holds no JSON object"),
        ('{"a": 1}', "not a format that is understood"),
        ('{"ttfts": [0.1]}\n{broken', r"run\.json:2: --observed: not JSON"),
        ('{"benchmarks": []}', "holds no successful request"),
    ],
)
def test_what_is_no_run_is_refused(text: str, told: str, tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text(text)
    with pytest.raises(InputError, match=told):
        read_observed(tmp_path / "run.json")


def test_a_run_that_names_no_model_asks_for_it(tmp_path: Path) -> None:
    document: dict[str, Any] = {
        "ttfts": [0.1],
        "itls": [[0.1]],
        "input_lens": [5],
        "output_lens": [2],
        "start_times": [0.0],
    }
    (tmp_path / "run.json").write_text(json.dumps(document))
    with pytest.raises(InputError, match=r"does not name its model\n  hint: --model"):
        validate_observed(read_observed(tmp_path / "run.json"))
