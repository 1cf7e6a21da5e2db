"""Profiles that others measured: what is read, and what is refused with its place."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from kvplan.calibration.errors import leave_one_out
from kvplan.calibration.imports import import_folder
from kvplan.catalog import load_gpu, load_model
from kvplan.errors import InputError
from kvplan.timing import StepTimes, from_profile, read_profile, roofline, write_profile
from tests.timing.loads import decodes, seconds

LLMSERVINGSIM = "llmservingsim-rtx4090-llama-3.1-8b"


@pytest.fixture
def copied(shared_data: Path, tmp_path: Path) -> Path:
    """A copy of LLMServingSim's folder, to be damaged."""
    folder = tmp_path / "profile"
    shutil.copytree(shared_data / "profiles" / LLMSERVINGSIM, folder)
    return folder


def test_llmservingsim_is_read_with_what_it_says_of_itself(shared_data: Path) -> None:
    profile = import_folder(shared_data / "profiles" / LLMSERVINGSIM)
    assert (profile.model, profile.launch, profile.versions["vllm"]) == ("meta-llama/Llama-3.1-8B", "eager", "0.19.0")
    rank = profile.rank(1)
    assert (len(rank.operations), len(rank.attention), len(rank.skew)) == (11, 8643, 13009)


def test_tp_folders_become_ranks_and_experts_are_divided_where_they_were_not_measured(copied: Path) -> None:
    root = copied.parent / "variant"
    for tp in ("tp1", "tp2"):
        shutil.copytree(copied, root / tp)
        (root / tp / "meta.yaml").unlink()
    shutil.copy(copied / "meta.yaml", root / "meta.yaml")
    (root / "tp1" / "moe.csv").write_text("tokens,activated_experts,time_us\n1,8,50\n2,8,56\n1,16,70\n2,16,80\n")
    profile = import_folder(root)
    assert sorted(profile.ranks) == [1, 2]
    assert profile.model == "meta-llama/Llama-3.1-8B"
    np.testing.assert_allclose(profile.rank(1).experts[0], [1, 8, 50e-6])
    np.testing.assert_allclose(profile.rank(2).experts[0], [1, 8, 25e-6])


def test_newer_columns_are_understood(copied: Path) -> None:
    """Newer files name the kernel, call kv_prefill prefill_key, and hold decodes of several tokens too."""
    table = (copied / "attention.csv").read_text().splitlines()
    lines = ["layer,prefill_chunk,prefill_key,n_decode,kv_decode,decode_q_len,time_us"]
    lines += [f"attention,{row.rsplit(',', 1)[0]},{q},{row.rsplit(',', 1)[1]}" for row in table[1:] for q in (1, 4)]
    (copied / "attention.csv").write_text("\n".join(lines))
    assert len(import_folder(copied).rank(1).attention) == 8643


@pytest.mark.parametrize(
    ("name", "before", "after", "told"),
    [
        ("dense.csv", "act_fn,1,2.592", "act_fn,1,fast", r"dense\.csv:2: time_us: not a number"),
        ("attention.csv", "0,0,1,16,9.31067", "0,0,-1,16,9.31067", r"attention\.csv:2: n_decode: not a number >= 0"),
        ("per_sequence.csv", "layer,sequences,time_us", "layer,count,time_us", r"sequences: missing column"),
        ("skew.csv", "t_skew_us", "t_us", r"t_skew_us: missing column"),
    ],
)
def test_a_damaged_file_is_refused_with_its_place(copied: Path, name: str, before: str, after: str, told: str) -> None:
    path = copied / name
    text = path.read_text()
    assert before in text
    path.write_text(text.replace(before, after, 1))
    with pytest.raises(InputError, match=told):
        import_folder(copied)


def test_a_missing_file_is_named(copied: Path) -> None:
    (copied / "per_sequence.csv").unlink()
    with pytest.raises(InputError, match=r"per_sequence\.csv: missing file of the profile"):
        import_folder(copied)


def test_a_folder_of_something_else_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no profile that is understood"):
        import_folder(tmp_path)


def test_vidur_is_read_in_milliseconds_and_its_steps_of_both_are_sums(shared_data: Path) -> None:
    """FlashInfer on an A800: 64 rows at 1,024 take 0.626 ms a layer, 5 µs of cache write on top."""
    profile = import_folder(shared_data / "profiles" / "vidur-format-a800-llama-2-7b")
    times = from_profile(profile, load_model("llama-2-7b"))
    rows = profile.rank(1).attention
    row = rows[(rows[:, 2] == 64) & (rows[:, 3] == 1024)][0]
    assert row[4] == pytest.approx(0.626e-3 + 0.005e-3, abs=2e-6)
    assert times.mixed is None
    linear = StepTimes("measured", linear=times.linear, head=times.head)
    together, prompt, batch = [*decodes(64, 1024), (0, 512)], [(0, 512)], decodes(64, 1024)
    attention = [seconds(times, step) - seconds(linear, step) for step in (together, prompt, batch)]
    assert attention[0] == pytest.approx(attention[1] + attention[2])


def test_leaving_a_point_out_is_off_by_a_percent_in_the_median(shared_data: Path) -> None:
    errors = {
        row.operation.strip(): row
        for row in leave_one_out(import_folder(shared_data / "profiles" / LLMSERVINGSIM).rank(1))
    }
    assert errors["gate_up_proj"].median < 0.01
    assert errors["attention mixed by context"].median < 0.02
    assert errors["attention unequal contexts"].median < 0.6 * errors["the same at the mean context"].median


def test_the_errors_stand_in_the_file(shared_data: Path, tmp_path: Path) -> None:
    write_profile(import_folder(shared_data / "profiles" / LLMSERVINGSIM), tmp_path / "p.json")
    errors = read_profile(tmp_path / "p.json").errors["1"]
    assert errors["qkv_proj"]["points"] == 150
    assert 0 < errors["qkv_proj"]["median"] < errors["qkv_proj"]["worst"]


class TestAiconfigurator:
    """Kernel tables that ship with the package: read where it is installed."""

    @pytest.fixture(autouse=True)
    def _installed(self) -> None:
        pytest.importorskip("aiconfigurator_core", reason="the extra aiconfigurator is not installed")

    def test_decode_attention_is_the_published_measurement(self, shared_data: Path) -> None:
        """h200_decode.csv holds the same measurements: 32 rows at 2,048 of 32 heads and 8 K/V heads."""
        import pandas as pd

        from kvplan.calibration.aiconfigurator import import_aiconfigurator

        table = pd.read_csv(shared_data / "reference" / "h200_decode.csv")
        shape = {
            "framework": "VLLM",
            "num_heads": 32,
            "num_key_value_heads": 8,
            "head_dim": 128,
            "window_size": 0,
            "kv_cache_dtype": "bfloat16",
            "batch_size": 32,
            "kv_len": 2048,
        }
        for column, value in shape.items():
            table = table[table[column] == value]
        rows = import_aiconfigurator("h200_sxm", load_model("llama-3.1-8b")).rank(1).attention
        ours = rows[(rows[:, 2] == 32) & (rows[:, 3] == 2048)][0, 4]
        assert len(table) == 1
        assert ours == pytest.approx(table["latency_us"].iloc[0] * 1e-6, rel=0.01)

    def test_tables_and_roofline_agree_on_a_dense_model(self) -> None:
        from kvplan.calibration.aiconfigurator import import_aiconfigurator

        model, gpu = load_model("llama-3.1-70b"), load_gpu("h200-sxm")
        profile = import_aiconfigurator("h200_sxm", model, tensor_parallel_sizes=(2,))
        tables = from_profile(profile, model, tensor_parallel_size=2)
        bare = roofline(model, gpu, tensor_parallel_size=2)
        for rows in (8, 64):
            assert seconds(tables, decodes(rows, 2000)) == pytest.approx(seconds(bare, decodes(rows, 2000)), rel=0.25)

    def test_an_unknown_system_is_refused_with_the_known(self) -> None:
        from kvplan.calibration.aiconfigurator import import_aiconfigurator

        with pytest.raises(InputError, match=r"no such system.*\n.*h200_sxm"):
            import_aiconfigurator("h900", load_model("llama-3.1-8b"))

    def test_a_model_of_unlike_layers_is_refused(self) -> None:
        from kvplan.calibration.aiconfigurator import import_aiconfigurator

        with pytest.raises(InputError, match="layers are alike"):
            import_aiconfigurator("h200_sxm", load_model("deepseek-v3"))
