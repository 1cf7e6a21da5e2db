"""Real files: they lie beside the repository and are not part of it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

DATA = Path(__file__).resolve().parents[2] / ".." / "shared" / "data"


@pytest.fixture
def data() -> Callable[[str], Path]:
    """The path of a file of the reference data; the test is skipped where it is missing."""

    def find(name: str) -> Path:
        path = DATA / name
        if not path.exists():
            pytest.skip(f"reference data not here: {name}")
        return path

    return find


@pytest.fixture
def written(tmp_path: Path) -> Callable[..., Path]:
    """A file with the given text or bytes."""

    def write(content: str | bytes, name: str = "trace") -> Path:
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    return write
