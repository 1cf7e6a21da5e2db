"""What a notebook shows of a result."""

from __future__ import annotations

import html
from collections.abc import Mapping
from typing import Any

from kvplan.report import answer, tables
from kvplan.report.forms import text
from kvplan.report.page import bar
from kvplan.report.runs import PARTS, read_runs
from kvplan.report.shown import at


def notebook_html(summary: Mapping[str, Any], diagnosis: Mapping[str, Any] | None = None) -> str:
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
