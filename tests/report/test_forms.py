from __future__ import annotations

import csv
import io
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from kvplan.errors import InputError
from kvplan.report import forms, perfetto


def test_csv_has_a_row_a_run_with_exact_values(outcome: tuple[Any, ...]) -> None:
    rows = list(csv.DictReader(io.StringIO(forms.runs_csv(outcome[0]))))
    assert [row["run"] for row in rows] == [run["name"] for run in outcome[0]["runs"]]
    assert float(rows[1]["latency.ttft_s.p99"]) == outcome[0]["runs"][1]["latency"]["ttft_s"]["p99"]


def test_csv_names_do_not_run_as_formulas() -> None:
    assert forms.runs_csv({"runs": [{"name": "=1+1"}]}).splitlines()[1].startswith("'=1+1,")


def test_markdown_tables_keep_their_columns(outcome: tuple[Any, ...]) -> None:
    summary = {**outcome[0], "runs": [{**outcome[0]["runs"][0], "name": "a|b\n<script>`"}]}
    page = forms.markdown(summary)
    table = [line.replace("\\|", "") for line in page.splitlines() if line.startswith("|")]
    assert {line.count("|") for line in table[:3]} == {table[0].count("|")}
    assert "<script>" not in page.replace("\\<script\\>", "")


def test_perfetto_slices_nest_and_end(outcome: tuple[Any, ...], tmp_path: Path) -> None:
    step = {"t": 0.5, "tokens": {"a": 16, "b": 1}, "running": ["a", "b"], "waiting": [], "free_blocks": 7}
    path = perfetto.write_perfetto(tmp_path / "trace.json", outcome[1], outcome[2], [step])
    events = json.loads(path.read_text())["traceEvents"]
    stacks: dict[str, list[tuple[str, float]]] = {}
    for event in events:
        if event["ph"] == "b":
            stacks.setdefault(event["id"], []).append((event["name"], event["ts"]))
        elif event["ph"] == "e":
            name, begun = stacks[event["id"]].pop()
            assert (name, begun <= event["ts"]) == (event["name"], True)
    assert len(stacks) == len(outcome[1])
    assert not any(stacks.values())
    shares = [sum(event["args"].values()) for event in events if event["name"] == "pool share"]
    assert max(abs(share - 1) for share in shares) < 1e-5
    assert {
        "ph": "C",
        "name": "step: tokens",
        "pid": 1,
        "tid": 0,
        "ts": 500000.0,
        "args": {"tokens": 17},
    } in events


def test_the_notebook_view_is_small_static_and_escaped(outcome: tuple[Any, ...]) -> None:
    view = forms.notebook(outcome[0], {"verdict": "<script>x</script>"})
    assert "<script" not in view
    assert len(view) < 40_000


def test_a_picture_without_a_browser_is_refused_with_the_mend(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(InputError, match="none was found"):
        forms.picture("<p>", tmp_path / "p.png")


@pytest.mark.skipif(forms.find_browser() is None, reason="a picture needs Chromium: `apt-get install chromium`")
def test_a_picture_is_a_png_of_the_page(page: str, tmp_path: Path) -> None:
    data = forms.picture(page, tmp_path / "p.png", width=800, height=600).read_bytes()
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    assert int.from_bytes(data[16:20], "big") == 800
    assert len(data) > 20_000
