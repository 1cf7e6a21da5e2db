"""Compile a launch for a GPU that is not there, and read from the machine code what it costs.

``ptxas`` and ``cuobjdump`` come in Triton's own wheel; AMD's compiler writes its figures into the assembly.
The interpreter must be off in the process (TRITON_INTERPRET unset).
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from kvplan_kernels.launch import Launch
from kvplan_kernels.target import Target

_POINTER = {
    torch.float16: "*fp16",
    torch.bfloat16: "*bf16",
    torch.float32: "*fp32",
    torch.uint8: "*u8",
    torch.int8: "*i8",
    torch.int32: "*i32",
    torch.int64: "*i64",
    torch.int16: "*i16",
}
_REGISTERS_PER_SM = 65536
_WAVE_REGISTERS = 512
"""Vector registers of a gfx942 SIMD a lane, shared among its waves; eight waves at most (CDNA3 ISA guide,
3.6)."""


@dataclass(frozen=True)
class Compiled:
    """What the compiler made of one launch.

    Args:
        registers: per thread (gfx942: vector registers a lane, accumulators included).
        spilled: bytes spilled to local memory a thread, stores and loads together, stack frame included.
        shared_bytes: static and dynamic shared memory (LDS) a program.
        programs_per_sm: resident programs a multiprocessor (compute unit), by registers, threads and shared
            memory.
        occupancy: resident warps over the most the hardware holds.
        async_copies: 16-byte asynchronous copies, global to shared (LDGSTS.128); none on gfx942.
        wide_loads: 16-byte loads from global memory into registers.
        matrix_ops: matrix instructions (HMMA, WGMMA, UTCMMA, IMMA, MFMA).
        instructions: machine instructions in all.
    """

    target: str
    registers: int
    spilled: int
    shared_bytes: int
    programs_per_sm: int
    occupancy: float
    async_copies: int
    wide_loads: int
    matrix_ops: int
    instructions: int


def signature(launch: Launch) -> tuple[dict[str, str], dict[str, Any], dict[tuple[int], list[list[Any]]]]:
    """(types, constants, divisibility) of a launch, specialized as the JIT would at run time.

    Pointers count as 16-byte aligned, as torch's allocations are; integers divisible by 16 are marked so, and
    1 and None become constants.
    """
    types: dict[str, str] = {}
    constants: dict[str, Any] = dict(launch.constants)
    aligned: dict[tuple[int], list[list[Any]]] = {}
    for index, name in enumerate(launch.kernel.arg_names):
        if name in launch.constants:
            types[name] = "constexpr"
            continue
        value = launch.args[name]
        if value is None or (isinstance(value, int) and value == 1):
            types[name] = "constexpr"
            constants[name] = value
        elif isinstance(value, torch.Tensor):
            types[name] = _POINTER[value.dtype]
            aligned[(index,)] = [["tt.divisibility", 16]]
        elif isinstance(value, float):
            types[name] = "fp32"
        else:
            types[name] = "i32" if -(2**31) <= value < 2**31 else "i64"
            if value % 16 == 0:
                aligned[(index,)] = [["tt.divisibility", 16]]
    return types, constants, aligned


def compile_launch(launch: Launch, target: Target, name: str) -> Compiled:
    """Compile for ``target`` (``name`` goes into the result); raises what Triton raises when it cannot."""
    types, constants, aligned = signature(launch)
    warp = 64 if target.backend == "hip" else 32
    kernel = triton.compile(
        ASTSource(launch.kernel, types, constants, aligned),
        target=GPUTarget(target.backend, target.arch, warp),
        options={"num_warps": launch.num_warps, "num_stages": launch.num_stages},
    )
    shared = int(kernel.metadata.shared)
    if target.backend == "hip":
        return _read_amdgcn(name, target, kernel.asm["amdgcn"], shared, launch.num_warps)
    return _read_cubin(name, target, kernel.asm["cubin"], shared, launch.num_warps)


def _tool(name: str) -> str:
    return str(Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / name)


def _run(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def _read_cubin(name: str, target: Target, cubin: bytes, shared: int, num_warps: int) -> Compiled:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernel.cubin"
        path.write_bytes(cubin)
        usage = _run(_tool("cuobjdump"), "-res-usage", str(path))
        sass = _run(_tool("nvdisasm"), "-c", str(path))
    figures = {key: int(value) for key, value in re.findall(r"(REG|STACK|LOCAL):(\d+)", usage)}
    operations = re.findall(r"^\s+/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][\w.]+)", sass, re.MULTILINE)
    local = sum(op.startswith(("STL", "LDL")) for op in operations)
    registers = figures["REG"]
    allocated = -(-registers // 8) * 8 * 32 * num_warps
    programs = min(
        _REGISTERS_PER_SM // allocated,
        2048 // (32 * num_warps),
        target.shared_bytes_per_sm // (shared + 1024),
    )
    return Compiled(
        target=name,
        registers=registers,
        spilled=figures["STACK"] + figures["LOCAL"] + 4 * local,
        shared_bytes=shared,
        programs_per_sm=programs,
        occupancy=programs * num_warps / 64,
        async_copies=sum(op.startswith("LDGSTS") and op.endswith(".128") for op in operations),
        wide_loads=sum(op.startswith("LDG.") and ".128" in op for op in operations),
        matrix_ops=sum(bool(re.match(r"(?:H|I|Q|O)?(?:G)?MMA|UTC\w*MMA", op)) for op in operations),
        instructions=len(operations),
    )


def _read_amdgcn(name: str, target: Target, assembly: str, shared: int, num_warps: int) -> Compiled:
    def figure(key: str) -> int:
        found = re.search(rf"^\s*\.{key}:\s*(\d+)", assembly, re.MULTILINE)
        return int(found.group(1)) if found else 0

    total = re.search(r"^; TotalNumVgprs: (\d+)", assembly, re.MULTILINE)
    vector = max(1, int(total.group(1)) if total else figure("vgpr_count"))
    waves = min(8, _WAVE_REGISTERS // (-(-vector // 8) * 8))
    programs = min(waves * 4 // num_warps, target.shared_bytes_per_sm // max(shared, 1))
    operations = re.findall(r"^\s+([a-z]\w+)\b", assembly, re.MULTILINE)
    return Compiled(
        target=name,
        registers=vector,
        spilled=figure("private_segment_fixed_size") + 4 * figure("vgpr_spill_count"),
        shared_bytes=shared,
        programs_per_sm=programs,
        occupancy=min(8, programs * num_warps / 4) / 8,
        async_copies=0,
        wide_loads=sum(op.startswith(("global_load_dwordx4", "buffer_load_dwordx4")) for op in operations),
        matrix_ops=sum(op.startswith("v_mfma") for op in operations),
        instructions=len(operations),
    )


def as_row(variant: str, compiled: Compiled) -> Mapping[str, Any]:
    """One row of the ahead-of-time table."""
    return {"variant": variant, **{key: getattr(compiled, key) for key in compiled.__dataclass_fields__}}
