"""What a calibration has measured so far, in a file beside the profile that a broken run leaves behind."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from statistics import median
from typing import Any

from kvplan.errors import InputError
from kvplan.files import write_json

SCHEMA = "kvplan-calibration/1"


def partial_path(output: Path) -> Path:
    """Where the measurements of an unfinished profile are kept."""
    return output.with_name(output.name + ".partial")


class Samples:
    """Measurements by point, each point several times.

    Args:
        identity: what they are measured with: model, device, settings; a file of others is not continued.
        path: the file; None: none is kept.
    """

    def __init__(self, identity: Mapping[str, Any], path: Path | None = None) -> None:
        self.identity = dict(identity)
        self.path = path
        self.by_point: dict[str, list[dict[str, float]]] = {}
        self.failed: dict[str, str] = {}

    def add(self, key: str, sample: dict[str, float]) -> None:
        self.by_point.setdefault(key, []).append(sample)

    def count(self, key: str) -> int:
        return len(self.by_point.get(key, ()))

    def median(self, key: str, name: str) -> float | None:
        """Seconds; None where that point was not measured."""
        found = [sample[name] for sample in self.by_point.get(key, ()) if name in sample]
        return median(found) if found else None

    def together(self, other: Samples) -> Samples:
        """What both have measured, kept in no file."""
        both = Samples(self.identity)
        for samples in (self, other):
            both.failed |= samples.failed
            for key, found in samples.by_point.items():
                both.by_point.setdefault(key, []).extend(found)
        return both

    def save(self) -> None:
        """Writes the file whole or not at all."""
        if self.path is not None:
            document = {"schema": SCHEMA, "identity": self.identity, "failed": self.failed, "samples": self.by_point}
            write_json(self.path, document)

    def discard(self) -> None:
        """The profile is written: the file has served."""
        if self.path is not None:
            self.path.unlink(missing_ok=True)

    def resume(self) -> None:
        """Takes in what a broken run has left.

        Raises:
            InputError: it is damaged, or was measured with something else.
        """
        assert self.path is not None
        source = str(self.path)
        try:
            document = json.loads(self.path.read_text(encoding="utf-8"))
        except ValueError:
            document = None
        if not isinstance(document, dict) or document.get("schema") != SCHEMA:
            raise InputError(f"not a {SCHEMA} file", field="--resume", source=source)
        theirs = document["identity"]
        for name, value in json.loads(json.dumps(self.identity)).items():
            if theirs.get(name) != value:
                raise InputError(
                    f"measured with {name} {theirs.get(name)!r}, this run has {value!r}",
                    field="--resume",
                    source=source,
                    hint="leave out --resume to measure anew",
                )
        self.by_point = document["samples"]
        self.failed = document["failed"]
