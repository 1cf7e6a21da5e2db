from __future__ import annotations

import numpy as np
import pandas as pd

from kvplan.report import memory_map
from kvplan.report.runs import read_runs


def frame(moments: list[list[int]]) -> pd.DataFrame:
    bins = len(moments[0])
    return pd.DataFrame(
        [(float(t), column / bins, owner) for t, owners in enumerate(moments) for column, owner in enumerate(owners)],
        columns=["t_s", "address", "request"],
    )


def test_the_packed_map_unpacks_to_the_map() -> None:
    run = read_runs({"runs": [{"name": "base"}]})[0]
    rows = [[0, 0, -1, -1], [0, 0, 1, -1], [-2, 2, 1, -1]]
    requests = pd.DataFrame({"id": ["a", "b", "<c>"], "prompt_tokens": [5, 6, 7], "output_tokens": [1, 2, 3]})
    packed = memory_map.panel(run, frame(rows), requests, end_s=3.5)
    assert packed is not None
    flat = np.repeat(packed["owners"][::2], packed["owners"][1::2])
    assert flat.reshape(-1, packed["bins"]).tolist() == rows
    assert packed["edges"].tolist() == [0, 1, 2, 3.5]
    assert packed["names"][2] == "<b>&lt;c&gt;</b><br>prompt 7, output 3 tokens"


def test_ten_live_requests_have_ten_colours_and_none_changes_its_own() -> None:
    moments = np.array([list(range(10)), list(range(5, 15))])
    colours = memory_map.hues(moments)
    assert len({colours[request] for request in range(10)}) == 10
    assert len({colours[request] for request in range(5, 15)}) == 10


def test_the_table_counts_holes() -> None:
    (moment,) = memory_map.moments(frame([[0, -1, 1, -1, -1, -2, 2, -1]]))
    assert moment == {
        "t_s": 0.0,
        "requests": 3,
        "held": 0.375,
        "cached": 0.125,
        "free": 0.5,
        "holes": 3,
        "largest_hole": 0.25,
    }
