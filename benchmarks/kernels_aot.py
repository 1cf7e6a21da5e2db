"""Compile every kernel variant ahead of time for four architectures and tabulate what each costs.

    python benchmarks/kernels_aot.py                      the table, as markdown
    python benchmarks/kernels_aot.py --json rows.json     and as JSON
    python benchmarks/kernels_aot.py --only decode fp8    variants whose name holds all of these words

Needs no GPU: the launchers are given tensors on torch's ``meta`` device and the target they would find, and
what they chose is compiled. Exits 1 when a variant spills registers or lacks its matrix instructions or wide
loads.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ.pop("TRITON_INTERPRET", None)  # interpreted functions cannot be compiled
sys.path.insert(0, str(Path(__file__).parents[1] / "kernels"))

import torch

from kvplan_kernels import aot, batch, block_copy, cache_write, decode, mla
from kvplan_kernels.launch import Launch
from kvplan_kernels.target import AOT_TARGETS, Target

FP16, BF16, FP32 = torch.float16, torch.bfloat16, torch.float32
FP8, INT8 = torch.float8_e4m3fn, torch.int8
SHORT = {FP16: "fp16", BF16: "bf16", FP32: "fp32", FP8: "fp8", INT8: "int8"}
SEQS, CONTEXT = 8, 8192


@dataclass(frozen=True)
class Variant:
    """A shape some launcher is given. ``launches(target)`` is what it would launch there; all of it is
    compiled."""

    name: str
    launches: Callable[[Target], list[Launch]]
    matrix: bool = True
    """Whether the tile allows matrix instructions: fp32 beyond head_dim 128 has none on NVIDIA, moves have
    none."""
    wide: bool = True
    """Whether the data is moved 16 bytes a thread at a time."""


def empty(*shape: int, dtype: torch.dtype = torch.int32) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


def scales(heads: int, cache: torch.dtype) -> dict[str, torch.Tensor | None]:
    scale = empty(heads, dtype=FP32) if cache in (FP8, INT8) else None
    return {"k_scale": scale, "v_scale": scale}


def decode_variant(
    heads: tuple[int, int] = (32, 8),
    dim: int = 128,
    dtype: torch.dtype = BF16,
    cache: torch.dtype | None = None,
    block: int = 16,
    paged: bool = True,
    rows: bool = False,
    k: int = 1,
    **options: Any,
) -> Variant:
    cache = cache or dtype
    kind = "paged" if paged else "contiguous"
    name = f"{kind} decode {heads[0]}q{heads[1]}kv d{dim} {SHORT[dtype]}/{SHORT[cache]}"
    name += f" B{block}" * paged + f" k{k}" * (k > 1) + " rows" * rows
    name += "".join(f" {key}" for key in options if key != "num_splits") + " unsplit" * ("num_splits" in options)

    def launches(target: Target) -> list[Launch]:
        q = empty(SEQS * k, heads[0], dim, dtype=dtype)
        extent = (4096, block) if paged else (SEQS, CONTEXT)
        kv = empty(*extent, heads[1], dim, dtype=cache)
        table = empty(SEQS, CONTEXT // block) if paged else None
        mixed = {"rows": empty(SEQS), "query_start": empty(SEQS + 1)} if rows else {}
        return decode.decode_launches(
            q, kv, kv, table, empty(SEQS), torch.empty_like(q), query_tokens=k, target=target,
            **scales(heads[1], cache), **mixed, **options,
        )  # fmt: skip

    return Variant(name, launches, matrix=not (dtype == FP32 and dim > 128))


def prefill_variant(
    heads: tuple[int, int] = (32, 8),
    dim: int = 128,
    dtype: torch.dtype = BF16,
    cache: torch.dtype | None = None,
    block: int = 16,
    **options: Any,
) -> Variant:
    cache = cache or dtype
    name = f"prefill {heads[0]}q{heads[1]}kv d{dim} {SHORT[dtype]}/{SHORT[cache]} B{block}"
    name += "".join(f" {key}" for key in options)

    def launches(target: Target) -> list[Launch]:
        plan = batch.plan_batch(
            [512] * SEQS, [CONTEXT] * SEQS, num_query_heads=heads[0], num_kv_heads=heads[1], head_dim=dim,
            query_dtype=dtype, cache_dtype=cache, device="meta", target=target,
        )  # fmt: skip
        q = empty(plan.num_tokens, heads[0], dim, dtype=dtype)
        kv = empty(4096, block, heads[1], dim, dtype=cache)
        return batch.attention_launches(
            q, kv, kv, empty(SEQS, CONTEXT // block), plan, torch.empty_like(q), target=target,
            **scales(heads[1], cache), **options,
        )  # fmt: skip

    return Variant(name, launches, matrix=not (dtype == FP32 and dim > 128))


def mla_variant(
    heads: int = 16, latent: int = 512, rope: int = 64, dtype: torch.dtype = BF16, block: int = 64, k: int = 1
) -> Variant:
    def launches(target: Target) -> list[Launch]:
        q = empty(SEQS * k, heads, latent + rope, dtype=dtype)
        return mla.mla_launches(
            q,
            empty(4096, block, latent + rope, dtype=dtype),
            empty(SEQS, CONTEXT // block),
            empty(SEQS),
            empty(SEQS * k, heads, latent, dtype=dtype),
            latent=latent,
            scale=0.1,
            query_tokens=k,
            target=target,
        )

    name = f"latent decode {heads}q {latent}+{rope} {SHORT[dtype]} B{block}" + f" k{k}" * (k > 1)
    return Variant(name, launches, matrix=dtype != FP32)


def write_variant(dtype: torch.dtype, cache: torch.dtype, dim: int = 128) -> Variant:
    def launches(_: Target) -> list[Launch]:
        key, kv = empty(64, 8, dim, dtype=dtype), empty(4096, 16, 8, dim, dtype=cache)
        return [cache_write.write_launch(key, key, kv, kv, empty(64, dtype=torch.int64), **scales(8, cache))]

    return Variant(f"write d{dim} {SHORT[dtype]}→{SHORT[cache]}", launches, matrix=False)


def move_variants() -> Iterator[Variant]:
    pool, staging = empty(64, 4096, 16, 8, 128, dtype=BF16), empty(64, 32, 16, 8, 128, dtype=BF16)
    yield Variant("copy blocks", lambda _: [block_copy.copy_launch(pool, empty(32, 2))], matrix=False)
    yield Variant("gather blocks", lambda _: [block_copy.gather_launch(pool, empty(32), staging)], matrix=False)
    yield Variant("scatter blocks", lambda _: [block_copy.scatter_launch(staging, empty(32), pool)], matrix=False)


def variants() -> list[Variant]:
    """Every tile that a launcher chooses by shape and dtype, and every compile-time feature, at least once
    each."""
    return [
        *(decode_variant(block=block) for block in (1, 16, 48, 256)),
        decode_variant(paged=False),
        decode_variant(paged=False, cache=FP8),
        decode_variant(rows=True),
        decode_variant(num_splits=1),
        decode_variant(window=1024),
        decode_variant(softcap=30.0),
        decode_variant(window=1024, softcap=30.0, k=4),
        decode_variant(dtype=FP16),
        decode_variant(heads=(32, 32)),
        *(decode_variant(dim=dim) for dim in (64, 80, 96, 256)),
        decode_variant(heads=(64, 8), k=4),
        decode_variant(heads=(64, 1)),
        decode_variant(heads=(71, 1), dim=64),
        decode_variant(heads=(128, 1)),
        decode_variant(heads=(64, 1), dim=256),
        *(decode_variant(cache=FP8, dim=dim) for dim in (64, 128, 256)),
        decode_variant(cache=FP8, heads=(71, 1), dim=64),
        decode_variant(cache=FP8, heads=(128, 1)),
        decode_variant(cache=INT8),
        decode_variant(cache=INT8, dim=256),
        *(decode_variant(dtype=FP32, dim=dim) for dim in (64, 128, 256)),
        decode_variant(dtype=FP32, heads=(71, 1), dim=64),
        decode_variant(dtype=FP32, cache=FP16),
        decode_variant(dtype=FP32, cache=FP8),
        *(prefill_variant(dim=dim) for dim in (64, 80, 128, 256)),
        prefill_variant(block=1),
        prefill_variant(dtype=FP16, block=256),
        prefill_variant(heads=(71, 1), dim=64),
        prefill_variant(heads=(28, 4)),
        prefill_variant(window=1024),
        prefill_variant(softcap=30.0),
        *(prefill_variant(cache=FP8, dim=dim) for dim in (64, 128, 256)),
        prefill_variant(cache=INT8),
        *(prefill_variant(dtype=FP32, dim=dim) for dim in (64, 128, 256)),
        mla_variant(),
        mla_variant(heads=128),
        mla_variant(latent=256, rope=32, block=1),
        mla_variant(heads=16, k=2),
        mla_variant(dtype=FP32),
        *(write_variant(BF16, cache) for cache in (BF16, FP8, INT8)),
        write_variant(FP32, FP32, dim=80),
        *move_variants(),
    ]


def faults(variant: Variant, target: Target, row: dict[str, Any]) -> list[str]:
    """Why a compiled kernel is not good enough; empty when it is."""
    found = []
    main = row["kernel"] != "join_kernel"
    nvidia = target.backend == "cuda"
    attention = row["kernel"] in ("decode_kernel", "prefill_kernel", "mla_kernel")
    if row["spilled"]:
        found.append(f"spills {row['spilled']} bytes")
    if row["programs_per_sm"] < 1:
        found.append(f"does not fit: {row['shared_bytes']} bytes of shared memory")
    if main and variant.matrix and not row["matrix_ops"]:
        found.append("has no matrix instruction")
    if nvidia and attention and not row["async_copies"]:
        found.append("has no 16-byte asynchronous copy")
    if not (nvidia and attention) and variant.wide and not row["wide_loads"]:
        found.append("has no 16-byte load")
    return found


@dataclass(frozen=True)
class Job:
    """One kernel to compile, as numbers that cross to another process: the launches themselves do not."""

    variant: int
    target: str
    launch: int


def jobs(chosen: list[int], targets: Collection[str]) -> list[Job]:
    """Each distinct kernel of the chosen variants once: many share the one that joins splits."""
    found: dict[str, Job] = {}
    for index in chosen:
        for name in targets:
            target = AOT_TARGETS[name]
            for place, launch in enumerate(variants()[index].launches(target)):
                built = (launch.kernel.__name__, launch.num_warps, launch.num_stages, aot.signature(launch))
                key = f"{name} {built}"
                found.setdefault(key, Job(index, name, place))
    return list(found.values())


def compile_job(job: Job) -> dict[str, Any]:
    """The row of one kernel, with what is wrong about it."""
    variant, target = variants()[job.variant], AOT_TARGETS[job.target]
    launch = variant.launches(target)[job.launch]
    row = dict(aot.as_row(variant.name, aot.compile_launch(launch, target, job.target)))
    row["kernel"] = launch.kernel.__name__
    row["faults"] = faults(variant, target, row)
    return row


COLUMNS = (
    "registers",
    "spilled",
    "shared_bytes",
    "programs_per_sm",
    "occupancy",
    "async_copies",
    "wide_loads",
    "matrix_ops",
    "instructions",
)


def markdown(rows: list[dict[str, Any]]) -> str:
    lines = [f"| variant | kernel | target | {' | '.join(COLUMNS)} |", "| --- " * (len(COLUMNS) + 3) + "|"]
    for row in rows:
        figures = (f"{row[c]:.0%}" if c == "occupancy" else str(row[c]) for c in COLUMNS)
        lines.append(f"| {row['variant']} | {row['kernel']} | {row['target']} | {' | '.join(figures)} |")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="write the rows here too")
    parser.add_argument("--only", nargs="*", default=[], help="variants whose name holds all of these words")
    parser.add_argument("--targets", nargs="*", choices=AOT_TARGETS, default=list(AOT_TARGETS))
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="processes that compile")
    arguments = parser.parse_args()
    chosen = [i for i, v in enumerate(variants()) if all(word in v.name for word in arguments.only)]
    with ProcessPoolExecutor(arguments.jobs) as pool:
        rows = list(pool.map(compile_job, jobs(chosen, arguments.targets), chunksize=4))
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=1) + "\n")
    print(markdown(rows))
    wrong = [f"{row['variant']} on {row['target']} {fault}" for row in rows for fault in row["faults"]]
    print("\n".join(wrong), file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
