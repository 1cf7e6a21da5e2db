"""The page says what the summary says, and nothing that came in with a trace becomes markup."""

from __future__ import annotations

import base64
import gzip
import itertools
import json
import math
import re
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from kvplan.report import render, write_report
from kvplan.report.shown import FORMATS, at

from .html import read
from .replay import results

HOSTILE = (
    "<script>window.hacked=1</script>",
    '"><img src=x onerror=window.hacked=1>',
    "</script><script>window.hacked=1</script>",
    "{{ 7*7 }} ${window.hacked=1} %{x}",
    "<a href='javascript:window.hacked=1'>press</a>",
    "🦙" * 40,
    "\u202egnorw eht yaw dnuor",
    "x" * 10_000,
    "tab\tline\nnul\x00",
    "",
)


def value_at(path: str, roots: dict[str, Any]) -> float:
    """Paths may be sums and differences: ``a + b - c``."""
    total, sign = 0.0, 1
    for part in path.split(" "):
        if part in "+-":
            sign = 1 if part == "+" else -1
        else:
            total += sign * at(roots, part)
    return total


def test_every_number_on_the_page_is_the_summarys(page: str, outcome: tuple[Any, ...]) -> None:
    numbers = read(page).all("data")
    wrong = [
        (number.attributes, number.text)
        for number in numbers
        if not math.isclose(
            float(number.attributes["value"]),
            value_at(number.attributes["data-path"], {"summary": outcome[0]}),
            rel_tol=1e-12,
        )
    ]
    assert len(numbers) > 150
    assert wrong == []


def test_what_is_shown_is_the_value_rounded(page: str) -> None:
    for number in read(page).all("data"):
        value, kind = float(number.attributes["value"]), number.attributes["data-kind"]
        if kind == "percent":  # shares may move by a unit in the last place, so that they add up
            assert abs(float(number.text.rstrip("%")) - value * 100) < 0.1001
        elif "≤" not in number.text:
            assert number.text == FORMATS[kind](value)


def test_the_shares_shown_add_up_to_a_hundred(page: str) -> None:
    rows = [
        row
        for table in read(page).all("table")
        if [cell.text for cell in table.all("th")][1:7]
        == ["used", "cached", "reserved", "internal", "external", "free"]
        for row in table.all("tbody")[0].all("tr")
    ]
    sums = [round(sum(float(cell.text.rstrip("%")) for cell in row.all("td")), 6) for row in rows]
    assert sums
    assert set(sums) == {100.0}


def test_the_summary_inside_the_page_is_the_summary(page: str, outcome: tuple[Any, ...]) -> None:
    packed = json.loads(gzip.decompress(base64.b64decode(read(page).by_id("data").text)))
    assert json.loads(packed["summary"]) == json.loads(json.dumps(outcome[0]))


def test_the_same_results_give_the_same_bytes(outcome: tuple[Any, ...]) -> None:
    assert render(*outcome) == render(*outcome)


def test_the_page_loads_nothing(page: str) -> None:
    document = read(page)
    assert "default-src 'none'" in page
    links = [e.attributes["href"] for e in document.everything() if "href" in e.attributes]
    assert all(link.startswith("#") and document.by_id(link[1:]) for link in links)
    assert [e for e in document.everything() if "src" in e.attributes] == []
    own = re.sub(r'<script type="text/plain".*?</script>', "", page, flags=re.DOTALL)
    assert re.findall(r"(?:https?:)?//[a-z0-9-]+\.[a-z]+", own) == []


def test_twenty_thousand_requests_stay_under_two_megabytes() -> None:
    summary, requests, timeline, memory_map = results(count=500)
    many = pd.concat([requests] * 20, ignore_index=True)
    assert (many["run"] == "base").sum() == 10_000
    many = pd.concat([many, many], ignore_index=True)
    many["id"] = [f"conversation-{number}-of-the-day" for number in range(len(many))]
    span = timeline["t_s"].max() + 1
    days = pd.concat([timeline.assign(t_s=timeline["t_s"] + span * lap) for lap in range(40)], ignore_index=True)
    maps = pd.concat([memory_map.assign(t_s=memory_map["t_s"] + span * lap) for lap in range(8)], ignore_index=True)
    assert len(render(summary, many, days, maps).encode()) < 2_000_000


def test_hostile_names_are_text() -> None:
    summary, requests, timeline, memory_map = results(count=60)
    requests["id"] = [HOSTILE[row % len(HOSTILE)] for row in range(len(requests))]
    for old, new in (("base", HOSTILE[0]), ("contiguous", HOSTILE[1])):
        for frame in (requests, timeline, memory_map):
            frame["run"] = frame["run"].replace(old, new)
        next(run for run in summary["runs"] if run["name"] == old)["name"] = new
    summary["scenario"]["model"] = HOSTILE[2]
    summary["scenario"]["gpu"] = {"name": HOSTILE[6] + HOSTILE[7] + "\ud800"}
    summary["scenario"]["workload"] = {"file": HOSTILE[3]}
    page = render(summary, requests, timeline, memory_map, {"verdict": HOSTILE[4], "flags": HOSTILE[1]})
    document = read(page)
    assert len(document.all("script")) == 3
    assert document.all("img") == []
    assert document.all("h1")[0].text.startswith(HOSTILE[2])
    assert document.by_id("flags").text == HOSTILE[1]
    assert HOSTILE[4] in document.by_id("answer").text


def test_headings_descend_one_level_at_a_time(page: str) -> None:
    levels = [int(e.tag[1]) for e in read(page).everything() if re.fullmatch("h[1-6]", e.tag)]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(later - earlier <= 1 for earlier, later in itertools.pairwise(levels))


def test_every_figure_has_a_name_a_description_and_a_table(page: str) -> None:
    document = read(page)
    figures = document.all("figure")
    assert len(figures) == 6
    for figure in figures:
        assert document.by_id(figure.attributes["aria-labelledby"]).text
        assert any(
            len(e.attributes.get("aria-label", "")) > 40
            for e in figure.everything()
            if e.attributes.get("role") == "img"
        )
        assert len(figure.all("details")[0].all("tr")) > 1


def test_the_knee_is_the_largest_block_that_costs_under_a_percent(page: str, outcome: tuple[Any, ...]) -> None:
    runs = {run["name"]: run for run in outcome[0]["runs"]}
    best = max(runs[name]["concurrency"]["mean"] for name in runs if name != "contiguous")
    assert runs["base"]["concurrency"]["mean"] > 0.99 * best > runs["cache.block_size=64"]["concurrency"]["mean"]
    assert "The knee, 16," in page


def test_without_a_diagnosis_no_cause_is_claimed(page: str) -> None:
    assert "This says what happened, not why" in page


def test_all_refused_is_still_a_page() -> None:
    summary, requests, timeline, memory_map = results(count=20)
    summary["runs"] = summary["runs"][:1]
    run = summary["runs"][0]
    run["requests"] |= {"finished": 0, "refused": 20, "refused_reasons": {"longer than max_model_len": 20}}
    run["latency"] = {key: dict.fromkeys(value) for key, value in run["latency"].items()}
    run["memory"] |= {"mean": None, "peak": None}
    requests = requests[requests["run"] == "base"].assign(
        status="refused", ttft_s=math.nan, tpot_s=math.nan, e2e_s=math.nan
    )
    page = render(summary, requests, timeline[:0], memory_map[:0])
    assert "Every one of the 20 requests was refused." in read(page).by_id("answer").text


def test_a_failed_write_leaves_the_old_file(outcome: tuple[Any, ...], tmp_path: Path) -> None:
    path = write_report(tmp_path / "deep" / "report.html", *outcome)
    before = path.read_bytes()
    with pytest.raises(ValueError, match="holds no run"):
        write_report(path, {"runs": []}, *outcome[1:])
    assert path.read_bytes() == before
    assert [p.name for p in path.parent.iterdir()] == ["report.html"]


def test_attention_by_block_size_at_the_measured_point_nearest_to_the_mean_batch() -> None:
    summary, *frames = results(block_sizes=(1, 64))
    for run in summary["runs"]:
        run["concurrency"]["mean"], run["memory"]["kv_cache_size_tokens"] = 20.0, 40_000
        run["memory"]["mean"]["used"] = 0.25  # 500 tokens a sequence
        run["timing"] = {
            "kind": "measured",
            "terms": [],
            "decode_by_block_size": [
                {"block_size": size, "decode_rows": rows, "decode_context": context, "seconds": rows * context / size}
                for rows, context in ((1, 16), (16, 512), (256, 8192))
                for size in (8, 128)
            ],
        }
    section = read(render(summary, *frames)).by_id("blocks")
    assert "Decode attention of a step, 16 sequences of 512 tokens" in section.text
    shown = {n.attributes["data-path"]: n for n in section.all("data") if "decode_by_block_size" in str(n.attributes)}
    assert {path.rsplit(".", 2)[1] for path in shown} == {"2", "3"}
    for path, number in shown.items():
        assert float(number.attributes["value"]) == value_at(path, {"summary": summary})
    assert "the shortest" in section.text
    assert "+1500.0%" in section.text


def test_without_such_a_profile_nothing_is_said_of_it() -> None:
    summary, *frames = results(block_sizes=(1, 64))
    assert "Attention by block size" not in render(summary, *frames)
