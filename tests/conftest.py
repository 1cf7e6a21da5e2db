"""What the tests of every room use."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

os.environ.setdefault("TRITON_INTERPRET", "1")  # no GPU is needed; it must stand before anything imports triton

SHARED_DATA = Path(__file__).resolve().parents[2] / "shared" / "data"
"""Real traces and reference values, beside the repository; not part of it."""


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of reference data; the test is skipped where it is missing, as it is for an outside user."""
    if not SHARED_DATA.is_dir():
        pytest.skip("the reference data folder ../shared/data is not beside this repository")
    return SHARED_DATA
