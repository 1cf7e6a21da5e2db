"""The result of a simulation, and its files."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvplan.files import atomic_path, make_folder, write_json

if TYPE_CHECKING:
    import pandas as pd

FILES = ("summary.json", "requests.parquet", "timeline.parquet", "memory_map.parquet", "report.html")
"""What `Result.save` writes into a folder; it touches no other file there."""


@dataclass(frozen=True, eq=False)
class Result:
    """All runs of one scenario.

    Args:
        summary: what ``summary.json`` holds; see DESIGN.md section 4.
        requests, timeline, memory_map: tables with a column ``run``; columns in `kvplan.metrics.tables`.
    """

    summary: dict[str, Any]
    requests: pd.DataFrame
    timeline: pd.DataFrame
    memory_map: pd.DataFrame

    def report(self, path: str | Path) -> Path:
        """Writes the HTML page to ``path``."""
        from kvplan.report import write_report  # plotly's bundle and jinja2

        return write_report(path, self.summary, self.requests, self.timeline, self.memory_map, None)

    def save(self, folder: str | Path) -> Path:
        """Writes `FILES` into ``folder``, each whole or not at all.

        Raises:
            KvplanError: the folder cannot be made or written.
        """
        folder = make_folder(folder)
        for name in ("requests", "timeline", "memory_map"):
            with atomic_path(folder / f"{name}.parquet") as path:
                getattr(self, name).to_parquet(path, index=False, compression="zstd")
        self.report(folder / "report.html")
        write_json(folder / "summary.json", self.summary)  # last: its presence says that the rest is there
        return folder

    def _repr_html_(self) -> str:
        """In a notebook: the table of the runs."""
        from kvplan.report.forms import notebook

        return notebook(self.summary)
