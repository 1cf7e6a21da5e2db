"""The capacity report: one HTML file that needs nothing but a browser."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml
from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from kvplan.files import make_folder, write_bytes
from kvplan.flags import serve_flags
from kvplan.report import answer, block_size, figures, gains, latency, tables
from kvplan.report import memory_map as maps
from kvplan.report.definitions import DEFINITIONS
from kvplan.report.kernel_time import kernel_times
from kvplan.report.ledger import block_facts, ledger
from kvplan.report.pack import asset, finite, pack_json, plotly_bundle
from kvplan.report.runs import PARTS, Run, plain, read_runs
from kvplan.report.shown import at, is_number, percent, shares, shown

if TYPE_CHECKING:
    import pandas as pd


def render(
    summary: Mapping[str, Any],
    requests: pd.DataFrame,
    timeline: pd.DataFrame,
    memory_map: pd.DataFrame,
    diagnosis: Mapping[str, Any] | None = None,
) -> str:
    """The page as text.

    Args:
        summary: what ``summary.json`` holds.
        requests, timeline, memory_map: the frames of the same results, all runs, in their ``run``
        column. diagnosis: what ``kvplan diagnose`` found, or None: then the page says what happened and
        claims no cause.

    The same arguments give the same bytes. Nothing in them can become markup or script.
    """
    runs = read_runs(summary)
    if not runs:
        raise ValueError("the summary holds no run")
    view = View(summary, runs, requests, timeline, memory_map, diagnosis)
    environment = Environment(
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    return environment.from_string(asset("report.html.j2")).render(view.context())


def write_report(
    path: str | Path,
    summary: Mapping[str, Any],
    requests: pd.DataFrame,
    timeline: pd.DataFrame,
    memory_map: pd.DataFrame,
    diagnosis: Mapping[str, Any] | None = None,
) -> Path:
    """``render`` into ``path``, whole or not at all; missing parent folders are made."""
    text = render(summary, requests, timeline, memory_map, diagnosis)
    return put(Path(path), text.encode("utf-8", "replace"))


def put(path: Path, data: bytes) -> Path:
    """Writes a file whole or not at all, its folder too."""
    make_folder(path.parent)
    write_bytes(path, data)
    return path


CONTENTS = (
    ("answer", "Answer", None),
    ("pool", "Where the pool went", None),
    ("map", "Physical memory", "map"),
    ("load", "Concurrency", "load"),
    ("blocks", "Block size", "blocks"),
    ("latency", "Latency", "latency"),
    ("changes", "What would help", "changes"),
    ("bytes", "Bytes", None),
    ("inputs", "Inputs", None),
)
"""Sections: anchor, words, and the drawing (or ``changes``) without which there is none."""


class View:
    """Everything the template names, computed once from one set of results."""

    def __init__(
        self,
        summary: Mapping[str, Any],
        runs: list[Run],
        requests: pd.DataFrame,
        timeline: pd.DataFrame,
        map_frame: pd.DataFrame,
        diagnosis: Mapping[str, Any] | None,
    ) -> None:
        self.summary, self.runs, self.diagnosis = summary, runs, diagnosis
        self.requests, self.timeline, self.map_frame = requests, timeline, map_frame
        self.compared = [run for run in runs if run.tone >= 0]
        present = set(timeline["run"].unique())
        self.drawn = [run for run in self.compared if run.key in present]
        self.scenario: Mapping[str, Any] = summary.get("scenario") or {}
        self.slo = self.scenario.get("slo") or {}

    def context(self) -> dict[str, Any]:
        drawings: dict[str, Any] = {}
        if self.drawn:
            drawings["pool"] = figures.pool_over_time(self.drawn, self.timeline)
            drawings["load"] = figures.load_over_time(self.drawn, self.timeline)
        if self.requests["e2e_s"].notna().any():
            drawings["latency"] = latency.latency_distributions(self.compared, self.requests, self.slo)
        words: dict[str, Any] = {**self._pool(), **self._load(), **self._latency()}
        words |= self._map(drawings) | self._blocks(drawings)
        summary_text = json.dumps(finite(self.summary), indent=2, ensure_ascii=False)
        return {
            **self._head(),
            **self._answer(),
            **words,
            **self._changes(),
            "contents": [
                (section, title)
                for section, title, needed in CONTENTS
                if needed is None or needed in drawings or (needed == "changes" and at(self.diagnosis, "changes"))
            ],
            "ledger": ledger(self.runs[0]),
            "facts": block_facts(self.runs[0]),
            "scenario": _scenario_text(self.scenario),
            "terms_table": tables.timing_terms(self.runs[0]),
            "definitions": DEFINITIONS,
            "versions": self._versions(),
            "heights": {name: drawing["layout"]["height"] for name, drawing in drawings.items()},
            "css": Markup(asset("report.css")),
            "script": Markup(asset("report.js")),
            "plotly": Markup(plotly_bundle()),
            "data": Markup(pack_json({"figures": drawings, "summary": summary_text})),
        }

    def _head(self) -> dict[str, Any]:
        model, gpu = (_name(self.scenario.get(key)) for key in ("model", "gpu"))
        total, path = self.runs[0].get("requests.total"), self.runs[0].path("requests.total")
        generated = at(self.summary, "trace.format") == "synthetic"
        subject = Markup("{} {}requests").format(shown(total, path, "count"), "generated " if generated else "")
        source = at(self.summary, "trace.path") or at(self.scenario, "workload.file")
        if source and not generated:
            subject += Markup(" of <bdi>{}</bdi>").format(plain(source, 100))
        engine = self.scenario.get("engine")
        if isinstance(engine, Mapping):
            name = plain(f"{engine.get('name', '')} {engine.get('version', '')}".strip(), 40)
            subject += Markup(", under the rules of {}").format(name)
        version = plain(self.summary.get("kvplan", ""), 24)
        return {
            "model": model,
            "gpu": gpu,
            "title": f"{model} on {gpu}",
            "subject": subject,
            "version": version,
        }

    def _answer(self) -> dict[str, Any]:
        verdict = at(self.diagnosis, "verdict")
        return {
            "verdict": verdict if verdict else answer.plain_verdict(self.runs),
            "diagnosed": bool(verdict),
            "keys": answer.key_figures(self.runs[0], self.slo),
            "flags": at(self.diagnosis, "flags") or serve_flags(self.runs[0].get("settings") or {}),
            "flags_title": "Flags to paste" if at(self.diagnosis, "flags") else "The flags as simulated",
            "sure": answer.sureness(self.summary, self.diagnosis),
            "compared": self.compared,
            "comparison": tables.comparison(self.compared),
        }

    def _pool(self) -> dict[str, Any]:
        bars = [drawn for run in self.compared if (drawn := bar(run))]
        said = "; ".join(f"{drawn['name']}: {drawn['description']}" for drawn in bars)
        return {
            "bars": bars,
            "parts": tables.parts_key(),
            "mean_table": tables.pool_average(self.compared, "mean"),
            "peak_table": tables.pool_average(self.compared, "peak"),
            "pool_description": f"Stacked areas: share of the pool over time, by run. On average, {said}.",
            "pool_table": tables.pool_over_time(self.drawn, self.timeline),
        }

    def _load(self) -> dict[str, Any]:
        said = "; ".join(
            f"{run.label}: {run.get('concurrency.mean'):.1f} running on average, at most {run.get('concurrency.peak')}"
            for run in self.compared
            if is_number(run.get("concurrency.mean"))
        )
        return {
            "load_description": f"Three line charts over time: running, waiting, preemptions. {said}.",
            "load_table": tables.load_over_time(self.drawn, self.timeline),
        }

    def _latency(self) -> dict[str, Any]:
        met = [
            Markup("{}").format(text)
            for key in ("ttft_s", "tpot_s", "e2e_s")
            if (text := answer.objective(self.runs[0], self.slo, key))
        ]
        note = Markup("The base run {}.").format(Markup(", ").join(met)) if met else None
        return {
            "latency_description": "Cumulative distributions of time to first token, time per output "
            "token and end-to-end time, by run, with the objectives as vertical lines.",
            "latency_table": tables.latencies(self.compared),
            "latency_note": note,
        }

    def _map(self, drawings: dict[str, Any]) -> dict[str, Any]:
        panels = []
        columns = min(maps.MAX_COLUMNS, 2 * maps.MAX_COLUMNS // max(1, len(self.drawn)))
        for run in self.drawn:
            frame = self.map_frame[self.map_frame["run"] == run.key]
            mine = self.requests[self.requests["run"] == run.key]
            end_s = float(self.timeline.loc[self.timeline["run"] == run.key, "t_s"].max())
            panel = maps.panel(run, frame, mine, end_s, columns)
            panels += [panel] if panel else []
        if not panels:
            return {"map_description": "", "map_table": None}
        drawings["map"] = figures.memory_maps(panels)
        return {
            "map_description": "Heat map of the KV pool: address upward, time rightward, one colour a "
            "request, blank where memory is free. The table says who held how much.",
            "map_table": tables.maps(self.drawn, self.map_frame),
        }

    def _blocks(self, drawings: dict[str, Any]) -> dict[str, Any]:
        base = self.runs[0]
        points = block_size.sweep_points(self.runs)
        lengths = block_size.from_lengths(
            self.requests[self.requests["run"] == base.key], base.get("throughput.requests_per_s")
        )
        if not points and not lengths:
            return {}
        kernel = kernel_times(base)
        drawings["blocks"] = block_size.figure(points, lengths, kernel)
        measured = {"kernel_table": tables.kernel_times(base, kernel) if kernel is not None else None}
        if points:
            mark = block_size.knee(points)
            words = (
                f"The knee, {mark}, is the largest block size that costs under 1% of the best concurrency "
                "and of the best throughput: larger blocks mean shorter tables and fewer allocations."
                if mark
                else "Small blocks waste less of a sequence's last block; large ones mean shorter tables."
            )
            return {
                "blocks_words": words,
                "blocks_title": "As simulated",
                "blocks_table": tables.block_sizes(points),
                "blocks_description": "Line charts over block size: waste, concurrency and throughput. " + words,
                "lengths_table": tables.block_size_lengths(lengths) if lengths else None,
                **measured,
            }
        words = (
            "From this trace's lengths alone, nothing simulated: a larger block leaves more of a sequence's "
            "last block empty and needs fewer table entries and allocations. Variants with other block sizes "
            "show what it does to speed."
        )
        return {
            "blocks_words": words,
            "blocks_title": "What the lengths say",
            "blocks_table": tables.block_size_lengths(lengths),
            "blocks_description": "Line charts over block size: empty slots, and table entries a sequence.",
            "lengths_table": None,
            **measured,
        }

    def _changes(self) -> dict[str, Any]:
        if not at(self.diagnosis, "changes"):
            return {"changes": [], "changes_table": None}
        assert self.diagnosis is not None
        return {"changes": gains.rows(self.diagnosis), "changes_table": tables.changes(self.diagnosis)}

    def _versions(self) -> list[tuple[str, Any]]:
        base = self.runs[0]
        facts: list[tuple[str, Any]] = [("kvplan", plain(self.summary.get("kvplan", "–")))]
        facts.append(("summary schema", plain(self.summary.get("schema_version", "–"))))
        for inside, words in (("sim.steps", "engine steps"), ("sim.steps_skipped", "of them jumped over")):
            facts.append((words, shown(base.get(inside), base.path(inside), "count")))
        facts.append(("simulated in", shown(base.get("sim.wall_s"), base.path("sim.wall_s"), "seconds")))
        return facts


def _name(value: Any) -> str:
    if isinstance(value, Mapping):
        return plain(value.get("name") or "a custom one")
    return plain(value or "–")


SHOWN_REQUESTS = 12


def _scenario_text(scenario: Mapping[str, Any]) -> str:
    """The scenario as YAML; of many inline requests the first few, the rest being in summary.json."""
    shortened = dict(scenario)
    requests = scenario.get("requests") or ()
    if len(requests) > SHOWN_REQUESTS:
        shortened["requests"] = list(requests)[:SHOWN_REQUESTS]
    text = yaml.safe_dump(finite(shortened), sort_keys=False, allow_unicode=True, width=100)
    if len(requests) > SHOWN_REQUESTS:
        text += f"# and {len(requests) - SHOWN_REQUESTS} requests more: all of them are in summary.json\n"
    return text


def bar(run: Run) -> dict[str, Any] | None:
    values = [run.get(f"memory.mean.{part}") for part in PARTS]
    if not all(is_number(value) for value in values):
        return None
    parts = [
        {
            "key": part,
            "width": f"{max(value, 0) * 100:.3f}%",
            "visible": round(value, 3) > 0,
            "shown": shown(value, run.path(f"memory.mean.{part}"), "percent", text),
        }
        for part, value, text in zip(PARTS, values, shares(values), strict=True)
    ]
    said = ", ".join(f"{percent(value)} {part}" for part, value in zip(PARTS, values, strict=True))
    return {"name": run.label, "parts": parts, "description": said}
