from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kvplan.report import render

from .replay import results

QUIET = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


@pytest.fixture(scope="session")
def outcome() -> tuple[Any, ...]:
    """summary, requests, timeline, memory map of a paged and a contiguous run and a block-size sweep."""
    return results(block_sizes=(1, 64, 128))


@pytest.fixture(scope="session")
def page(outcome: tuple[Any, ...]) -> str:
    return render(*outcome)


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """Headless Chromium under Playwright; skips where either is missing."""
    playwright = pytest.importorskip("playwright.sync_api", reason="browser tests need `pip install playwright`")
    path = shutil.which("chromium") or shutil.which("google-chrome")
    if path is None:
        pytest.skip("browser tests need Chromium: `apt-get install chromium`")
    with playwright.sync_playwright() as session:
        running = session.chromium.launch(executable_path=path, args=list(QUIET))
        yield running
        running.close()


@pytest.fixture(scope="session")
def page_url(page: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    path: Path = tmp_path_factory.mktemp("page") / "report.html"
    path.write_text(page, "utf-8")
    return path.as_uri()
