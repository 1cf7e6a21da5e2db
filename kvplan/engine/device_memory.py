"""What the device's own allocator says of the engine's memory; on a CPU, what the system says of the process."""

from __future__ import annotations

import resource
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from kvplan.errors import InfeasibleError

GIB = 1 << 30


@dataclass(frozen=True)
class DeviceMemory:
    """Bytes at one moment.

    Args:
        source: ``torch.cuda.memory_stats`` or ``process`` (resident set).
        allocated_bytes: live now. peak_bytes: the most that ever was.
        reserved_bytes: what torch holds of the device, 0 on a CPU.
        total_bytes, free_bytes: of the device as its driver reports them; of the machine on a CPU, 0 where unknown.
    """

    source: str
    allocated_bytes: int
    peak_bytes: int
    reserved_bytes: int
    total_bytes: int
    free_bytes: int

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def device_memory(device: torch.device) -> DeviceMemory:
    """The memory of ``device`` now."""
    if device.type == "cuda":
        stats = torch.cuda.memory_stats(device)
        free, total = torch.cuda.mem_get_info(device)
        return DeviceMemory(
            "torch.cuda.memory_stats",
            int(stats["allocated_bytes.all.current"]),
            int(stats["allocated_bytes.all.peak"]),
            int(stats["reserved_bytes.all.current"]),
            int(total),
            int(free),
        )
    unit = 1 if sys.platform == "darwin" else 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
    status = _kib("/proc/self/status")
    machine = _kib("/proc/meminfo")
    return DeviceMemory(
        "process", status.get("VmRSS", peak), peak, 0, machine.get("MemTotal", 0), machine.get("MemAvailable", 0)
    )


def require_memory(device: torch.device, needed_bytes: int, what: str) -> None:
    """Asked before a large allocation: a system that promises more than it has would end the process later.

    Raises:
        InfeasibleError: the device has not so much left.
    """
    free = device_memory(device).free_bytes
    if 0 < free < needed_bytes:
        raise InfeasibleError(
            f"{what} of {needed_bytes / GIB:.2f} GiB does not fit into the {free / GIB:.2f} GiB that {device} has left",
            hint="a smaller model, or fewer blocks: --num-gpu-blocks-override",
        )


def _kib(path: str) -> dict[str, int]:
    """Bytes by name out of a file of ``Name:  123 kB`` lines; empty where there is none (not Linux)."""
    try:
        lines = Path(path).read_text(encoding="ascii").splitlines()
    except OSError:
        return {}
    fields = (line.split() for line in lines if line.endswith(" kB"))
    return {name.rstrip(":"): int(number) * 1024 for name, number, _ in fields}
