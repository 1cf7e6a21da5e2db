"""A measured profile: its file, and step times that are the measured ones at the measured points."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from kvplan.calibration.llmservingsim import import_llmservingsim
from kvplan.catalog import load_gpu, load_model
from kvplan.errors import InputError
from kvplan.timing import Profile, StepTimes, from_profile, read_profile, write_profile
from kvplan.timing.profile import Operation, RankProfile
from tests.timing.loads import decodes, seconds

LAYERS = 32


@pytest.fixture(scope="module")
def rtx4090(shared_data: Path) -> Profile:
    return import_llmservingsim(shared_data / "profiles" / "llmservingsim-rtx4090-llama-3.1-8b")


@pytest.fixture(scope="module")
def times(rtx4090: Profile) -> StepTimes:
    """Without the correction for graph replay: the bare sums of the tables."""
    return from_profile(rtx4090, load_model("llama-3.1-8b"), coefficients={"graph_overlap": 0.0})


def test_the_file_holds_the_profile(rtx4090: Profile, tmp_path: Path) -> None:
    write_profile(rtx4090, tmp_path / "profile.json")
    again = read_profile(tmp_path / "profile.json")
    assert again.head() == rtx4090.head()
    for ours, theirs in zip(again.rank(1).operations, rtx4090.rank(1).operations, strict=True):
        assert (ours.name, ours.per, ours.count) == (theirs.name, theirs.per, theirs.count)
        np.testing.assert_allclose(ours.seconds, theirs.seconds, rtol=1e-8)
    np.testing.assert_allclose(again.rank(1).attention, rtx4090.rank(1).attention, rtol=1e-8)
    np.testing.assert_allclose(again.rank(1).skew, rtx4090.rank(1).skew, rtol=1e-8)


def test_each_measured_point_has_its_measured_time(rtx4090: Profile, times: StepTimes) -> None:
    """Every 60th row of attention.csv: prefill alone, decode alone, both, at all corners of the table."""
    nothing = StepTimes("measured", linear=times.linear, head=times.head)
    off = []
    for chunk, prior, rows, context, time in rtx4090.rank(1).attention[::60]:
        step = decodes(int(rows), int(context)) + ([(int(prior), int(chunk))] if chunk else [])
        attention = seconds(times, step) - seconds(nothing, step)
        off.append(attention / (LAYERS * time) - 1)
    assert np.abs(off).max() < 1e-9


def test_the_linear_part_is_the_sum_of_its_kernels(rtx4090: Profile, times: StepTimes) -> None:
    """Two norms a layer; embedding and last norm once a step; lm_head and sampler by sampling rows."""
    table = {op.name: dict(zip(op.at, op.seconds, strict=True)) for op in rtx4090.rank(1).operations}
    layer = ("qkv_proj", "rotary_emb", "o_proj", "gate_up_proj", "act_fn", "down_proj")
    expected = LAYERS * (sum(table[name][64] for name in layer) + 2 * table["layernorm"][64])
    expected += sum(table[name][64] for name in ("embedding", "final_layernorm", "lm_head", "sampler"))
    bare = StepTimes("measured", linear=times.linear, head=times.head)
    assert seconds(bare, decodes(64, 100)) == pytest.approx(expected)


def test_several_prompts_in_a_step_cost_what_one_with_as_many_pairs_does(times: StepTimes) -> None:
    """Eight prompts of 256 hold an eighth of the pairs of one of 2,048; the linear part is the same."""
    eight, one = seconds(times, [(0, 256)] * 8, samples=1), seconds(times, [(0, 2048)], samples=1)
    nothing = StepTimes("measured", linear=times.linear, head=times.head)
    linear = seconds(nothing, [(0, 2048)], samples=1)
    assert 0.0 < eight - linear < 0.4 * (one - linear)


def test_graph_replay_takes_the_fixed_time_off_small_steps_alone(rtx4090: Profile, times: StepTimes) -> None:
    """1.85 µs, the smallest kernel, for nine kernels a layer; nothing above vLLM's largest capture of 512 tokens."""
    replayed = from_profile(rtx4090, load_model("llama-3.1-8b"))
    saved = seconds(times, decodes(32, 1000)) - seconds(replayed, decodes(32, 1000))
    assert saved == pytest.approx((LAYERS * 9 + 2) * 1.85083e-6, rel=1e-3)
    assert seconds(times, [(0, 1024)]) == seconds(replayed, [(0, 1024)])


def test_experts_take_their_time_at_the_distinct_experts_that_tokens_choose() -> None:
    """One token of Qwen3-30B-A3B touches 8 of 128 experts; very many touch all."""
    model = load_model("qwen3-30b-a3b")
    experts = np.array([[n, e, 1e-6 * e] for n in (1.0, 4096.0) for e in (8.0, 64.0, 128.0)])
    attention = np.array([[0, 0, 1, 16, 0.0], [0, 0, 256, 16, 0.0], [16, 0, 0, 0, 0.0]])
    rank = RankProfile((Operation("qkv_proj", np.array([1.0, 4096.0]), np.zeros(2)),), attention, experts)
    times = from_profile(Profile("made", {1: rank}), model)
    assert seconds(times, decodes(1, 16)) == pytest.approx(48 * 8e-6)
    assert seconds(times, [(0, 4096)]) == pytest.approx(48 * 128e-6)


def test_a_rank_that_was_not_measured_is_refused_with_those_that_were(rtx4090: Profile) -> None:
    with pytest.raises(InputError, match=r"tensor_parallel_size.*\n.*measured: 1"):
        from_profile(rtx4090, load_model("llama-3.1-8b"), tensor_parallel_size=2)


def test_all_reduce_is_the_one_addition_under_tensor_parallelism(rtx4090: Profile) -> None:
    model, gpu = load_model("llama-3.1-8b"), load_gpu("h100-sxm")
    twin = Profile("twin", {1: rtx4090.rank(1), 2: rtx4090.rank(1)})
    alone, joined = (
        seconds(from_profile(twin, model, gpu=gpu, tensor_parallel_size=tp), decodes(8, 100)) for tp in (1, 2)
    )
    per = 5e-6 + 8 * 4096 * 2 / (gpu.nvlink_bytes_per_s * 0.55)
    assert joined - alone == pytest.approx(2 * LAYERS * per)


def test_another_model_than_the_measured_one_is_told(rtx4090: Profile) -> None:
    warnings = from_profile(rtx4090, load_model("mistral-7b")).warnings
    assert warnings == ("timing: the profile was measured with meta-llama/Llama-3.1-8B, the model is mistral-7b",)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("{", "not JSON"),
        ("[]", "not a kvplan-profile/1 file"),
        ('{"schema": "other/1"}', "not a kvplan-profile/1 file"),
        ('{"schema": "kvplan-profile/1", "name": "x"}', "ranks: the profile lacks a key"),
        ('{"schema": "kvplan-profile/1", "name": "x", "ranks": {"one": {}}}', "damaged"),
        ('{"schema": "kvplan-profile/1", "name": "x", "ranks": {"1": {"operations": [3]}}}', "damaged"),
    ],
)
def test_a_file_that_is_no_profile_is_refused(text: str, told: str, tmp_path: Path) -> None:
    path = tmp_path / "profile.json"
    path.write_text(text)
    with pytest.raises(InputError, match=told):
        read_profile(path)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot read the profile"):
        read_profile(tmp_path / "nothing.json")


def test_the_file_can_be_read_by_a_person(rtx4090: Profile, tmp_path: Path) -> None:
    path = tmp_path / "profile.json"
    write_profile(rtx4090, path)
    lines = path.read_text().splitlines()
    assert json.loads(path.read_text())["machine"] == {"gpu": "NVIDIA GeForce RTX 4090"}
    assert any(line.strip() == "[0, 0, 1, 16, 9.31067e-06]," for line in lines)
