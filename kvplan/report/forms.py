"""The other forms a result leaves in: Markdown, CSV, a picture, and what a notebook shows."""

from __future__ import annotations

import contextlib
import csv
import html
import io
import shutil
import struct
import subprocess
import tempfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kvplan.errors import InputError
from kvplan.flags import serve_flags
from kvplan.report import answer, tables
from kvplan.report.page import bar, put
from kvplan.report.runs import PARTS, read_runs
from kvplan.report.shown import at, is_number

BROWSERS = (
    "chromium",
    "chromium-browser",
    "google-chrome",
    "google-chrome-stable",
    "chrome",
    "msedge",
    "microsoft-edge",
)


def text(cell: object) -> str:
    """A table's cell without its markup."""
    return html.unescape(cell.striptags()) if hasattr(cell, "striptags") else str(cell)


def markdown(summary: Mapping[str, Any], diagnosis: Mapping[str, Any] | None = None) -> str:
    """The answer as Markdown: verdict, flags, comparison, where the pool went, the changes, how sure."""
    runs = read_runs(summary)
    parts = [f"**{_md(text(at(diagnosis, 'verdict') or answer.plain_verdict(runs)))}**", ""]
    parts += ["```sh", at(diagnosis, "flags") or serve_flags(runs[0].get("settings") or {}), "```", ""]
    shown = [tables.comparison(runs), tables.pool_average(runs, "mean")]
    if at(diagnosis, "changes"):
        assert diagnosis is not None
        shown.append(tables.changes(diagnosis))
    for table in shown:
        parts += [
            f"### {table.caption}",
            "",
            _md_row(table.head),
            "| --- |" + " ---: |" * (len(table.head) - 1),
        ]
        parts += [_md_row([text(cell) for cell in row]) for row in table.rows]
        parts.append("")
    parts += [f"- {_md(text(line))}" for line in answer.sureness(summary, diagnosis)]
    return "\n".join(parts) + "\n"


def _md_row(cells: Any) -> str:
    return "| " + " | ".join(_md(str(cell)) for cell in cells) + " |"


def _md(line: str) -> str:
    """No cell ends its row, and no name becomes markup."""
    for char in "\\|`*_[]<>":
        line = line.replace(char, "\\" + char)
    return line.replace("\n", " ").replace("\r", " ")


CSV_FIELDS = (
    *(f"memory.{key}" for key in ("pool_gib", "num_gpu_blocks", "kv_bytes_per_token")),
    *(f"memory.{moment}.{part}" for moment in ("mean", "peak") for part in PARTS),
    *(f"concurrency.{key}" for key in ("mean", "peak", "max_at_max_model_len")),
    *(f"requests.{key}" for key in ("total", "finished", "refused", "preemptions", "swaps")),
    *(f"latency.{key}.{mark}" for key in tables.LATENCY_WORDS for mark in ("mean", "p50", "p90", "p95", "p99", "max")),
    *(f"throughput.{key}" for key in ("output_tokens_per_s", "requests_per_s", "goodput_requests_per_s")),
    *(f"prefix_cache.{key}" for key in ("query_tokens", "hit_tokens", "hit_rate")),
)


def runs_csv(summary: Mapping[str, Any]) -> str:
    """One row a run, one column a figure of the summary, exact values; empty where there is none."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["run", *CSV_FIELDS])
    for run in read_runs(summary):
        values = [run.get(field) for field in CSV_FIELDS]
        writer.writerow([_csv_name(run.key), *(repr(value) if is_number(value) else "" for value in values)])
    return out.getvalue()


def _csv_name(name: str) -> str:
    """A spreadsheet runs a cell that begins like a formula: an apostrophe makes it text."""
    return "'" + name if name[:1] in ("=", "+", "-", "@", "\t", "\r") else name


def find_browser() -> str | None:
    return next((path for name in BROWSERS if (path := shutil.which(name))), None)


def picture(page: str, path: str | Path, *, width: int = 1080, height: int = 1500) -> Path:
    """The top of the page as a PNG, drawn by a Chromium that is already on this machine, without network.

    Raises:
        InputError: no browser was found, or it drew nothing within a minute.
    """
    browser = find_browser()
    if browser is None:
        raise InputError(
            "a PNG is drawn by a browser, and none was found",
            field="--format",
            value="png",
            hint=f"install one of {', '.join(BROWSERS[:3])}, or use --format html",
        )
    target = Path(path)
    with tempfile.TemporaryDirectory(prefix="kvplan-") as folder:
        source, shot = Path(folder) / "report.html", Path(folder) / "report.png"
        source.write_text(page, "utf-8", "replace")
        command = [
            browser,
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-quic",
            "--no-first-run",
            "--hide-scrollbars",
            "--disable-background-networking",
            "--disable-component-update",
            "--disable-sync",
            "--force-color-profile=srgb",
            f"--user-data-dir={folder}/profile",
            f"--window-size={width},{height}",
            "--virtual-time-budget=15000",
            f"--screenshot={shot}",
            source.as_uri(),
        ]
        with contextlib.suppress(subprocess.TimeoutExpired):
            subprocess.run(command, capture_output=True, timeout=60, check=False)
        if not shot.is_file():
            raise InputError("the browser drew no picture", field="--format", value="png", source=browser)
        return put(target, marked(shot.read_bytes()))


PNG_MARK = b"tEXtSoftware\0kvplan"
"""A chunk of text by which a picture is known again as kvplan's."""
_PNG_HEADER = 33
"""Bytes of the signature and of IHDR, which must be the first chunk."""


def marked(png: bytes) -> bytes:
    """The same picture, known again as kvplan's."""
    chunk = struct.pack(">I", len(PNG_MARK) - 4) + PNG_MARK + struct.pack(">I", zlib.crc32(PNG_MARK))
    return png[:_PNG_HEADER] + chunk + png[_PNG_HEADER:]


def notebook(summary: Mapping[str, Any], diagnosis: Mapping[str, Any] | None = None) -> str:
    """What a notebook shows of a result: verdict, bars and comparison, static, styled by itself and under
    40 KB.

    No script: notebooks strip or sandbox it. ``Result.report`` gives the whole page.
    """
    runs = [run for run in read_runs(summary) if run.tone >= 0]
    verdict = at(diagnosis, "verdict") or answer.plain_verdict(runs)
    colours = dict(zip(PARTS, ("#1f5fa8", "#8fc1dd", "#f0b64a", "#d9622b", "#8e3b76", "#d8d6d0"), strict=True))
    out = ['<div style="font:14px/1.5 system-ui,sans-serif;max-width:820px">']
    out.append(f'<p style="font:400 19px/1.35 Charter,Georgia,serif;margin:0 0 10px">{html.escape(text(verdict))}</p>')
    for drawn in filter(None, (bar(run) for run in runs)):
        strips = "".join(
            f'<i style="display:block;width:{part["width"]};background:{colours[part["key"]]}"></i>'
            for part in drawn["parts"]
        )
        out.append(
            f'<div style="margin:0 0 8px">{html.escape(drawn["name"])}<div role="img" '
            f'aria-label="{html.escape(drawn["description"])}" style="display:flex;height:18px;'
            f'border-radius:3px;overflow:hidden">{strips}</div><small>{html.escape(drawn["description"])}</small></div>'
        )
    table = tables.comparison(runs)
    head = "".join(f"<th>{html.escape(cell)}</th>" for cell in table.head)
    body = "".join(
        "<tr>" + "".join(f"<td>{html.escape(text(cell))}</td>" for cell in row) + "</tr>" for row in table.rows
    )
    out.append(f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>")
    return "\n".join(out)
