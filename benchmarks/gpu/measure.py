"""What the parts of a GPU session share: the machine's name, timing, and rows written as they are made."""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2] / "kernels"))
if "--dry-run" in sys.argv:
    os.environ["TRITON_INTERPRET"] = "1"  # before triton is imported

import torch
import triton

FLUSH_BYTES = 256 * 2**20
"""Written between two timed runs: several times any L2, so no run finds the last one's data there."""


def _output(*command: str) -> str:
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=20).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return "unknown"


def machine(device: torch.device) -> dict[str, Any]:
    """What every row bears: card, driver, versions, commit."""
    on_card = device.type == "cuda"
    return {
        "card": torch.cuda.get_device_name(device) if on_card else platform.processor() or platform.machine(),
        "driver": _output("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader") if on_card else "none",
        "python": platform.python_version(),
        "torch": torch.__version__,
        "triton": triton.__version__,
        "commit": os.environ.get("KVPLAN_COMMIT") or _output("git", "rev-parse", "HEAD"),
    }


@dataclass
class Bench:
    """One part at work.

    Args:
        device: ``cuda``, or ``cpu`` in a dry run.
        dry_run: tiny sizes; times mean nothing.
        path: the rows' file, appended to and flushed row by row.
        seed: of every random number of the part; in each row.
    """

    device: torch.device
    dry_run: bool
    path: Path
    seed: int

    def __post_init__(self) -> None:
        self.generator = torch.Generator().manual_seed(self.seed)
        self._machine = machine(self.device)
        self._flush = torch.empty(4 if self.dry_run else FLUSH_BYTES // 4, dtype=torch.int32, device=self.device)

    def record(self, **row: Any) -> None:
        """Append one row."""
        with self.path.open("a") as file:
            file.write(json.dumps({**row, "seed": self.seed, "dry_run": self.dry_run, **self._machine}) + "\n")

    def randn(self, *shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
        return torch.randn(shape, dtype=dtype, device=self.device)

    def seconds(self, run: Callable[[], Any], repeats: int = 20) -> float:
        """Median device time of ``run``. On a card it is captured in a CUDA graph, so that no launch overhead
        of Python's is in it, and the L2 is flushed before each run."""
        if self.device.type != "cuda":
            began = time.perf_counter()
            run()
            return time.perf_counter() - began
        for _ in range(3):
            run()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            run()
        marks = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(repeats)]
        for begin, end in marks:
            self._flush.zero_()
            begin.record()
            graph.replay()
            end.record()
        torch.cuda.synchronize()
        return statistics.median(begin.elapsed_time(end) for begin, end in marks) / 1e3

    def copy_bytes_per_s(self) -> float:
        """Bytes read and written a second by the device's own copy of a large tensor: the ceiling for
        decode."""
        source = torch.zeros(2**12 if self.dry_run else 2**31, dtype=torch.uint8, device=self.device)
        target = torch.empty_like(source)
        return 2 * source.numel() / self.seconds(lambda: target.copy_(source))


def main(part: Callable[[Bench], None]) -> int:
    """The command line of a part: ``--out FILE [--dry-run] [--seed N]``."""
    parser = argparse.ArgumentParser(description=part.__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--dry-run", action="store_true")
    parser.add_argument("--seed", type=int, default=int.from_bytes(os.urandom(3), "little"))
    arguments = parser.parse_args()
    if not arguments.dry_run and not torch.cuda.is_available():
        print("no GPU is visible; --dry-run checks the script without one", file=sys.stderr)
        return 2
    device = torch.device("cpu" if arguments.dry_run else "cuda:0")
    torch.manual_seed(arguments.seed)
    part(Bench(device, arguments.dry_run, arguments.out, arguments.seed))
    return 0
