"""Reference data that is not in the repository, and a few servers to plan for."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

DATA = Path(__file__).resolve().parents[2].parent / "shared" / "data"


@pytest.fixture(scope="session")
def reference() -> Callable[[str], Any]:
    """Reads ``../shared/data/NAME``: JSON as data, anything else as text. Skips where it is missing."""

    def read(name: str) -> Any:
        path = DATA / name
        if not path.exists():
            pytest.skip(f"needs {path}, which is not in the repository")
        text = path.read_text(encoding="utf-8")
        return json.loads(text) if path.suffix == ".json" else text

    return read
