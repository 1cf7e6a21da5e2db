"""Attention with the KV cache in other blocks, or of another type, than the rest of a profile."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from kvplan.catalog import load_model
from kvplan.timing import BlockForm, Profile, StepTimes, from_profile, read_profile, write_profile
from kvplan.timing.forms import in_form
from kvplan.timing.profile import Operation, RankProfile
from tests.timing.loads import decodes, seconds

ROWS, CONTEXTS = (1, 8, 64), (16, 1024)
OWN = BlockForm(16, "bfloat16")
FP8 = "float8_e4m3fn"
MODEL = load_model("llama-3.1-8b")


def attention(factor: float) -> np.ndarray:
    """Prefill and decode of one layer, longer by a factor that grows with the batch."""
    rows = [(0, 0, n, c, factor * (1 + n / 64) * 1e-8 * n * c) for n in ROWS for c in CONTEXTS]
    rows += [(t, p, 0, 0, 1e-9 * t * (p + t / 2) * (1 + factor)) for t in (16, 512) for p in (0, 1024)]
    return np.array(rows)


RANK = RankProfile(
    (
        Operation("layers", np.array([1.0, 512.0]), np.array([1e-4, 3e-4])),
        Operation("head", np.array([1.0]), np.array([1e-4]), "step", "samples"),
    ),
    attention(1.0),
    skew=np.array([(0, 0, 8, 1, 16, 1024, 2e-6, 9e-6, 5e-6)]),
    mixed=np.array([(16, 0, 8, 16, 1e-5), (512, 1024, 64, 1024, 2e-3)]),
    forms={BlockForm(64, "bfloat16"): attention(1.5), BlockForm(16, FP8): attention(0.6)},
)
PROFILE = Profile("made", {1: RANK}, source={"block_size": 16, "kv_cache_dtype": "bfloat16", "layout": "paged"})


def times(form: BlockForm | None, layout: str = "paged", profile: Profile = PROFILE) -> StepTimes:
    return from_profile(profile, MODEL, layout=layout, form=form)


def decode_s(form: BlockForm | None, rows: int = 64, context: int = 1024) -> float:
    """Attention alone: what two contexts differ by, at the same rows."""
    found = times(form)
    return seconds(found, decodes(rows, context)) - seconds(times(None), decodes(rows, context))


def factor(form: BlockForm) -> float:
    """Of decode attention of 64 rows of 1,024 tokens."""
    own = float(RANK.attention[5, 4]) * MODEL.num_hidden_layers
    return 1.0 + decode_s(form) / own


@pytest.mark.parametrize(
    ("form", "expected"),
    [
        (OWN, 1.0),
        (BlockForm(64, "bfloat16"), 1.5),
        (BlockForm(32, "bfloat16"), 1.25),  # half way from 16 to 64, as the logarithm goes
        (BlockForm(16, FP8), 0.6),
        (BlockForm(64, FP8), 0.6 * 1.5),  # not measured: each factor is
        (BlockForm(32, FP8), 0.6 * 1.25),
    ],
)
def test_a_form_is_priced_by_what_was_measured(form: BlockForm, expected: float) -> None:
    assert factor(form) == pytest.approx(expected, rel=1e-9)
    assert not times(form).warnings


@pytest.mark.parametrize(
    ("form", "in_its_place", "expected"),
    [
        (BlockForm(256, "bfloat16"), BlockForm(64, "bfloat16"), 1.5),
        (BlockForm(1, "bfloat16"), OWN, 1.0),
        (BlockForm(128, FP8), BlockForm(64, FP8), 0.9),
        (BlockForm(16, "int8_per_token_head"), OWN, 1.0),
        (BlockForm(32, "int8_per_token_head"), BlockForm(32, "bfloat16"), 1.25),
    ],
)
def test_what_was_not_measured_is_priced_as_the_nearest_and_said_to_be(
    form: BlockForm, in_its_place: BlockForm, expected: float
) -> None:
    (warning,) = times(form).warnings
    assert warning == f"timing: the profile has no {form}: priced as {in_its_place}"
    assert factor(form) == pytest.approx(expected, rel=1e-9)


def test_every_kind_of_step_takes_the_form() -> None:
    """Prefill, steps of both, and unequal contexts."""
    rank, _ = in_form(PROFILE, RANK, BlockForm(64, "bfloat16"))
    expected = RANK.forms[BlockForm(64, "bfloat16")]
    assert rank.attention == pytest.approx(expected)
    assert rank.skew[0, 6:] == pytest.approx(1.5 * RANK.skew[0, 6:])
    assert rank.skew[0, :6] == pytest.approx(RANK.skew[0, :6])
    own, other = ({tuple(row[:4]): row[4] for row in table.tolist()} for table in (RANK.attention, expected))
    for before, after in zip(RANK.mixed.tolist(), rank.mixed.tolist(), strict=True):
        parts = [(*before[:2], 0.0, 0.0), (0.0, 0.0, *before[2:4])]
        grown = sum(other[part] for part in parts) / sum(own[part] for part in parts)
        assert after[4] == pytest.approx(before[4] * grown)
    assert seconds(times(BlockForm(64, "bfloat16")), [(1024, 512)]) > seconds(times(OWN), [(1024, 512)])


def test_another_layout_is_said_and_priced_as_measured() -> None:
    found = times(BlockForm(1, "bfloat16"), "contiguous")
    assert found.warnings == ("timing: the profile has a paged KV cache: this contiguous one is priced as such",)
    assert seconds(found, decodes(8, 100)) == seconds(times(None), decodes(8, 100))


def test_a_profile_that_does_not_say_its_form_is_used_as_it_is() -> None:
    silent = replace(PROFILE, source={})
    for form in (OWN, BlockForm(64, FP8)):
        found = times(form, profile=silent)
        assert not found.warnings
        assert seconds(found, decodes(64, 1024)) == seconds(times(None), decodes(64, 1024))


def test_the_file_keeps_every_form(tmp_path: Path) -> None:
    write_profile(PROFILE, tmp_path / "p.json")
    again = read_profile(tmp_path / "p.json")
    assert again.form == OWN
    assert set(again.ranks[1].forms) == set(RANK.forms)
    for form, rows in RANK.forms.items():
        assert again.ranks[1].forms[form] == pytest.approx(rows)


def test_the_sizes_are_laid_side_by_side_for_people() -> None:
    points = times(OWN).decode_by_block_size
    assert len(points) == 2 * len(ROWS) * len(CONTEXTS)
    by_size = {size: points[points[:, 0] == size] for size in (16.0, 64.0)}
    assert by_size[64.0][:, 3] == pytest.approx(1.5 * by_size[16.0][:, 3])
    assert by_size[16.0][:, 3] == pytest.approx(RANK.attention[:6, 4] * MODEL.num_hidden_layers)
    assert len(times(BlockForm(16, FP8)).decode_by_block_size) == len(points), "one size of fp8 compares nothing"
    assert not len(times(OWN, profile=replace(PROFILE, ranks={1: replace(RANK, forms={})})).decode_by_block_size)
