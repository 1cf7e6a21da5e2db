"""Draw README.md's picture, docs/pool.svg, from a real run: where the KV pool goes over time, a panel a layout."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING
from xml.sax.saxutils import escape

import kvplan
from kvplan.scenario import load_scenario
from kvplan.terminal.formats import count, decimal, seconds

if TYPE_CHECKING:
    import pandas

ROOT = Path(__file__).resolve().parent.parent
WIDTH, PANEL, LEFT, TOP, GAP = 860, 170, 46, 64, 54
PARTS = {
    # part: colour on light, on dark
    "used": ("#1f5fa8", "#4f93d9"),
    "reserved": ("#f0b64a", "#d9a441"),
    "internal": ("#d9622b", "#df7440"),
    "external": ("#8e3b76", "#b565a0"),
    "cached": ("#8fc1dd", "#3a6f91"),
    "free": ("#e6e4de", "#2c3238"),
}
MOST_COLUMNS = 200


def picture(result: kvplan.Result) -> str:
    """The SVG of a result; readable on light and on dark pages."""
    runs = result.summary["runs"]
    height = TOP + len(runs) * (PANEL + GAP)
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img" '
            f'aria-label="{escape(_alt(runs))}">',
            f"<style>{_style()}</style>",
            *_legend(),
            *(line for place, run in enumerate(runs) for line in _panel(place, run, result.timeline)),
            "</svg>",
            "",
        ]
    )


def _alt(runs: list[dict]) -> str:
    waste = [(run["name"], run["memory"]["mean"]) for run in runs]
    shares = ", ".join(f"{name} {100 * (m['reserved'] + m['internal'] + m['external']):.0f}%" for name, m in waste)
    return f"Share of the KV pool that is reserved or in holes, on average: {shares}"


def _style() -> str:
    light = "".join(f".{part}{{fill:{colours[0]}}}" for part, colours in PARTS.items())
    dark = "".join(f".{part}{{fill:{colours[1]}}}" for part, colours in PARTS.items())
    return (
        "text{font:13px system-ui,sans-serif;fill:#1c2126}.title{font-weight:600}.axis{fill:#5a646e;font-size:11px}"
        f"{light}@media(prefers-color-scheme:dark){{text{{fill:#e7e5df}}.axis{{fill:#9ba5ae}}{dark}}}"
    )


def _legend() -> Iterator[str]:
    x = LEFT
    for part in PARTS:
        yield f'<rect class="{part}" x="{x}" y="14" width="12" height="12"/><text x="{x + 18}" y="25">{part}</text>'
        x += 40 + 8 * len(part)


def _panel(place: int, run: dict, timeline: pandas.DataFrame) -> Iterator[str]:
    top = TOP + place * (PANEL + GAP)
    rows = timeline[timeline["run"] == run["name"]]
    every = -(-len(rows) // MOST_COLUMNS)
    buckets = rows.groupby(rows.reset_index(drop=True).index.to_numpy() // every)[["t_s", *PARTS]].mean()
    xs = [LEFT + (WIDTH - LEFT - 10) * i / len(buckets) for i in range(len(buckets) + 1)]
    yield f'<text class="title" x="{LEFT}" y="{top - 9}">{escape(_headline(run))}</text>'
    below = [0.0] * len(buckets)
    for part in PARTS:
        above = [low + share for low, share in zip(below, buckets[part], strict=True)]
        yield f'<path class="{part}" d="{_band(xs, below, above, top)}"/>'
        below = above
    for share in (0, 50, 100):
        y = top + PANEL * (1 - share / 100) + 4
        yield f'<text class="axis" x="{LEFT - 6}" y="{y:.0f}" text-anchor="end">{share}%</text>'
    end = float(rows["t_s"].iloc[-1] + rows["dt_s"].iloc[-1])
    yield f'<text class="axis" x="{LEFT}" y="{top + PANEL + 16}">0</text>'
    yield f'<text class="axis" x="{WIDTH - 10}" y="{top + PANEL + 16}" text-anchor="end">{end / 60:.0f} min</text>'


def _headline(run: dict) -> str:
    return (
        f"{run['name']}: {decimal(run['concurrency']['mean'])} sequences at once on average, "
        f"{count(run['throughput']['output_tokens_per_s'])} output tokens/s, "
        f"p99 TTFT {seconds(run['latency']['ttft_s']['p99'])}"
    )


def _band(xs: list[float], below: list[float], above: list[float], top: int) -> str:
    """The steps along the upper edge, and back along the lower."""
    edge = [(xs[i + side], above[i]) for i in range(len(above)) for side in (0, 1)]
    back = [(xs[i + side], below[i]) for i in reversed(range(len(below))) for side in (1, 0)]
    return "M" + "L".join(f"{x:.1f} {top + PANEL * (1 - share):.1f}" for x, share in [*edge, *back]) + "Z"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("scenario", nargs="?", default=str(ROOT / "workloads" / "sharegpt.yaml"))
    parser.add_argument("--output", type=Path, default=ROOT / "docs" / "pool.svg")
    arguments = parser.parse_args()
    result = kvplan.simulate(load_scenario(arguments.scenario))
    arguments.output.parent.mkdir(exist_ok=True)
    arguments.output.write_text(picture(result), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
