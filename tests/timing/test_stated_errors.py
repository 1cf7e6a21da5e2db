"""The errors that stand beside a roofline's predictions are the ones that were measured."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kvplan.timing.roofline import TPOT_ERROR_DENSE, TPOT_ERROR_MOE

ROWS = Path(__file__).resolve().parents[2] / "benchmarks" / "results" / "endtoend_tpot.json"


@pytest.mark.parametrize(("model", "stated"), [("dense", TPOT_ERROR_DENSE), ("MoE", TPOT_ERROR_MOE)])
def test_the_stated_error_is_the_measured_one(model: str, stated: dict[str, float]) -> None:
    rows = json.loads(ROWS.read_text())
    row = next(row for row in rows if row["system"] == "all" and row.get("model") == model)
    ((said, error),) = stated.items()
    assert error == pytest.approx(row["roofline: median absolute error"], abs=0.0005)
    assert f"({row['rows']} served points" in said
