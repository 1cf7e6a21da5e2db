"""Fill README.md's tables: results from what was measured and from nothing else, commands from the command line.

A table of results stands between two marks. The first says which rows and which of their fields::

    <!-- measured {"rows": "simulate_speed", "columns": {"case": "Case", "requests_per_s": ["Requests/s", ",.0f"]}} -->
    <!-- /measured -->

``rows`` names ``benchmarks/results/NAME.json``, a list of rows as ``benchmarks/_rows.py`` writes them. A column is
a title, or a title and a format. With ``--check`` nothing is written; the exit code is 1 where a table differs from
its rows.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from pathlib import Path
from typing import Any

from kvplan.cli import COMMANDS

ROOT = Path(__file__).resolve().parent.parent
_MARKED = re.compile(
    r"(?P<open><!-- measured (?P<spec>\{.*?\}) -->\n)(?P<table>.*?)(?P<close><!-- /measured -->)", re.S
)
_COMMANDS = re.compile(r"(?P<open><!-- commands -->\n)(?P<table>.*?)(?P<close><!-- /commands -->)", re.S)


def filled(text: str, results: Path) -> str:
    """``text`` with each marked table made anew from the rows in ``results``, and that of the commands."""

    def table(match: re.Match[str]) -> str:
        return match["open"] + _table(json.loads(match["spec"]), results) + match["close"]

    return _COMMANDS.sub(lambda match: match["open"] + _commands() + match["close"], _MARKED.sub(table, text))


def _commands() -> str:
    rows = [f"| `kvplan {name}` | {target.summary} |" for name, target in COMMANDS.items()]
    return "\n".join(["| command | what it does |", "| --- | --- |", *rows, ""])


def _table(spec: dict[str, Any], results: Path) -> str:
    path = results / f"{spec['rows']}.json"
    if not path.exists():
        return f"*Not measured yet: `make bench` writes `benchmarks/results/{path.name}`.*\n"
    rows = json.loads(path.read_text(encoding="utf-8"))
    columns = {key: [title, ""] if isinstance(title, str) else title for key, title in spec["columns"].items()}
    lines = [
        "| " + " | ".join(title for title, _ in columns.values()) + " |",
        "| " + " | ".join("--:" if form else "---" for _, form in columns.values()) + " |",
    ]
    for row in rows:
        lines.append("| " + " | ".join(_cell(row.get(key), form) for key, (_, form) in columns.items()) + " |")
    return "\n".join([*lines, "", _footnote(rows), ""])


def _cell(value: Any, form: str) -> str:
    if value is None:
        return "–"
    return format(value, form).replace("|", "\\|")


def _footnote(rows: list[dict[str, Any]]) -> str:
    """Where the rows were measured; every place, where there are several."""
    places = []
    for row in rows:
        machine = row["machine"]
        place = f"{machine['cpu']}, {machine['cores']} cores, commit {row['commit']}, {row['date']}"
        if place not in places:
            places.append(place)
    return f"<sub>Measured on {'; '.join(places)}.</sub>"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="only say whether the tables are those of the rows")
    arguments = parser.parse_args()
    readme = ROOT / "README.md"
    old = readme.read_text(encoding="utf-8")
    new = filled(old, ROOT / "benchmarks" / "results")
    if arguments.check:
        if new != old:
            print("README.md's tables are not those of benchmarks/results: run `make readme`", file=sys.stderr)
        return int(new != old)
    readme.write_text(new, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
