"""Two static pictures in plain SVG, for pages that run no script: stacked bars, and lines in small panels.

The same input gives the same bytes, so a committed picture changes only when its numbers do.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

from kvplan.report.runs import PARTS, plain

INK, MUTED, RULE, PAPER = "#1c2126", "#5a646e", "#dfdcd5", "#ffffff"
PART_COLOURS = dict(zip(PARTS, ("#1f5fa8", "#8fc1dd", "#f0b64a", "#d9622b", "#8e3b76", "#e6e4de"), strict=True))
LINE_COLOURS = ("#1f5fa8", "#d9622b", "#258062", "#8e3b76", "#a87a00", "#5a646e")
DASHES = ("", "6 4", "2 3", "8 3 2 3", "10 4", "1 2")
WIDTH = 820
FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', 'Liberation Sans', sans-serif"


def text(x: float, y: float, words: str, *, size: float = 13, fill: str = INK, anchor: str = "start") -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size:g}" fill="{fill}" text-anchor="{anchor}">'
        f"{escape(words)}</text>"
    )


def document(height: float, title: str, description: str, body: Sequence[str]) -> str:
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:.0f}" width="{WIDTH}" '
            f'height="{height:.0f}" role="img" aria-labelledby="t d" font-family="{FONT}">',
            f'<title id="t">{escape(title)}</title><desc id="d">{escape(description)}</desc>',
            f'<rect width="{WIDTH}" height="{height:.0f}" fill="{PAPER}"/>',
            *body,
            "</svg>\n",
        ]
    )


def stacked_bars(title: str, rows: Sequence[tuple[str, Mapping[str, float]]], notes: Sequence[str] = ()) -> str:
    """One bar a row, its parts the fractions of `PARTS`, each with its share where it is wide enough.

    Args:
        rows: (label, fractions by part, summing to 1).
        notes: a line under the picture each.
    """
    left, right, top, step, thick = 170.0, WIDTH - 24.0, 84.0, 46.0, 26.0
    body = [text(24, 32, title, size=17)]
    x = 24.0
    for part in PARTS:
        if any(values[part] >= 0.0005 for _, values in rows):
            body.append(f'<rect x="{x:.1f}" y="48" width="11" height="11" rx="2" fill="{PART_COLOURS[part]}"/>')
            body.append(text(x + 17, 58, part, fill=MUTED))
            x += 34 + 7.4 * len(part)
    for place, (label, values) in enumerate(rows):
        y = top + place * step
        body.append(text(left - 14, y + thick / 2 + 5, plain(label, 22), anchor="end"))
        at = left
        for part in PARTS:
            width = values[part] * (right - left)
            if width < 0.05:
                continue
            body.append(
                f'<rect x="{at:.2f}" y="{y:.1f}" width="{max(width - 1, 0.5):.2f}" height="{thick:g}" '
                f'fill="{PART_COLOURS[part]}"><title>{part} {values[part]:.1%}</title></rect>'
            )
            if width > 44:
                light = part in ("used", "internal", "external")
                body.append(
                    text(
                        at + width / 2,
                        y + thick / 2 + 4.5,
                        f"{values[part]:.1%}",
                        size=12,
                        fill="#ffffff" if light else INK,
                        anchor="middle",
                    )
                )
            at += width
    y = top + len(rows) * step + 6
    body += [text(24, y + 18 * place, note, fill=MUTED) for place, note in enumerate(notes)]
    said = "; ".join(f"{label}: " + ", ".join(f"{part} {values[part]:.1%}" for part in PARTS) for label, values in rows)
    return document(y + 18 * len(notes) + 8, title, said, body)


@dataclass(frozen=True)
class Panel:
    """One small chart.

    Args:
        series: name and values, as many as there are ``labels``; None leaves a gap.
        percent: the values are fractions.
    """

    title: str
    series: Sequence[tuple[str, Sequence[float | None]]]
    percent: bool = False
    log: bool = False
    mark: int | None = None
    """Index of a label to mark with a vertical line."""


def nice_top(value: float) -> float:
    """The smallest of 1, 1.5, 2, 3, 5, 8 x 10^k that is not below ``value``."""
    if value <= 0:
        return 1.0
    scale = 10.0 ** math.floor(math.log10(value))
    return next(step * scale for step in (1, 1.5, 2, 3, 5, 8, 10) if step * scale >= value * (1 - 1e-9))


def apart(heights: Sequence[float], lowest: float, space: float = 14.0) -> list[float]:
    """The heights, ascending, moved so far that labels do not touch: down first, then up from ``lowest``."""
    placed: list[float] = []
    for height in sorted(heights):
        placed.append(max(height, placed[-1] + space) if placed else height)
    for place in range(len(placed) - 1, -1, -1):
        below = placed[place + 1] - space if place + 1 < len(placed) else lowest
        placed[place] = min(placed[place], below)
    return placed


def panels(title: str, labels: Sequence[str], charts: Sequence[Panel], x_title: str, notes: Sequence[str] = ()) -> str:
    """Charts one under the other over the same labels; every line is named at its right end."""
    left, right, high, gap, top = 66.0, WIDTH - 150.0, 130.0, 52.0, 74.0
    body = [text(24, 32, title, size=17)]
    step = (right - left) / max(len(labels) - 1, 1)
    for number, chart in enumerate(charts):
        y0 = top + number * (high + gap)
        known = [value for _, values in chart.series for value in values if value is not None]
        low, most = (min(known), max(known)) if known else (0.0, 1.0)
        if chart.log:
            floor, ceiling = math.floor(math.log10(low)), math.ceil(math.log10(most))
            ceiling += ceiling == floor
            ticks = [10.0**power for power in range(floor, ceiling + 1)]
        else:
            ticks = [nice_top(most) * part / 2 for part in range(3)]

        def height(value: float, y0: float = y0, ticks: list[float] = ticks, log: bool = chart.log) -> float:
            if log:
                bottom, span = math.log10(ticks[0]), math.log10(ticks[-1] / ticks[0])
                return y0 + high * (1 - (math.log10(value) - bottom) / span)
            return y0 + high * (1 - value / ticks[-1])

        body.append(text(left, y0 - 12, chart.title, fill=INK))
        for tick in ticks:
            y = height(tick)
            shown = f"{tick * 100:g}%" if chart.percent else f"{tick:,.10g}"
            body.append(f'<line x1="{left}" x2="{right:.1f}" y1="{y:.1f}" y2="{y:.1f}" stroke="{RULE}"/>')
            body.append(text(left - 8, y + 4, shown, size=12, fill=MUTED, anchor="end"))
        if chart.mark is not None:
            x = left + chart.mark * step
            body.append(
                f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{y0}" y2="{y0 + high}" stroke="{INK}" stroke-dasharray="2 3"/>'
            )
        ends: list[tuple[float, str, str]] = []
        for order, (name, values) in enumerate(chart.series):
            points = [(left + place * step, height(value)) for place, value in enumerate(values) if value is not None]
            if not points:
                continue
            colour, dash = LINE_COLOURS[order % 6], DASHES[order % 6]
            path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
            body.append(
                f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2" stroke-dasharray="{dash}"/>'
            )
            body += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>' for x, y in points]
            ends.append((points[-1][1], name, colour))
        for y, (_, name, colour) in zip(apart([end[0] for end in ends], y0 + high), sorted(ends), strict=True):
            body.append(text(right + 10, y + 4, plain(name, 22), size=12.5, fill=colour))
        if number == len(charts) - 1:
            for place, label in enumerate(labels):
                body.append(text(left + place * step, y0 + high + 18, label, size=12, fill=MUTED, anchor="middle"))
            body.append(text((left + right) / 2, y0 + high + 38, x_title, size=12, fill=MUTED, anchor="middle"))
    y = top + len(charts) * (high + gap) + 14
    body += [text(24, y + 18 * place, note, fill=MUTED) for place, note in enumerate(notes)]
    said = "; ".join(chart.title for chart in charts) + f", over {x_title}: {', '.join(labels)}"
    return document(y + 18 * len(notes), title, said, body)


def bar_columns(
    title: str, labels: Sequence[str], columns: Sequence[tuple[str, Sequence[float | None]]], notes: Sequence[str] = ()
) -> str:
    """A row a label, a column of bars a figure; a gap where the label's part before the first comma changes."""
    left, top, step, thick, gap = 232.0, 76.0, 25.0, 15.0, 14.0
    width = (WIDTH - left - 24) / len(columns)
    body = [text(24, 32, title, size=17)]
    tops = [max((value for value in values if value is not None), default=1.0) or 1.0 for _, values in columns]
    body += [text(left + width * place, 60, name, fill=MUTED) for place, (name, _) in enumerate(columns)]
    y, group = top, labels[0].partition(",")[0] if labels else ""
    for row, label in enumerate(labels):
        head = label.partition(",")[0]
        if head != group:
            y, group = y + gap, head
        body.append(text(left - 12, y + 12, plain(label, 34), size=12.5, anchor="end"))
        for place, (_, values) in enumerate(columns):
            value = values[row]
            if value is None:
                continue
            length = value / tops[place] * (width - 84)
            x = left + width * place
            body.append(
                f'<rect x="{x:.1f}" y="{y:.1f}" width="{max(length, 1):.1f}" height="{thick:g}" rx="1.5" '
                f'fill="{LINE_COLOURS[0]}"/>'
            )
            shown = f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"
            body.append(text(x + max(length, 1) + 6, y + 12, shown, size=12))
        y += step
    body += [text(24, y + 16 + 18 * place, note, fill=MUTED) for place, note in enumerate(notes)]
    said = "; ".join(name for name, _ in columns) + f" of {', '.join(labels)}"
    return document(y + 12 + 18 * len(notes), title, said, body)
