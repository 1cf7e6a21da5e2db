from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from kvplan.report.thin import merge_buckets, thin_extremes


@given(st.integers(0, 2**32 - 1), st.integers(1, 5000), st.integers(8, 200))
def test_no_peak_and_no_trough_is_lost(seed: int, count: int, points: int) -> None:
    y = np.random.default_rng(seed).normal(size=count)
    kept = thin_extremes(np.arange(count, dtype=float), y, points)
    assert len(kept) <= points
    assert (y[kept].min(), y[kept].max()) == (y.min(), y.max())
    assert (kept[0], kept[-1]) == (0, count - 1)


def test_a_single_spike_survives_a_million_samples() -> None:
    y = np.zeros(1_000_000)
    y[765_432] = 1.0
    assert 765_432 in thin_extremes(np.arange(1e6), y, 100)


@given(st.integers(0, 2**32 - 1), st.integers(1, 3000), st.integers(1, 100))
def test_merged_shares_still_sum_to_one_and_keep_the_mean(seed: int, count: int, points: int) -> None:
    rng = np.random.default_rng(seed)
    shares = rng.dirichlet(np.ones(6), count)
    weight = rng.integers(0, 3, count).astype(float)
    starts, merged = merge_buckets(weight, shares, points)
    assert len(starts) <= max(points, 1) or count <= points
    assert np.allclose(merged.sum(axis=1), 1, atol=1e-12)
    if weight.sum() and count > points:
        stretch = np.add.reduceat(weight, starts)
        assert np.allclose(stretch @ merged / weight.sum(), weight @ shares / weight.sum())
