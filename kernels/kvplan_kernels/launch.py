"""A kernel launch as a value: what a launcher decided, before anything runs.

Each launcher builds one. ``run()`` launches it; :mod:`kvplan_kernels.aot` compiles the very same thing
without a device. So what CI compiles ahead of time is what a GPU would be given, not a copy of the launcher's
choices.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Launch:
    """One kernel, its grid, its run-time arguments and its compile-time constants.

    Args:
        kernel: a ``@triton.jit`` function (interpreted, when TRITON_INTERPRET=1 stood before ``import
            triton``).
        grid: programs along x, y, z.
        args: run-time arguments by name: tensors, ints, floats; None compiles the argument away.
        constants: the kernel's ``tl.constexpr`` arguments by name.
        num_warps, num_stages: how the compiler is to build it.
    """

    kernel: Any
    grid: tuple[int, ...]
    args: Mapping[str, Any]
    constants: Mapping[str, Any]
    num_warps: int
    num_stages: int

    def run(self) -> None:
        """Launch on the current stream. A grid with no program is nothing to do, not an error."""
        if 0 in self.grid:
            return
        self.kernel[self.grid](**self.args, **self.constants, num_warps=self.num_warps, num_stages=self.num_stages)
