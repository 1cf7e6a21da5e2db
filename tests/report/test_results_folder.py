"""From a simulated folder to the page: what `kvplan simulate -o` wrote is what the page says."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

import kvplan
from kvplan.errors import InputError
from kvplan.planning.diagnosis import diagnose
from kvplan.report.stored import Stored, is_results_folder, read_results
from kvplan.scenario import Scenario, load_scenario

from .html import read
from .test_page import value_at

SCENARIO = {
    "model": "llama-3.1-8b",
    "gpu": "h100-sxm",
    "cache": {"kv_cache_memory_bytes": 1200 << 20},
    "scheduler": {"max_model_len": 4096},
    "slo": {"ttft_s": {"p99": 0.5}},
    "requests": [{"arrival": 0.01 * n, "prompt": 100 + 7 * n % 400, "output": 20 + 3 * n % 90} for n in range(80)],
    "variants": [{"name": "contiguous", "cache": {"layout": "contiguous"}}]
    + [{"name": f"block {size}", "cache": {"block_size": size}} for size in (1, 64)],
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return kvplan.simulate(SCENARIO).save(tmp_path_factory.mktemp("results"))


def test_every_number_is_the_summarys_and_the_diagnosis(folder: Path) -> None:
    summary = json.loads((folder / "summary.json").read_text())
    found = diagnose(Scenario.build({key: value for key, value in SCENARIO.items() if key != "variants"}))
    stored = read_results(folder)
    page = Stored(stored.summary, stored.requests, stored.timeline, stored.memory_map, found).page()
    numbers = read(page).all("data")
    roots = {"summary": summary, "diagnosis": found}
    for number in numbers:
        said, meant = float(number.attributes["value"]), value_at(number.attributes["data-path"], roots)
        assert math.isclose(said, meant, rel_tol=1e-12), number.attributes["data-path"]
    assert len(numbers) > 300
    assert found["verdict"] in read(page).by_id("answer").text


def test_the_shares_of_every_run_are_on_the_page_and_sum_to_one(folder: Path) -> None:
    for run in json.loads((folder / "summary.json").read_text())["runs"]:
        for moment in ("mean", "peak"):
            assert math.isclose(sum(run["memory"][moment].values()), 1.0, abs_tol=1e-9)


def test_runs_with_other_block_sizes_make_the_trade_off(folder: Path) -> None:
    section = read((folder / "report.html").read_text("utf-8")).by_id("blocks").text
    assert "As simulated" in section


def test_a_folder_without_a_map_gives_a_page_without_one(folder: Path, tmp_path: Path) -> None:
    for name in ("summary.json", "requests.parquet", "timeline.parquet"):
        (tmp_path / name).write_bytes((folder / name).read_bytes())
    assert is_results_folder(tmp_path)
    assert 'id="map"' not in read_results(tmp_path).page()


@pytest.mark.parametrize(
    ("name", "content", "complaint"),
    [
        ("summary.json", b"{", "is not JSON"),
        ("summary.json", b'{"runs": []}', "holds no runs"),
        ("requests.parquet", b"PAR1 not", "is not a Parquet file"),
        ("timeline.parquet", None, "is missing"),
    ],
)
def test_a_broken_folder_is_named(
    folder: Path, tmp_path: Path, name: str, content: bytes | None, complaint: str
) -> None:
    for path in folder.glob("*.*"):
        (tmp_path / path.name).write_bytes(path.read_bytes())
    if content is None:
        (tmp_path / name).unlink()
    else:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match=complaint) as error:
        read_results(tmp_path)
    assert name in str(error.value)


def test_a_notebook_sees_the_result() -> None:
    view = kvplan.simulate({**SCENARIO, "variants": []})._repr_html_()
    assert "sequences ran at once" in view


@pytest.mark.slow
def test_twenty_thousand_requests_are_diagnosed_and_written_on_a_small_page(tmp_path: Path) -> None:
    scenario = load_scenario("azure-conversation", {})
    result = kvplan.simulate(scenario)
    found = diagnose(scenario)
    page = Stored(result.summary, result.requests, result.timeline, result.memory_map, found).report(
        tmp_path / "r.html"
    )
    assert len(result.requests) == 2 * 20_000
    assert page.stat().st_size < 2_000_000
