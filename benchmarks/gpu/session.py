"""Run the parts of a GPU session, each in a process of its own, and keep what each got done.

    python -m benchmarks.gpu.session --out DIR [--dry-run] [--only PART ...]

A part that fails, hangs or corrupts its CUDA context costs its own remaining rows and nothing else. ``DIR``
receives ``PART.jsonl``, one JSON object a measurement, written as it is made, and ``session.json``: what ran,
how long, how it ended. Exits 1 when a part did not end well.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path


@dataclass(frozen=True)
class Part:
    """A module with a ``__main__`` that takes ``--out FILE`` and ``--dry-run``, and how long it may take.

    To add one, write ``benchmarks/gpu/NAME.py`` around :func:`benchmarks.gpu.measure.main` and list it in
    PARTS.
    """

    name: str
    limit_s: float
    module: str = ""

    @property
    def command(self) -> list[str]:
        return [sys.executable, "-m", self.module or f"benchmarks.gpu.{self.name}"]


PARTS = (
    Part("correctness", 150),
    Part("decode", 130),
    Part("indirection", 60),
    Part("prefill", 50),
    Part("tiles", 70),
)
"""In the order of what is missed most if time runs out. Their limits stay under the session's eight
minutes."""

SESSION_LIMIT_S = 465.0


@dataclass(frozen=True)
class Outcome:
    """How a part ended: ``ok``, ``failed``, ``timed out`` or ``not started``."""

    part: str
    status: str
    seconds: float
    rows: int
    message: str = ""


def run_part(part: Part, out: Path, limit_s: float, options: Sequence[str]) -> Outcome:
    """Run one part for at most ``limit_s`` seconds; its rows so far count however it ends."""
    rows = out / f"{part.name}.jsonl"
    rows.unlink(missing_ok=True)
    began = time.monotonic()
    status, message = "ok", ""
    try:
        done = subprocess.run(
            [*part.command, "--out", str(rows), *options], timeout=limit_s, stderr=subprocess.PIPE, text=True
        )
        if done.returncode:
            status, message = "failed", done.stderr[-2000:]
    except subprocess.TimeoutExpired:
        status, message = "timed out", f"after {limit_s:.0f} s"
    count = len(rows.read_text().splitlines()) if rows.exists() else 0
    return Outcome(part.name, status, round(time.monotonic() - began, 1), count, message)


def run_parts(parts: Sequence[Part], out: Path, limit_s: float, options: Sequence[str]) -> list[Outcome]:
    """Run the parts in order within ``limit_s`` seconds in all, writing ``session.json`` after each."""
    out.mkdir(parents=True, exist_ok=True)
    end = time.monotonic() + limit_s
    outcomes: list[Outcome] = []
    for part in parts:
        left = end - time.monotonic()
        if left < 5:
            outcomes.append(Outcome(part.name, "not started", 0.0, 0, "no time left"))
        else:
            outcomes.append(run_part(part, out, min(part.limit_s, left), options))
        print(
            f"{part.name}: {outcomes[-1].status}, {outcomes[-1].rows} rows, {outcomes[-1].seconds} s",
            flush=True,
        )
        if outcomes[-1].message:
            print(outcomes[-1].message, file=sys.stderr, flush=True)
        (out / "session.json").write_text(json.dumps([asdict(outcome) for outcome in outcomes], indent=1) + "\n")
    return outcomes


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder for the rows")
    parser.add_argument("--dry-run", action="store_true", help="tiny sizes on the CPU, in Triton's interpreter")
    parser.add_argument("--only", nargs="*", choices=[part.name for part in PARTS], help="these parts alone")
    arguments = parser.parse_args()
    chosen = [part for part in PARTS if not arguments.only or part.name in arguments.only]
    options = ["--dry-run"] if arguments.dry_run else []
    outcomes = run_parts(chosen, arguments.out, SESSION_LIMIT_S, options)
    return 0 if all(outcome.status == "ok" for outcome in outcomes) else 1


if __name__ == "__main__":
    sys.exit(main())
