"""What kvplan writes, each kind told by its content: whether a file there is kvplan's own and may be replaced.

A kind that other programs write too (a trace as JSON Lines or CSV) or that people edit (a scenario) is no kind here.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from kvplan.files import GENERATOR, is_signed

Kind = Callable[[Path], bool]
"""Whether the file is of this kind; OSError or ValueError where it cannot be read as such."""

_HEAD = 1 << 16


def page(path: Path) -> bool:
    """An HTML page."""
    return GENERATOR.encode() in _head(path)


def picture(path: Path) -> bool:
    """A PNG with the mark that `kvplan report` puts in."""
    from kvplan.report.forms import PNG_MARK

    return _head(path).startswith(b"\x89PNG") and PNG_MARK in _head(path)


def signed(path: Path) -> bool:
    """A text that people may edit, as it was written."""
    return is_signed(path.read_bytes())


def document(*keys: str, **fixed: Any) -> Kind:
    """A JSON object with these keys, and with these values."""

    def fits(path: Path) -> bool:
        value = json.loads(path.read_text("utf-8"))
        return isinstance(value, dict) and all(key in value for key in keys) and fixed.items() <= _plain(value).items()

    return fits


def table(*columns: str) -> Kind:
    """A Parquet file with these columns."""

    def fits(path: Path) -> bool:
        import pyarrow.parquet as pq  # only where a file is in the way

        return set(columns) <= set(pq.read_schema(path).names)

    return fits


def trace_table(path: Path) -> bool:
    """A trace as kvplan's own Parquet."""
    import pyarrow.parquet as pq

    return bool((pq.read_schema(path).metadata or {}).get(b"kvplan") == b"trace")


def runs_csv(path: Path) -> bool:
    """`kvplan report --format csv`."""
    from kvplan.report.forms import CSV_FIELDS

    return _head(path).startswith((",".join(["run", *CSV_FIELDS]) + "\n").encode())


def begins(text: str) -> Kind:
    """A file that begins so."""
    return lambda path: _head(path).startswith(text.encode())


def steps(path: Path) -> bool:
    """A step log."""
    with path.open(encoding="utf-8") as file:
        first = json.loads(file.readline())
    return isinstance(first, dict) and {"step", "t", "tokens", "free_blocks", "free_after"} <= set(first)


PROFILE = document("ranks", schema="kvplan-profile/1")
SUMMARY = document("schema_version", "kvplan", "scenario", "runs")
RESULTS: Mapping[str, Kind] = {
    "summary.json": SUMMARY,
    "requests.parquet": table("run", "id", "status", "ttft_s"),
    "timeline.parquet": table("run", "t_s", "dt_s", "steps"),
    "memory_map.parquet": table("run", "t_s", "address", "request"),
    "report.html": page,
}
"""The files of `kvplan.result.Result.save`."""
DIAGNOSIS: Mapping[str, Kind] = {**RESULTS, "diagnosis.json": document("verdict", "changes", "flags")}
VALIDATION: Mapping[str, Kind] = {
    "validation.json": document("schema_version", "observed", "scenario"),
    "overlay.html": page,
}
PLAN: Mapping[str, Kind] = {
    "plan.json": document("best", "others", "cannot", "simulations"),
    "compose.yaml": signed,
    "kubernetes.yaml": signed,
}
SWEEP: Mapping[str, Kind] = {
    "sweep.json": document("fingerprint", "points", "scenario"),
    "sweep.parquet": table("point", "status", "reason"),
    "sweep.html": page,
}


def _head(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(_HEAD)


def _plain(value: Mapping[str, Any]) -> dict[str, Any]:
    return {key: inner for key, inner in value.items() if isinstance(inner, (str, int))}
