"""Runs the studies again: ``python reports/remake.py [--check] [NAME ...]``.

A study is a folder with

- ``study.yaml``: the question, the runs (a shipped workload each, and what is set differently), what is kept of
  them, the picture, and published values to stand beside;
- ``summary.json``, ``picture.svg`` and the table in ``README.md``, which this script writes.

``--check`` writes nothing and fails where what comes out is not what is committed: numbers to 1e-6 (a
processor may round differently), tables and pictures exactly, as drawn from the committed numbers.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))

import kvplan  # noqa: E402
from kvplan.report import svg  # noqa: E402
from kvplan.report.runs import PARTS  # noqa: E402
from kvplan.report.shown import at  # noqa: E402
from kvplan.scenario import Scenario  # noqa: E402
from kvplan.scenario.merge import merged, nested  # noqa: E402

DATA = HERE.parent.parent / "shared" / "data"
WORDS = {"ttft_s": "TTFT, s", "tpot_s": "TPOT, ms", "e2e_s": "end to end, s", "itl_s": "ITL, ms"}
WORDS |= {"makespan_s": "makespan, s", "output_tokens_per_s": "output tokens/s", "peak_running": "running at the peak"}
BEGIN, END = "<!-- table: written by remake.py -->", "<!-- end of table -->"


def scenario_of(run: Mapping[str, Any], common: Mapping[str, Any]) -> dict[str, Any]:
    """The workload's own mapping, without its variants, with the study's settings and the run's over it."""
    path = HERE.parent / "workloads" / f"{run['workload']}.yaml"
    mapping = yaml.safe_load(path.read_text("utf-8"))
    mapping.pop("variants", None)
    for settings in (common, run.get("set") or {}):
        for key, value in settings.items():
            mapping = merged(mapping, nested(key, value))
    synthetic = mapping["workload"]["synthetic"]
    mapping["workload"]["synthetic"] = {key: value for key, value in synthetic.items() if value is not None}
    width = run.get("beam_width")
    if width:  # generators draw no beams: the same requests, written out
        trace = Scenario.build(mapping).trace()
        columns = zip(trace.arrival_s.tolist(), trace.prompt_tokens.tolist(), trace.output_tokens.tolist(), strict=True)
        mapping.pop("workload")
        mapping["requests"] = [
            {"arrival": arrival, "prompt": prompt, "output": output, "beam_width": width}
            for arrival, prompt, output in columns
        ]
    return mapping


def runs_of(study: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Every run, ``grid`` unfolded: each of its runs with each value of its key."""
    for run in study["runs"]:
        grid = run.get("grid")
        if not grid:
            yield run
            continue
        ((key, values),) = grid.items()
        for value in values:
            yield {**run, "name": f"{run['name']} {value}", "of": run["name"], "at": value,
                   "set": {**(run.get("set") or {}), key: value}}  # fmt: skip


def missing(study: Mapping[str, Any]) -> Path | None:
    """A file that the study needs and this machine lacks: measured runs are not in the repository."""
    paths = [DATA / path for path in (study.get("measured") or {}).values()]
    return next((path for path in paths if not path.exists()), None)


def measure_against(measured: Mapping[str, str]) -> list[dict[str, Any]]:
    """One row a figure of a run that was measured: what the simulator says, and what was seen."""
    from kvplan.calibration.llmservingsim import import_llmservingsim
    from kvplan.calibration.read_observed import read_observed
    from kvplan.calibration.validate import validate_observed
    from kvplan.timing import write_profile

    with tempfile.TemporaryDirectory() as folder:
        profile = Path(folder) / "profile.json"
        write_profile(import_llmservingsim(DATA / measured["profile"]), profile)
        found = validate_observed(
            read_observed(DATA / measured["observed"]), DATA / measured["trace"], {"timing": {"profile": str(profile)}}
        )
    rows = []
    for figure in found.comparison.figures:
        if figure.observed is not None and figure.predicted is not None:
            name = f"{WORDS.get(figure.measure, figure.measure)} {figure.rank}".strip()
            scale = 1e3 if "ms" in name.replace(",", "").split() else 1.0
            values = {"predicted": figure.predicted * scale, "observed": figure.observed * scale, "error": figure.error}
            rows.append({"name": name, "values": values, "published": {}})
    return rows


def measure(study: Mapping[str, Any]) -> list[dict[str, Any]]:
    """One row a run: its name and what the study keeps of its summary."""
    if "measured" in study:
        return measure_against(study["measured"])
    rows = []
    for run in runs_of(study):
        summary = kvplan.simulate(Scenario.build(scenario_of(run, study.get("set") or {}))).summary["runs"][0]
        kept = {path: at(summary, path) for path in study["keep"]}
        for name, (part, *rest) in (study.get("share") or {}).items():
            share = at(summary, part) / (at(summary, part) + sum(at(summary, other) for other in rest))
            kept[name] = share
        if "tokens" in run:  # what dividing the pool by the bytes of a token promises
            kept["naive"] = (
                at(summary, "memory.pool_gib") * 2**30 / (at(summary, "memory.kv_bytes_per_token") * run["tokens"])
            )
        place = {key: run[key] for key in ("of", "at") if key in run}
        rows.append({"name": run["name"], **place, "values": kept, "published": run.get("published") or {}})
        print(f"  {run['name']}", file=sys.stderr)
    return rows


def picture(study: Mapping[str, Any], rows: list[dict[str, Any]]) -> str:
    wanted = study["picture"]
    if wanted["kind"] == "pool":
        bars = [(row["name"], row["values"]["memory.mean"]) for row in rows]
        return svg.stacked_bars(study["title"], bars, wanted.get("notes") or ())
    if wanted["kind"] == "bars":
        only = wanted.get("only")
        rows = [row for row in rows if only is None or row["name"].rpartition(" ")[2] in only]
        columns = [(panel["title"], [number(row, panel["value"]) for row in rows]) for panel in wanted["panels"]]
        return svg.bar_columns(study["title"], [row["name"] for row in rows], columns, wanted.get("notes") or ())
    names = list(dict.fromkeys(row["of"] for row in rows))
    labels = list(dict.fromkeys(row["at"] for row in rows))
    charts = []
    for panel in wanted["panels"]:
        series = []
        for name in names:
            known = {row["at"]: row["values"].get(panel["value"]) for row in rows if row["of"] == name}
            series.append((name, [known.get(label) for label in labels]))
        charts.append(svg.Panel(panel["title"], series, panel.get("percent", False), panel.get("log", False)))
    return svg.panels(study["title"], [str(label) for label in labels], charts, wanted["x"], wanted.get("notes") or ())


def table(study: Mapping[str, Any], rows: list[dict[str, Any]]) -> str:
    """Markdown: the columns that the study names, published values beside ours with the distance."""
    columns = study["table"]
    lines = ["| | " + " | ".join(column["title"] for column in columns) + " |", "| --- |" + " ---: |" * len(columns)]
    for row in rows:
        cells = []
        for column in columns:
            value = number(row, column["value"])
            published = row["published"].get(column["value"])
            cell = shown(value, column.get("percent", False))
            if published is not None and value is not None:
                distance = value - published if column.get("percent") else value / published - 1
                unit = " points" if column.get("percent") else ""
                far = f"{distance * 100:+.1f}{unit or '%'}"
                cell += f" (published {shown(published, column.get('percent', False))}, {far})"
            cells.append(cell)
        lines.append(f"| {row['name']} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def crossings(study: Mapping[str, Any], rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """For each group of runs, where along its grid the bounded value first exceeds the bound (straight between)."""
    bound = study.get("bound")
    if not bound:
        return []
    found = []
    for name in dict.fromkeys(row["of"] for row in rows):
        points = [(row["at"], row["values"][bound["value"]]) for row in rows if row["of"] == name]
        reached = None
        for (x0, y0), (x1, y1) in itertools.pairwise(points):
            if y0 <= bound["at"] < y1:
                reached = x0 + (x1 - x0) * (bound["at"] - y0) / (y1 - y0)
                break
        published = (study.get("published") or {}).get(name)
        found.append({"name": name, "at": reached, "published": published})
    return found


def bound_table(study: Mapping[str, Any], found: list[dict[str, Any]]) -> str:
    lines = [f"| | {study['bound']['title']} | published | ours / published |", "| --- | ---: | ---: | ---: |"]
    for row in found:
        both = row["at"] is not None and row["published"] is not None
        ratio = f"{row['at'] / row['published']:.2f}" if both else "–"
        lines.append(f"| {row['name']} | {shown(row['at'], False)} | {shown(row['published'], False)} | {ratio} |")
    return "\n".join(lines)


def number(row: Mapping[str, Any], path: str) -> float | None:
    """A kept value, or one inside a kept mapping; ``a + b`` adds."""
    total = 0.0
    for part in path.split(" + "):
        value = row["values"].get(part)
        if value is None:
            head, _, tail = part.rpartition(".")
            value = (row["values"].get(head) or {}).get(tail)
        if value is None:
            return None
        total += value
    return total


def shown(value: float | None, percent: bool) -> str:
    if value is None:
        return "–"
    if percent:
        return f"{value * 100:.1f}%"
    if value == int(value):
        return f"{value:,.0f}"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def same(ours: Any, theirs: Any) -> bool:
    if isinstance(ours, Mapping) and isinstance(theirs, Mapping):
        return set(ours) == set(theirs) and all(same(ours[key], theirs[key]) for key in ours)
    if isinstance(ours, list) and isinstance(theirs, list):
        return len(ours) == len(theirs) and all(map(same, ours, theirs))
    if isinstance(ours, float) and isinstance(theirs, (int, float)):
        return math.isclose(ours, theirs, rel_tol=1e-6, abs_tol=1e-9)
    return bool(ours == theirs)


def remake(folder: Path, check: bool) -> bool:
    """Whether the committed results stand (always true when writing)."""
    study = yaml.safe_load((folder / "study.yaml").read_text("utf-8"))
    rows = measure(study)
    found = crossings(study, rows)
    summary = {
        "title": study["title"],
        "kvplan": kvplan.__version__,
        "rows": rows,
        "bounds": found,
        "parts": list(PARTS),
    }
    if check:
        committed = json.loads((folder / "summary.json").read_text("utf-8"))
        if not same({**summary, "kvplan": ""}, {**committed, "kvplan": ""}):
            return False
        rows, found = committed["rows"], committed["bounds"]
    readme = (folder / "README.md").read_text("utf-8")
    before, _, rest = readme.partition(BEGIN)
    text = bound_table(study, found) if found else table(study, rows)
    fresh = f"{before}{BEGIN}\n{text}\n{END}{rest.partition(END)[2]}"
    drawn = picture(study, rows)
    if check:
        return readme == fresh and drawn == (folder / "picture.svg").read_text("utf-8")
    (folder / "summary.json").write_text(json.dumps(summary, indent=1) + "\n", "utf-8")
    (folder / "README.md").write_text(fresh, "utf-8")
    (folder / "picture.svg").write_text(drawn, "utf-8")
    return True


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*")
    parser.add_argument("--check", action="store_true")
    asked = parser.parse_args()
    folders = [path.parent for path in sorted(HERE.glob("*/study.yaml"))]
    folders = [folder for folder in folders if not asked.names or folder.name in asked.names]
    failed = []
    for folder in folders:
        lacking = missing(yaml.safe_load((folder / "study.yaml").read_text("utf-8")))
        if lacking is not None:
            print(f"{folder.name}: left out, {lacking.name} is not on this machine", file=sys.stderr)
            continue
        print(folder.name, file=sys.stderr)
        if not remake(folder, asked.check):
            failed.append(folder.name)
    for name in failed:
        print(f"{name}: what comes out is not what is committed; run `make studies`", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
