"""What every benchmark writes: JSON rows that say by what machine, versions and commit they were measured.

``benchmarks/results/NAME.json`` holds a list of rows; README.md's tables are made of them by
``scripts/readme_tables.py``.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import subprocess
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).resolve().parent / "results"
_PACKAGES = ("kvplan", "numpy", "numba", "pandas", "torch", "triton")


def write_rows(name: str, rows: Iterable[Mapping[str, Any]]) -> Path:
    """Write the rows of benchmark ``name``, each with where and when it was measured; the file's path."""
    common = {"benchmark": name, "machine": machine(), "versions": versions(), "commit": commit()}
    common["date"] = datetime.now(UTC).date().isoformat()
    path = RESULTS / f"{name}.json"
    path.parent.mkdir(exist_ok=True)
    beside = path.with_suffix(".tmp")
    beside.write_text(json.dumps([{**row, **common} for row in rows], indent=1) + "\n", encoding="utf-8")
    beside.replace(path)
    return path


def machine() -> dict[str, Any]:
    """Processor, cores that this process may use, system."""
    model = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        names = [line for line in cpuinfo.read_text().splitlines() if line.startswith("model name")]
        model = names[0].partition(":")[2].strip() if names else model
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return {"cpu": model, "cores": cores, "system": platform.system(), "python": platform.python_version()}


def versions() -> dict[str, str]:
    """Of the packages that matter, as far as they are installed."""
    found = {}
    for package in _PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def commit() -> str:
    """The checkout's commit, with ``+`` where something tracked has been changed since; empty without git."""

    def git(*arguments: str) -> str:
        done = subprocess.run(["git", *arguments], capture_output=True, text=True, cwd=RESULTS.parent)
        return done.stdout.strip()

    changed = git("status", "--porcelain", "--untracked-files=no")
    return git("rev-parse", "--short", "HEAD") + ("+" if changed else "")
