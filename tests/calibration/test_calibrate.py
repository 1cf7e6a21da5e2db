"""Measuring a machine: what is kept when it breaks off, what the profile holds, what it prices."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="the engine needs torch: pip install 'kvplan[engine]'")

import kvplan  # noqa: E402
from kvplan.calibration.assemble import assemble  # noqa: E402
from kvplan.calibration.calibrate import Calibration, calibrate  # noqa: E402
from kvplan.calibration.deployment import calibrated_scenario  # noqa: E402
from kvplan.calibration.measure import measure  # noqa: E402
from kvplan.calibration.plan import Point, points, traffic  # noqa: E402
from kvplan.calibration.samples import Samples, partial_path  # noqa: E402
from kvplan.catalog import load_model  # noqa: E402
from kvplan.core.replica import Replica  # noqa: E402
from kvplan.core.settings import Settings  # noqa: E402
from kvplan.core.step_time import STEP_LOAD, step_seconds  # noqa: E402
from kvplan.engine.engine import EngineOptions  # noqa: E402
from kvplan.errors import InputError  # noqa: E402
from kvplan.timing import BlockForm, from_profile, read_profile  # noqa: E402
from kvplan.timing.profile import Profile  # noqa: E402
from tests.calibration.tiny import LAYERS, MODEL, SETTINGS, KnownTimes, decode, head, linear, prefill  # noqa: E402

torch.set_num_threads(1)
CPU = EngineOptions("cpu", "torch")
LIMITS = Settings(num_gpu_blocks=65, block_size=4, max_model_len=64, max_num_seqs=4, max_num_batched_tokens=32)
PLAN = points(LIMITS, 63, 1.0, True)


def price(profile: Profile, **load: float) -> float:
    step = np.zeros(1, STEP_LOAD)
    for name, value in load.items():
        step[name] = value
    return float(step_seconds(from_profile(profile, load_model(MODEL)).compiled(), step))


@pytest.fixture(scope="module")
def known() -> Profile:
    samples = Samples({})
    measure(KnownTimes(), PLAN, samples, 0.0)
    return assemble(Profile("known", {}), PLAN, samples, load_model(MODEL), 1024)


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("profile") / "profile.json"
    calibrate(path, SETTINGS, CPU, budget_s=0.01)
    return path


class TestABrokenRun:
    def test_every_point_is_measured_whatever_the_budget(self) -> None:
        samples = Samples({})
        measure(KnownTimes(), PLAN, samples, 0.0)
        assert [samples.count(point.key) for point in PLAN] == [1] * len(PLAN)

    def test_it_keeps_what_it_has_and_goes_on_from_there(self, tmp_path: Path) -> None:
        file = tmp_path / "p.json.partial"
        with pytest.raises(KeyboardInterrupt):
            measure(KnownTimes(7, KeyboardInterrupt()), PLAN, Samples({"model": "m"}, file), 0.0)
        resumed, again = Samples({"model": "m"}, file), KnownTimes()
        resumed.resume()
        measure(again, PLAN, resumed, 0.0)
        assert len(again.seen) == len(PLAN) - 7
        assert {point.key for point in PLAN} == set(resumed.by_point)

    def test_two_parts_make_one_whole(self) -> None:
        before, after = Samples({}), Samples({})
        before.add("head 1", {"seconds": 1.0})
        after.add("head 1", {"seconds": 3.0})
        after.add("head 2", {"seconds": 5.0})
        both = before.together(after)
        assert (both.median("head 1", "seconds"), both.count("head 2"), before.count("head 2")) == (2.0, 1, 0)

    def test_it_is_not_taken_for_a_run_with_other_settings(self, tmp_path: Path) -> None:
        file = tmp_path / "p.json.partial"
        Samples({"block_size": 16}, file).save()
        with pytest.raises(InputError, match="measured with block_size 16, this run has 32"):
            Samples({"block_size": 32}, file).resume()

    @pytest.mark.parametrize("text", ["", "[]", '{"schema": "else"}'])
    def test_what_is_no_such_file_is_refused(self, text: str, tmp_path: Path) -> None:
        (tmp_path / "x").write_text(text)
        with pytest.raises(InputError, match="not a kvplan-calibration/1 file"):
            Samples({}, tmp_path / "x").resume()

    def test_a_point_that_fails_is_noted_and_not_tried_again(self) -> None:
        samples, sampler = Samples({}), KnownTimes(3, RuntimeError("out of memory\nat 0x0"))
        measure(sampler, PLAN, samples, 0.0)
        assert list(samples.failed.values()) == ["out of memory"] * len(samples.failed)
        assert len(samples.failed) == len(PLAN) - 3
        before = dict(samples.failed)
        measure(KnownTimes(), PLAN, samples, 0.0)
        assert samples.failed == before


class TestWhatAProfilePrices:
    """Times that are formulas come out of the finished model at every point that was measured."""

    @pytest.mark.parametrize("point", [p for p in PLAN if p.kind == "host"], ids=lambda p: p.key)
    def test_whole_decode_steps(self, known: Profile, point: Point) -> None:
        rows, prompt = point.at
        context = prompt + 4
        seconds = price(
            known, rows=rows, tokens=rows, samples=rows, decode_rows=rows, decode_context=rows * context,
            decode_context_squares=rows * context**2, decode_context_max=context,
        )  # fmt: skip
        parts = linear(rows) + head(rows) + decode(rows, context)
        assert seconds == pytest.approx(parts + 2e-3 + 1e-4 * rows, rel=1e-9)

    @pytest.mark.parametrize("point", [p for p in PLAN if p.kind == "mixed"], ids=lambda p: p.key)
    def test_mixed_steps_are_not_the_sum_of_their_parts(self, known: Profile, point: Point) -> None:
        tokens, prior, rows, context = point.at
        load = {
            "tokens": tokens + rows, "rows": 1 + rows, "prefill_rows": 1, "prefill_tokens": tokens,
            "prefill_prior": prior, "decode_rows": rows, "decode_context": rows * context,
            "decode_context_squares": rows * context**2, "decode_context_max": context,
        }  # fmt: skip
        alone = {"tokens": tokens + rows, "rows": 1 + rows}
        attention = price(known, **load) - price(known, **alone)
        assert attention == pytest.approx(0.9 * (prefill(tokens, prior) + decode(rows, context)), rel=1e-6)

    def test_a_long_sequence_costs_what_it_was_found_to_cost(self, known: Profile) -> None:
        """The measured batches take as long as if all were the longest: a padded kernel."""
        point = max((p for p in PLAN if p.kind == "skew"), key=lambda p: p.at)
        rows, long_rows, short, long = point.at
        context, squares = (
            long_rows * long + (rows - long_rows) * short,
            long_rows * long**2 + (rows - long_rows) * short**2,
        )
        load = {"rows": rows, "tokens": rows, "decode_rows": rows, "decode_context_max": long}
        unequal = price(known, **load, decode_context=context, decode_context_squares=squares)
        equal = price(known, **load, decode_context=rows * long, decode_context_squares=rows * long**2)
        assert unequal == pytest.approx(equal, rel=1e-3)  # the mean was measured at a whole number of tokens

    def test_whole_traffic_takes_as_long_as_it_was_found_to_take(self) -> None:
        """A fifth longer than its parts: the simulator, given the profile, takes that long."""
        samples = Samples({})
        measure(KnownTimes(), PLAN, samples, 0.0)
        (point,) = (p for p in PLAN if p.kind == "traffic")

        def served(profile: Profile) -> float:
            replica = Replica(LIMITS, traffic(*point.at, 63))
            replica.run(from_profile(profile, load_model(MODEL)).compiled())
            return float(replica.core.scalars["now"][0])

        def assembled(seconds: float) -> Profile:
            samples.by_point[point.key] = [{"seconds": seconds}]
            return assemble(Profile("known", {}), PLAN, samples, load_model(MODEL), 1024, (LIMITS, 63))

        parts = served(assembled(1e9))  # not believed: something else must have run
        assert served(assembled(1.2 * parts)) == pytest.approx(1.2 * parts, rel=1e-6)

    def test_steps_of_more_tokens_than_a_context_holds(self) -> None:
        limits = replace(LIMITS, max_num_batched_tokens=200)
        plan, samples = points(limits, 63, 1.0, True), Samples({})
        measure(KnownTimes(), plan, samples, 0.0)
        profile = assemble(Profile("known", {}), plan, samples, load_model(MODEL), 1024)
        alone = price(profile, tokens=200) - price(profile)
        assert alone == pytest.approx(linear(200) - linear(1), rel=1e-6)

    def test_the_hosts_time_can_be_overridden_by_name(self, known: Profile) -> None:
        times = from_profile(known, load_model(MODEL), coefficients={"host_step_s": 0.5})
        assert (times.host_step_s, times.host_row_s) == (0.5, pytest.approx(1e-4))

    def test_it_states_how_far_whole_steps_lie_from_their_parts(self, known: Profile) -> None:
        assert known.errors["1"]["whole decode steps, all parts added"]["worst"] < 1e-5
        assert known.errors["1"]["attention mixed, were it the sum"]["bias"] == pytest.approx(1 / 0.9 - 1, abs=0.02)

    def test_points_are_those_the_deployment_can_run(self) -> None:
        scenario = calibrated_scenario({**SETTINGS, "cache.num_gpu_blocks_override": 21}, torch.device("cpu"))
        found = Calibration(scenario, CPU, 1.0).points
        assert max(rows * -(-context // 4) for rows, context in (p.at for p in found if p.kind == "decode")) <= 20


class TestTheEngineMeasured:
    def test_the_file_holds_every_part_of_a_step(self, measured: Path) -> None:
        profile = read_profile(measured)
        rank = profile.rank(1)
        assert [op.name for op in rank.operations] == ["layers", "head", "block_copy", "swap_out", "swap_in", "host"]
        kinds = {(row[0] > 0, row[2] > 0) for row in rank.attention}
        assert kinds == {(True, False), (False, True)}
        assert len(rank.mixed)
        assert len(rank.skew)
        assert all((op.seconds >= 0).all() for op in rank.operations)

    def test_it_says_what_was_measured_where_with_what_memory(self, measured: Path) -> None:
        profile = read_profile(measured)
        assert (profile.launch, profile.source["block_size"], profile.source["layout"]) == ("engine", 4, "paged")
        assert set(profile.machine) == {"device", "threads", "clock", "system"}
        assert profile.memory["pool_bytes"] == 65 * 4 * LAYERS * 2 * 2 * 8 * 4
        assert profile.memory["weights_bytes"] > 4 * 97 * 32

    def test_nothing_is_left_beside_it(self, measured: Path) -> None:
        assert not partial_path(measured).exists()

    def test_the_simulator_uses_it_at_once(self, measured: Path) -> None:
        scenario = {
            "model": MODEL, "gpu": "h100-sxm", "timing": {"profile": str(measured)},
            "cache": {"num_gpu_blocks_override": 65, "block_size": 4}, "scheduler": {"max_model_len": 64},
            "requests": [{"arrival": 0.0, "prompt": 8, "output": 4}],
        }  # fmt: skip
        summary = kvplan.simulate(scenario).summary["runs"][0]
        assert summary["requests"]["finished"] == 1
        assert summary["latency"]["e2e_s"]["mean"] > 0

    def test_contiguous_pools_are_measured_as_they_are(self, tmp_path: Path) -> None:
        overrides: dict[str, Any] = {**SETTINGS, "cache.layout": "contiguous", "cache.reservation": "oracle"}
        profile = calibrate(tmp_path / "p.json", overrides, CPU, budget_s=0.01)
        assert profile.source["layout"] == "contiguous"
        assert "block_copy" not in [op.name for op in profile.rank(1).operations]

    def test_an_interrupted_calibration_is_resumed(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        from kvplan.calibration.meter import Meter

        sample, count = Meter.sample, 0

        def interrupted(self: Meter, point: Point) -> dict[str, float]:
            nonlocal count
            count += 1
            if count == 20:
                raise KeyboardInterrupt
            return sample(self, point)

        monkeypatch.setattr(Meter, "sample", interrupted)
        output = tmp_path / "p.json"
        with pytest.raises(KeyboardInterrupt):
            calibrate(output, SETTINGS, CPU, budget_s=0.0)
        assert not output.exists()
        assert sum(map(len, json.loads(partial_path(output).read_text())["samples"].values())) == 19
        calibrate(output, SETTINGS, CPU, budget_s=0.0, resume=True)
        assert (
            read_profile(output).notes[0].split(",")[1]
            == " each measured 1 to 1 times; medians of whole forward passes"
        )


@pytest.fixture(scope="module")
def several(tmp_path_factory: pytest.TempPathFactory) -> Profile:
    path = tmp_path_factory.mktemp("forms") / "profile.json"
    return calibrate(path, SETTINGS, CPU, budget_s=0.01, block_sizes=[2, 16], kv_cache_dtypes=["fp8"])


class TestFurtherFormsOfTheCache:
    def test_attention_is_measured_in_each(self, several: Profile) -> None:
        rank = several.ranks[1]
        fp8 = "float8_e4m3fn"
        assert several.form == BlockForm(4, "float32")
        assert set(rank.forms) == {BlockForm(size, dtype) for size in (2, 4, 16) for dtype in ("float32", fp8)} - {
            several.form
        }
        own = {tuple(row[:4]) for row in rank.attention.tolist()}
        for rows in rank.forms.values():
            assert {tuple(row[:4]) for row in rows.tolist()} <= own, "a form is compared at the profile's own points"
            assert {row[0] > 0 for row in rows.tolist()} == {True, False}, "prefill and decode"
            assert (rows[:, 4] > 0).all()

    def test_a_simulation_in_such_a_form_is_priced_without_a_warning(self, several: Profile) -> None:
        for form in (several.form, *several.ranks[1].forms):
            assert not any(str(form) in w for w in from_profile(several, load_model(MODEL), form=form).warnings)
        assert several.errors["1"]["attention decode by block_size"]["points"] > 0

    def test_unasked_the_budget_chooses(self) -> None:
        calibrations = [
            Calibration(calibrated_scenario(SETTINGS, torch.device("cpu")), CPU, budget) for budget in (1.0, 60.0)
        ]
        sizes = [{point.form.block_size for point in c.points if point.form is not None} for c in calibrations]
        assert sizes == [set(), {8, 32, 128}]

    @pytest.mark.parametrize(
        ("given", "field"),
        [({"block_sizes": [3]}, "--block-sizes"), ({"kv_cache_dtypes": ["int3"]}, "--kv-cache-dtypes")],
    )
    def test_what_cannot_be_is_refused(self, given: dict[str, Any], field: str, tmp_path: Path) -> None:
        with pytest.raises(InputError) as found:
            calibrate(tmp_path / "p.json", SETTINGS, CPU, budget_s=0.01, **given)
        assert found.value.field == field

    def test_a_contiguous_cache_has_none(self, tmp_path: Path) -> None:
        settings = {**SETTINGS, "cache.layout": "contiguous", "cache.reservation": "max"}
        with pytest.raises(InputError, match="has no blocks"):
            calibrate(tmp_path / "p.json", settings, CPU, budget_s=0.01, block_sizes=[8])
