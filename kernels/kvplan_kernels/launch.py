"""A kernel launch as a value: what a launcher decided, before anything runs.

Each launcher builds one. ``run()`` launches it; :mod:`kvplan_kernels.aot` compiles the very same thing
without a device. So what CI compiles ahead of time is what a GPU would be given, not a copy of the launcher's
choices.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
import triton

from kvplan_kernels.errors import KernelInputError

_NO_CPU = "must lie on a GPU; for a CPU set TRITON_INTERPRET=1 before triton is imported"


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
        """Launch on the current stream. A grid with no program is nothing to do, not an error.

        Raises:
            KernelInputError: a tensor lies on the CPU and the kernel is not interpreted.
        """
        if 0 in self.grid:
            return
        if isinstance(self.kernel, triton.JITFunction):
            for name, value in self.args.items():
                needs_interpreter = isinstance(value, torch.Tensor) and value.device.type == "cpu"
                if needs_interpreter and not value.is_pinned():
                    raise KernelInputError(name.removesuffix("_ptr"), _NO_CPU, str(value.device))
        self.kernel[self.grid](**self.args, **self.constants, num_warps=self.num_warps, num_stages=self.num_stages)
