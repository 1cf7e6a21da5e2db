"""What a launcher must know of the device to choose a tile: its instruction set, its width, its shared
memory."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch

KIB = 1024


@dataclass(frozen=True)
class Target:
    """A device as the tile choice sees it.

    Args:
        backend: ``cuda``, ``hip``, or ``interpreter`` (Triton's interpreter, tensors on the CPU).
        arch: compute capability times ten (90), or the gfx name (``gfx942``); 0 for the interpreter.
        sm_count: streaming multiprocessors, or compute units.
        shared_bytes: shared memory a program may use (opt-in maximum per block).
        shared_bytes_per_sm: shared memory of a whole multiprocessor, shared by the programs resident on it.
    """

    backend: str
    arch: int | str
    sm_count: int
    shared_bytes: int
    shared_bytes_per_sm: int

    @property
    def is_interpreter(self) -> bool:
        return self.backend == "interpreter"

    @property
    def converts_e4m3(self) -> bool:
        """Whether one instruction turns e4m3 into fp16 (compute capability 8.9 and up)."""
        return self.backend == "cuda" and int(self.arch) >= 89


INTERPRETER = Target("interpreter", 0, sm_count=4, shared_bytes=227 * KIB, shared_bytes_per_sm=228 * KIB)
A100 = Target("cuda", 80, sm_count=108, shared_bytes=163 * KIB, shared_bytes_per_sm=164 * KIB)
H200 = Target("cuda", 90, sm_count=132, shared_bytes=227 * KIB, shared_bytes_per_sm=228 * KIB)
B200 = Target("cuda", 100, sm_count=148, shared_bytes=227 * KIB, shared_bytes_per_sm=228 * KIB)
MI300X = Target("hip", "gfx942", sm_count=304, shared_bytes=64 * KIB, shared_bytes_per_sm=64 * KIB)

AOT_TARGETS = {"sm_80": A100, "sm_90": H200, "sm_100": B200, "gfx942": MI300X}
"""The four that every kernel is compiled for ahead of time, as the card of each that is most rented."""

_SHARED_PER_BLOCK_KIB = {80: 163, 86: 99, 87: 163, 89: 99, 90: 227, 100: 227, 103: 227, 120: 99, 121: 99}
"""CUDA C++ programming guide, table of technical specifications per compute capability."""


@lru_cache(maxsize=16)
def _cuda_target(index: int) -> Target:
    properties = torch.cuda.get_device_properties(index)
    if torch.version.hip is not None:
        name = properties.gcnArchName.split(":")[0]
        return Target("hip", name, properties.multi_processor_count, 64 * KIB, 64 * KIB)
    arch = 10 * properties.major + properties.minor
    shared = _SHARED_PER_BLOCK_KIB.get(arch, 99) * KIB
    return Target("cuda", arch, properties.multi_processor_count, shared, shared + KIB)


def target_of(device: torch.device) -> Target:
    """The target of a tensor's device. ``cpu`` and ``meta`` mean the interpreter."""
    if device.type == "cuda":
        return _cuda_target(device.index if device.index is not None else torch.cuda.current_device())
    return INTERPRETER
