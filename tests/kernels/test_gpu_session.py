"""The GPU session's script, dry-run on the CPU: the same code path, tiny sizes, Triton's interpreter."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.gpu.session import PARTS, SESSION_LIMIT_S, Part, run_parts

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_the_whole_session_dry_runs(tmp_path):
    environment = {**os.environ, "OUT": str(tmp_path), "PYTHON": sys.executable}
    done = subprocess.run(
        ["bash", str(ROOT / "benchmarks" / "gpu_session.sh"), "--dry-run"],
        env=environment, capture_output=True, text=True, cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    outcomes = json.loads((tmp_path / "session.json").read_text())
    assert [(outcome["part"], outcome["status"]) for outcome in outcomes] == [(part.name, "ok") for part in PARTS]
    rows = [json.loads(line) for part in PARTS for line in (tmp_path / f"{part.name}.jsonl").read_text().splitlines()]
    assert {row["part"] for row in rows} == {part.name for part in PARTS}
    assert all(row["dry_run"] and row["commit"] and row["triton"] and row["card"] for row in rows)
    assert all(row["ok"] for row in rows if row["part"] == "correctness")
    assert all(row["correct"] for row in rows if row.get("case") == "paged")
    assert {row["same_bits"] for row in rows if row["part"] == "indirection"} == {True, None}


def script(tmp_path: Path, name: str, body: str) -> Part:
    """A part made of a module written for the test; ``out`` is its rows' path."""
    (tmp_path / f"{name}.py").write_text(f"import sys, time\nout = sys.argv[sys.argv.index('--out') + 1]\n{body}\n")
    return Part(name, 3, module=name)


def test_rows_are_kept_when_a_part_fails_or_hangs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    parts = [
        script(tmp_path, "breaks", "open(out, 'w').write('{}\\n'); sys.exit('broke')"),
        script(tmp_path, "hangs", "open(out, 'w').write('{}\\n{}\\n'); time.sleep(60)"),
        script(tmp_path, "works", "open(out, 'w').write('{}\\n')"),
    ]
    outcomes = run_parts(parts, tmp_path / "out", 60, [])
    assert [(o.part, o.status, o.rows) for o in outcomes] == [
        ("breaks", "failed", 1), ("hangs", "timed out", 2), ("works", "ok", 1)
    ]  # fmt: skip
    assert outcomes[0].message.strip() == "broke"
    assert json.loads((tmp_path / "out" / "session.json").read_text())[1]["message"] == "after 3 s"


def test_no_part_starts_when_time_is_up(tmp_path):
    outcomes = run_parts([Part("never", 10)], tmp_path, 1.0, [])
    assert [(o.part, o.status) for o in outcomes] == [("never", "not started")]


def test_the_session_fits_its_eight_minutes():
    assert sum(part.limit_s for part in PARTS) <= SESSION_LIMIT_S < 480
