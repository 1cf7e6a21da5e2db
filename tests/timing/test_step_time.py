"""The compiled form: what a load means, how the tables are read, what lies outside them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvplan.core.step_time import advance_decode, step_seconds
from kvplan.errors import InputError
from kvplan.timing import AttentionGroup, Grid, StepTimes, constant
from tests.timing.loads import decodes, load_of, seconds


def line(*points: tuple[float, float], name: str = "linear") -> Grid:
    return Grid((np.array([at for at, _ in points]),), np.array([value for _, value in points]), name)


TABLE = StepTimes("measured", linear=line((1, 0.010), (100, 0.020), (200, 0.040)))
ATTENDING = StepTimes("roofline", groups=(AttentionGroup(0, 1e-6, 1e-9, 1e-9), AttentionGroup(100, 1e-3, 1e-9, 1e-9)))


@given(st.lists(st.integers(1, 100_000), min_size=1, max_size=40), st.integers(1, 50))
def test_a_load_moved_on_is_the_load_of_the_later_step(computed: list[int], steps: int) -> None:
    load = load_of([(c, 1) for c in computed])
    for _ in range(steps):
        advance_decode(load)
    assert load == load_of([(c + steps, 1) for c in computed])


def test_a_constant_step_takes_its_time_whatever_it_holds() -> None:
    times = constant(0.05)
    assert [seconds(times, []), seconds(times, [(0, 5000), (9, 1)])] == [0.05, 0.05]


@pytest.mark.parametrize("bad", [0.0, -1.0, float("nan"), float("inf")])
def test_a_constant_that_is_no_time_is_refused(bad: float) -> None:
    with pytest.raises(InputError, match=r"timing\.constant"):
        constant(bad)


def test_a_table_is_exact_at_its_points_and_linear_between_held_below_and_extended_above() -> None:
    asked = {1: 0.010, 100: 0.020, 150: 0.030, 200: 0.040, 300: 0.060}
    assert {n: round(seconds(TABLE, decodes(n, 10)), 12) for n in asked} == asked


@given(st.integers(1, 399), st.integers(1, 399))
def test_between_rising_points_more_tokens_never_take_less_time(a: int, b: int) -> None:
    low, high = sorted((a, b))
    assert seconds(TABLE, decodes(low, 10)) <= seconds(TABLE, decodes(high, 10))


def test_queries_above_the_range_are_counted_and_told_once() -> None:
    tables = TABLE.compiled()
    for rows in (50, 250, 350):
        step_seconds(tables, load_of(decodes(rows, 10)))
    assert TABLE.beyond(tables) == [
        "timing: tokens in a step reached 350, the profile ends at 200: extrapolated in 2 steps"
    ]


def test_a_window_caps_what_is_read() -> None:
    """10 rows at 1,000: 10,000 tokens of the full layers, 10 · 100 of the windowed ones."""
    assert seconds(ATTENDING, decodes(10, 1000)) == pytest.approx(10_000 * 1e-6 + 1_000 * 1e-3)


def test_rows_on_both_sides_of_a_window_are_told_apart() -> None:
    """Two lengths are what the moments hold exactly: 3 rows under the window, 2 above."""
    rows = [*decodes(3, 40), *decodes(2, 500)]
    assert seconds(ATTENDING, rows) == pytest.approx((3 * 40 + 2 * 500) * 1e-6 + (3 * 40 + 2 * 100) * 1e-3)


def test_a_windowed_prompt_pays_for_the_pairs_inside_the_window() -> None:
    computing = StepTimes("roofline", groups=(AttentionGroup(100, 0.0, 1e-9, 0.0),))
    pairs = sum(min(place, 100) for place in range(1, 251))
    assert seconds(computing, [(0, 250)]) == pytest.approx(pairs * 1e-9)


def test_copies_and_swaps_cost_by_the_byte() -> None:
    times = StepTimes("roofline", copy_s_per_byte=1e-9, swap_s_per_byte=1e-7)
    moved = seconds(times, [], copied_blocks=3, swapped_out_blocks=2, swapped_in_blocks=1, block_bytes=1000, samples=0)
    assert moved == pytest.approx(3 * 1000 * 1e-9 + 3 * 1000 * 1e-7)


@pytest.mark.parametrize(
    ("axes", "values", "told"),
    [
        ([[1.0, 1.0]], [1.0, 2.0], "must ascend"),
        ([[1.0, 2.0]], [1.0], "does not fit"),
        ([[1.0, 2.0]], [1.0, -2.0], "not negative"),
        ([[1.0, 2.0]], [1.0, np.nan], "finite"),
    ],
)
def test_a_table_that_cannot_be_one_is_refused(axes: list[list[float]], values: list[float], told: str) -> None:
    with pytest.raises(InputError, match=told):
        Grid(tuple(np.array(axis) for axis in axes), np.array(values))
