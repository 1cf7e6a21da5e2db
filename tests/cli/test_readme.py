"""README.md and the scripts that fill it: no command that does not exist, no number that was not measured."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import yaml

from kvplan.cli import COMMANDS, build
from kvplan.scenario import Scenario
from scripts.readme_picture import PARTS, TOP, picture
from scripts.readme_tables import filled
from tests.cli.conftest import ROOT
from tests.cli.results import FakeResult

README = (ROOT / "README.md").read_text(encoding="utf-8")
ROW = {"machine": {"cpu": "a CPU", "cores": 2}, "commit": "abc", "date": "2026-11-30"}


def test_its_tables_are_those_of_the_rows_and_of_the_command_line() -> None:
    assert filled(README, ROOT / "benchmarks" / "results") == README, "run `make readme`"
    assert re.findall(r"^\| `kvplan (\w+)", README, re.M) == list(COMMANDS)


def test_every_flag_that_it_shows_exists() -> None:
    group: Any = build()
    for block in re.findall(r"```bash\n(.*?)```", README, re.S):
        for name, rest in re.findall(r"kvplan (\w+)([^\n#]*)", block):
            command = group.targets[name].load(name)
            known = {word for parameter in command.params for word in (*parameter.opts, *parameter.secondary_opts)}
            assert set(re.findall(r"(?<=\s)--?[a-z][\w-]*", rest)) <= known


def test_its_scenario_is_a_scenario() -> None:
    [text] = re.findall(r"```yaml\n(.*?)```", README, re.S)
    assert [name for name, _ in Scenario.build(yaml.safe_load(text)).runs()] == ["base", "fp8", "contiguous"]


def marked(columns: dict[str, Any]) -> str:
    spec = json.dumps({"rows": "speed", "columns": columns})
    return f"before\n<!-- measured {spec} -->\nold\n<!-- /measured -->\nafter"


def test_a_table_is_made_of_rows(tmp_path: Path) -> None:
    rows = [{"case": "a|b", "rate": 12345.6, **ROW}, {"case": "c", **ROW}]
    (tmp_path / "speed.json").write_text(json.dumps(rows))
    text = filled(marked({"case": "Case", "rate": ["Requests/s", ",.0f"]}), tmp_path)
    assert text.splitlines()[2:7] == [
        "| Case | Requests/s |",
        "| --- | --: |",
        "| a\\|b | 12,346 |",
        "| c | – |",
        "",
    ]
    assert "<sub>Measured on a CPU, 2 cores, commit abc, 2026-11-30.</sub>\n<!-- /measured -->\nafter" in text
    assert filled(text, tmp_path) == text


def test_what_was_not_measured_is_said(tmp_path: Path) -> None:
    assert "Not measured yet: `make bench` writes `benchmarks/results/speed.json`" in filled(marked({}), tmp_path)


@pytest.mark.parametrize("name", ["LICENSE", "CHANGELOG.md", "CONTRIBUTING.md"])
def test_what_it_links_to_is_there(name: str) -> None:
    assert (ROOT / name).read_text(encoding="utf-8").strip()


def test_the_picture_is_a_drawing_of_the_result() -> None:
    drawing = ElementTree.fromstring(picture(FakeResult(names=("paged & all", "<max>"))))  # type: ignore[arg-type]
    words = [element.text for element in drawing.iter("{http://www.w3.org/2000/svg}text")]
    assert [word for word in words if word and ": 12.3 sequences at once" in word] == [
        "paged & all: 12.3 sequences at once on average, 1,000 output tokens/s, p99 TTFT 250 ms",
        "<max>: 12.3 sequences at once on average, 1,000 output tokens/s, p99 TTFT 500 ms",
    ]
    bands = [element.get("d", "") for element in drawing.iter("{http://www.w3.org/2000/svg}path")]
    assert len(bands) == 2 * len(PARTS)
    heights = [float(point.split()[1]) for point in bands[len(PARTS) - 1][1:-1].split("L")]
    assert min(heights) == TOP  # the last part ends where the pool ends, at every moment
    assert heights[: len(heights) // 2] == [TOP] * (len(heights) // 2)


def test_the_licence_is_the_apache_one() -> None:
    text = (ROOT / "LICENSE").read_text(encoding="utf-8")
    assert "Apache License" in text
    assert "Version 2.0, January 2004" in text
