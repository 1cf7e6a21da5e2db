"""Unequal contexts: a long sequence among short ones, priced from batches that were measured."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from kvplan.calibration.llmservingsim import import_llmservingsim
from kvplan.catalog import load_model
from kvplan.timing import Profile, StepTimes, from_profile
from tests.timing.loads import decodes, seconds


@pytest.fixture(scope="module")
def rtx4090(shared_data: Path) -> Profile:
    return import_llmservingsim(shared_data / "profiles" / "llmservingsim-rtx4090-llama-3.1-8b")


@pytest.fixture(scope="module")
def times(rtx4090: Profile) -> StepTimes:
    return from_profile(rtx4090, load_model("llama-3.1-8b"), coefficients={"graph_overlap": 0.0})


def attention(times: StepTimes, rows: list[tuple[int, int]]) -> float:
    return seconds(times, rows) - seconds(StepTimes("measured", linear=times.linear, head=times.head), rows)


def test_three_summed_repetitions_are_told_and_divided(rtx4090: Profile) -> None:
    """skew.csv holds 973 µs for 32 rows at 2,048, attention.csv 325 µs: the sum of three measurements."""
    rank = rtx4090.rank(1)
    equal = {(r[2], r[3]): r[4] for r in rank.attention if r[0] == 0}
    ratios = [row[7] / equal[row[2], row[5]] for row in rank.skew if row[0] == 0 and (row[2], row[5]) in equal]
    assert np.median(ratios) == pytest.approx(1.0, abs=0.02)


def test_one_long_row_among_short_ones_takes_its_measured_time(rtx4090: Profile, times: StepTimes) -> None:
    """All 48 batches with one long row: within 3% in the median, where the mean context is off by 12%."""
    rows = [r for r in rtx4090.rank(1).skew if r[0] == 0 and r[3] == 1 and r[2] >= 16]
    off, at_mean = [], []
    for _, _, count, _, short, long, mean_s, _, measured in rows:
        batch = [*decodes(int(count) - 1, int(short)), *decodes(1, int(long))]
        off.append(attention(times, batch) / (32 * measured) - 1)
        at_mean.append(mean_s / measured - 1)
    assert np.median(np.abs(off)) < 0.03
    assert np.median(np.abs(at_mean)) > 0.08


def test_equal_contexts_pay_nothing(times: StepTimes) -> None:
    bare = StepTimes("measured", linear=times.linear, head=times.head, decode=times.decode, prefill=times.prefill)
    assert seconds(times, decodes(32, 1000)) == seconds(bare, decodes(32, 1000))


def test_an_evenly_spread_batch_pays_little(times: StepTimes) -> None:
    """What the RTX 4090 run shows: with contexts between 600 and 1,900 the mean is right to 2%."""
    spread = [(context - 1, 1) for context in np.linspace(600, 1900, 33).astype(int)]
    assert attention(times, spread) == pytest.approx(attention(times, decodes(33, 1250)), rel=0.03)


def test_the_longest_row_never_makes_a_step_shorter(times: StepTimes) -> None:
    taken = [attention(times, [*decodes(31, 1000), *decodes(1, long)]) for long in range(1000, 16_000, 500)]
    assert np.all(np.diff(taken) > 0)
