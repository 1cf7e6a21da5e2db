"""A command line to run inside the test, and one to run apart; a result without a simulator."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from kvplan.cli import main

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Ended:
    code: int
    out: str
    err: str


@pytest.fixture
def kvplan(capsys: pytest.CaptureFixture[str]) -> Callable[..., Ended]:
    """Runs ``kvplan ARGUMENTS`` in this process."""

    def run(*arguments: str) -> Ended:
        capsys.readouterr()
        code = main([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        return Ended(code, captured.out, captured.err)

    return run


@pytest.fixture
def kvplan_apart(tmp_path: Path) -> Callable[..., Ended]:
    """Runs ``python OPTIONS -m kvplan ARGUMENTS`` in a process of its own, in an empty folder."""

    def run(*arguments: str, python: tuple[str, ...] = (), code: str | None = None) -> Ended:
        what = ["-c", code] if code else ["-m", "kvplan", *arguments]
        done = subprocess.run(
            [sys.executable, *python, *what],
            cwd=tmp_path,
            env={"PYTHONPATH": str(ROOT), "PATH": "", "HOME": str(tmp_path)},
            capture_output=True,
            text=True,
            timeout=60,
        )
        return Ended(done.returncode, done.stdout, done.stderr)

    return run


@pytest.fixture
def scenario_file(tmp_path: Path) -> Path:
    path = tmp_path / "s.yaml"
    path.write_text(
        "model: llama-3.1-8b\ngpu: h100-sxm\nrequests: [{arrival: 0.0, prompt: 512, output: 128}]\n"
        "variants: [{name: contiguous, cache: {layout: contiguous}}]\n"
    )
    return path
