from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvplan.report import shown


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0 s"),
        (0.0000123, "12.3 µs"),
        (0.02166, "21.7 ms"),
        (0.9996, "1.00 s"),
        (59.94, "59.9 s"),
        (999.4, "999 s"),
        (3600, "60 min"),
        (7500, "2 h 05 min"),
    ],
)
def test_a_duration_reads_in_the_unit_that_fits(value: float, text: str) -> None:
    assert shown.duration(value) == text


@pytest.mark.parametrize(("value", "text"), [(16, "16.0 B"), (131072, "128 KiB"), (42_063_000_000, "39.2 GiB")])
def test_a_size_reads_in_binary_units(value: float, text: str) -> None:
    assert shown.size(value) == text


@pytest.mark.parametrize(("value", "text"), [(0.62, "+62%"), (-0.004, "−0.4%"), (0.0001, "±0"), (11.0, "+1\u202f100%")])
def test_a_change_carries_its_sign(value: float, text: str) -> None:
    assert shown.change(value) == text


@given(st.lists(st.floats(0.0, 1.0), min_size=2, max_size=6).filter(lambda parts: sum(parts) > 0.01))
def test_shares_add_up_as_shown(parts: list[float]) -> None:
    fractions = [part / sum(parts) for part in parts]
    texts = shown.shares(fractions)
    assert round(sum(float(text.rstrip("%")) for text in texts), 6) == 100.0
    assert all(
        abs(float(text.rstrip("%")) - fraction * 100) < 0.1001 for text, fraction in zip(texts, fractions, strict=True)
    )


def test_what_is_missing_is_a_dash_and_claims_no_value() -> None:
    assert "data" not in shown.shown(None, "summary.x", "seconds")
    assert "data" not in shown.shown(float("nan"), "summary.x", "seconds")


def test_a_path_walks_mappings_and_lists() -> None:
    assert shown.at({"runs": [{"memory": {"mean": 3}}]}, "runs.0.memory.mean") == 3
    assert shown.at({"runs": []}, "runs.0.memory") is None
