"""A trace on the engine and on the simulator: equal plans given measured times, errors of predicted ones."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="the engine needs torch: pip install 'kvplan[engine]'")

from kvplan.calibration.calibrate import calibrate  # noqa: E402
from kvplan.calibration.overlay import overlay  # noqa: E402
from kvplan.calibration.replay import Executed, ReplayValidation, execute, validate_replay  # noqa: E402
from kvplan.calibration.same_plans import differences  # noqa: E402
from kvplan.cli import main  # noqa: E402
from kvplan.engine.engine import Engine, EngineOptions  # noqa: E402
from kvplan.engine.run import deploy  # noqa: E402
from kvplan.errors import InputError  # noqa: E402
from kvplan.scenario import Scenario  # noqa: E402
from kvplan.simulation import workload_of  # noqa: E402
from tests.calibration.tiny import MODEL, SETTINGS  # noqa: E402

torch.set_num_threads(1)
CPU = EngineOptions("cpu", "torch")
REQUESTS = [
    {"arrival": 0.002 * i, "prompt": 5 + 7 * (i % 5), "output": 3 + 4 * (i % 6), "prefix": {"id": "s", "tokens": 4}}
    for i in range(20)
]
DEPLOYMENTS: dict[str, dict[str, Any]] = {
    "paged": {},
    "preempting": {"cache": {"num_gpu_blocks_override": 17}},
    "swapping": {"cache": {"num_gpu_blocks_override": 17, "swap_space": 1, "enable_prefix_caching": False},
                 "scheduler": {"preemption": "swap"}},
    "asynchronous": {"scheduler": {"async_scheduling": True}},
    "contiguous": {"cache": {"layout": "contiguous", "reservation": "grow", "placement": "best-fit"}},
    "static": {"cache": {"enable_prefix_caching": False}, "scheduler": {"batching": "static"}},
}  # fmt: skip


def scenario(profile: Path | None, kind: str = "paged") -> Scenario:
    base: dict[str, Any] = {
        "model": MODEL, "gpu": "h100-sxm", "requests": REQUESTS,
        "cache": {"block_size": 4, "num_gpu_blocks_override": 65},
        "scheduler": {"max_model_len": 64, "max_num_seqs": 4, "max_num_batched_tokens": 32},
    }  # fmt: skip
    for section, keys in DEPLOYMENTS[kind].items():
        base[section] = {**base[section], **keys}
    if profile is not None:
        base["timing"] = {"profile": str(profile)}
    return Scenario.build(base)


@pytest.fixture(scope="module")
def profile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("profile") / "profile.json"
    calibrate(path, SETTINGS, CPU, budget_s=0.01)
    return path


@pytest.fixture(scope="module")
def validation(profile: Path) -> ReplayValidation:
    return validate_replay(scenario(profile), CPU)


def executed(kind: str) -> tuple[Any, Any, Executed]:
    run = scenario(None, kind)
    deployment, shape, pool = deploy(run)
    trace = run.trace()
    return deployment.settings, workload_of(trace), execute(Engine(shape, deployment.settings, pool, CPU), trace)


class TestPlansGivenTheMeasuredTimes:
    @pytest.mark.parametrize("kind", DEPLOYMENTS)
    def test_the_simulator_plans_what_the_engine_ran(self, kind: str) -> None:
        settings, workload, ran = executed(kind)
        assert differences(settings, workload, ran.steps) == []
        assert len(ran.steps) >= len(ran.run.seconds) > 10

    def test_preemptions_are_among_what_was_compared(self) -> None:
        assert executed("preempting")[2].steps[-1].count("preemptions") > 0
        assert executed("swapping")[2].steps[-1].count("swaps") > 0

    def test_a_block_that_differs_is_named(self) -> None:
        settings, workload, ran = executed("paged")
        changed = replace(ran.steps[3], parts={**ran.steps[3].parts, "memory": np.array([63])})
        (told,) = differences(settings, workload, [*ran.steps[:3], changed, *ran.steps[4:]])
        assert told.startswith("step 3: memory: the engine had [63], the simulator has [")

    def test_other_times_lead_to_other_plans(self) -> None:
        """Each step takes a second: all requests have arrived before the second one."""
        settings, workload, ran = executed("paged")
        slow = [replace(step, seconds=None if step.seconds is None else 1.0) for step in ran.steps]
        assert differences(settings, workload, slow)

    def test_an_engine_that_stops_early_is_noticed(self) -> None:
        settings, workload, ran = executed("paged")
        (told,) = differences(settings, workload, ran.steps[:-1])
        assert "are left in the simulator" in told


class TestAReplayedTrace:
    def test_the_document_has_the_fields_that_others_read(self, validation: ReplayValidation) -> None:
        document = json.loads(json.dumps(validation.as_json(), allow_nan=False))
        for measure in ("ttft_s", "tpot_s", "e2e_s"):
            for rank in ("mean", "p50", "p90", "p99"):
                figure = document[measure][rank]
                assert figure["error"] == pytest.approx(figure["predicted"] / figure["observed"] - 1)
        counted = ("preemptions", "prefix_hit_tokens", "peak_memory_bytes")
        for name in ("makespan_s", "output_tokens_per_s", "peak_running", *counted):
            assert set(document[name]) == {"predicted", "observed", "error"}
        assert set(document["kv_used"]) == {"predicted_mean", "observed_mean", "rms_difference"}
        assert document["plans_given_measured_times"]["equal"] is True
        assert document["step_times"]["sum_s"]["observed"] > 0

    def test_what_was_observed_is_the_engines_run(self, validation: ReplayValidation) -> None:
        observed = validation.comparison.observed
        assert len(observed) == len(REQUESTS)
        assert observed.output_tokens is not None
        assert observed.output_tokens.tolist() == [request["output"] for request in REQUESTS]
        assert observed.counters["hit_tokens"] > 0
        assert np.all(observed.measured["ttft_s"] > 0)

    def test_each_executed_step_is_priced_as_it_was(self, validation: ReplayValidation) -> None:
        measured, priced = validation.step_times
        assert len(measured) == len(priced) == validation.engine["steps"]
        assert (priced > 0).all()

    def test_the_picture_lays_both_over_each_other(self, validation: ReplayValidation) -> None:
        drawn = overlay(validation)
        assert [trace.name for trace in drawn.data].count("observed") == 6

    def test_a_profile_of_other_settings_is_said_to_be_one(self, profile: Path) -> None:
        found = validate_replay(scenario(profile, "contiguous"), CPU).as_json()
        assert "timing: the profile has a paged KV cache: this contiguous one is priced as such" in found["notes"]

    def test_arrivals_are_scaled(self, profile: Path) -> None:
        found = validate_replay(scenario(profile), CPU, time_scale=1000.0)
        assert found.comparison.observed.makespan_s == pytest.approx(2.0 * 19, rel=0.5)

    def test_it_wants_a_profile(self) -> None:
        with pytest.raises(InputError, match="give the profile whose predictions are to be judged"):
            validate_replay(scenario(None), CPU)


class TestCommands:
    OPTIONS = ("--max-model-len", "64", "--max-num-seqs", "4", "--max-num-batched-tokens", "32", "--block-size", "4",
               "--num-gpu-blocks-override", "65", "--threads", "1")  # fmt: skip

    @pytest.fixture
    def model(self, tmp_path: Path) -> str:
        (tmp_path / "config.json").write_text(json.dumps(MODEL))
        return str(tmp_path / "config.json")

    @pytest.fixture
    def trace(self, tmp_path: Path) -> str:
        lines = [json.dumps({"timestamp": 10 * i, "input_length": 9, "output_length": 6}) for i in range(8)]
        (tmp_path / "trace.jsonl").write_text("\n".join(lines))
        return str(tmp_path / "trace.jsonl")

    def test_calibrate_then_validate(
        self, tmp_path: Path, model: str, trace: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        output = str(tmp_path / "profile.json")
        assert main(["calibrate", "--model", model, *self.OPTIONS, "--budget", "0.01", "-o", output]) == 0
        assert "leave-one-out errors" in capsys.readouterr().out
        replay = ["validate", trace, "--model", model, "--gpu", "h100-sxm", "--profile", output, *self.OPTIONS]
        assert main([*replay, "--json", "-o", str(tmp_path / "out"), "--time-scale", "0.5"]) == 0
        document = json.loads(capsys.readouterr().out)
        assert document == json.loads((tmp_path / "out" / "validation.json").read_text())
        assert document["plans_given_measured_times"]["equal"] is True
        assert (tmp_path / "out" / "overlay.html").exists()
        assert main([*replay, "--tolerance", "0"]) == 4
        assert "plans, given the measured step times: " in capsys.readouterr().out

    def test_an_interrupted_run_is_not_written_over(
        self, tmp_path: Path, model: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        (tmp_path / "p.json.partial").write_text("{}")
        assert main(["calibrate", "--model", model, *self.OPTIONS, "-o", str(tmp_path / "p.json")]) == 2
        assert "--resume goes on with them" in capsys.readouterr().err

    @pytest.mark.parametrize(
        ("arguments", "told"),
        [
            (["calibrate"], "name the model to calibrate"),
            (["calibrate", "--model", "llama-3.1-8b", "--budget", "0"], "--budget"),
            (["calibrate", "--model", "llama-3.1-8b", "--resume", "-o", "none.json"], "--resume"),
            (
                ["calibrate", "--model", json.dumps({**MODEL, "hidden_act": "gelu"})],
                "the engine does not run activation",
            ),
            (["calibrate", "--model", "llama-3.1-8b", "--clock", "sun"], "--clock"),
            (["validate"], "give a trace to replay, or a run to compare with"),
            (["validate", "azure-conversation", "--time-scale", "0"], "--time-scale"),
        ],
    )
    def test_what_is_wrong_is_said(
        self,
        arguments: list[str],
        told: str,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        monkeypatch.chdir(tmp_path)
        assert main(arguments) == 2
        assert told in capsys.readouterr().err
