"""Results as they lie in a folder: what `Result.save` wrote, read back for a page."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvplan.errors import InputError
from kvplan.report.page import render, write_report

if TYPE_CHECKING:
    import pandas as pd

FRAMES = ("requests", "timeline", "memory_map")
COLUMNS = {
    "requests": ("run", "id", "status", "prompt_tokens", "output_tokens", "ttft_s", "tpot_s", "e2e_s"),
    "timeline": ("run", "t_s", "dt_s", "steps", "used", "running", "running_max", "waiting", "waiting_max"),
    "memory_map": ("run", "t_s", "address", "request"),
}


@dataclass(frozen=True, eq=False)
class Stored:
    """One set of results: what the page is made of."""

    summary: Mapping[str, Any]
    requests: pd.DataFrame
    timeline: pd.DataFrame
    memory_map: pd.DataFrame
    diagnosis: Mapping[str, Any] | None = None

    def page(self) -> str:
        """The page as text."""
        return render(self.summary, self.requests, self.timeline, self.memory_map, self.diagnosis)

    def report(self, path: str | Path) -> Path:
        """The page, into ``path``."""
        return write_report(path, self.summary, self.requests, self.timeline, self.memory_map, self.diagnosis)


def is_results_folder(path: str | Path) -> bool:
    return (Path(path) / "summary.json").is_file()


def read_results(folder: str | Path) -> Stored:
    """Reads ``summary.json``, the three Parquet files and, where there is one, ``diagnosis.json``.

    A folder without ``memory_map.parquet`` gives a page without the map.

    Raises:
        InputError: a file is missing or is not what `kvplan simulate -o` writes; names the file.
    """
    import pandas as pd  # takes a second to import

    folder = Path(folder)
    summary = _json(folder / "summary.json")
    if not isinstance(summary.get("runs"), list) or not summary["runs"]:
        raise InputError("holds no runs", field="runs", source=str(folder / "summary.json"))
    frames: dict[str, pd.DataFrame] = {}
    for name in FRAMES:
        path = folder / f"{name}.parquet"
        if name == "memory_map" and not path.exists():
            frames[name] = pd.DataFrame({column: [] for column in COLUMNS[name]})
            continue
        try:
            frames[name] = pd.read_parquet(path)
        except FileNotFoundError:
            hint = "make the folder with `kvplan simulate SCENARIO -o FOLDER`"
            raise InputError("is missing beside summary.json", source=str(path), hint=hint) from None
        except (OSError, ValueError) as error:
            raise InputError(f"is not a Parquet file: {error}", source=str(path)) from error
        missing = [column for column in COLUMNS[name] if column not in frames[name]]
        if missing:
            raise InputError(f"lacks the column {missing[0]}", source=str(path))
    diagnosis = folder / "diagnosis.json"
    return Stored(summary, **frames, diagnosis=_json(diagnosis) if diagnosis.exists() else None)


def _json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text("utf-8"))
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", source=str(path)) from error
    except ValueError as error:
        raise InputError(f"is not JSON: {error}", source=str(path)) from error
    if not isinstance(value, dict):
        raise InputError("is not a JSON object", source=str(path))
    return value
