"""Which tile a shape gets on a device: plain functions, no device needed, no autotuner.

The aim of decode is to keep the memory system busy: about 16 KiB of K and 16 KiB of V per pipeline stage,
three stages deep, leaves 64 KiB in flight a program; Little's law asks for about 30 KiB a multiprocessor on
an H200 (4.8 TB/s · 0.8 µs / 132). Prefill wants large matrix products instead.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from kvplan_kernels.target import KIB, Target

MIN_ROWS = 16
"""Rows of the smallest matrix instruction; fewer query rows are padded to it."""


@dataclass(frozen=True)
class Tile:
    """How one program works.

    Args:
        block_m: query rows, a power of two, at least 16.
        block_n: cached tokens a loop step, a power of two, at least 16.
        pack: query heads of one KV head that a program serves; rows are ordered token-major, ``row = token ·
            pack + head``.
        num_warps: for the compiler.
        depth: tiles of K and V in flight ahead of the one at work.
    """

    block_m: int
    block_n: int
    pack: int
    num_warps: int
    depth: int

    def num_stages(self, target: Target, *, paged: bool) -> int:
        """What to tell the compiler so that K and V run ``depth`` tiles ahead.

        Its pipeliner divides the stages among the levels of a chain of loads. Contiguous K and V are one
        level: depth + 1 stages. Behind a block table they are the second: the table takes as many stages as
        they do. AMD's pipeliner holds one tile ahead in registers.
        """
        if target.backend != "cuda":
            return 2
        return 2 * self.depth + 1 if paged else self.depth + 1


def next_power_of_2(n: int) -> int:
    return 1 << max(0, n - 1).bit_length()


def _power_of_2_below(n: int) -> int:
    return 1 << max(0, n.bit_length() - 1)


def decode_tile(
    target: Target, *, query_tokens: int, group: int, head_dim: int, kv_bytes: int, compute_bytes: int
) -> Tile:
    """The tile of decode attention.

    Args:
        query_tokens: query tokens a sequence (1, or k when speculating).
        group: query heads that share one KV head.
        head_dim: elements a head; padded to a power of two.
        kv_bytes: bytes of a cached element.
        compute_bytes: bytes of an element in the matrix product.
    """
    width = next_power_of_2(head_dim)
    row_bytes = width * compute_bytes
    if compute_bytes == 2:
        most_rows = 128 if row_bytes <= 256 else 64
    else:  # three products instead of one: more rows would spill
        most_rows = 32 if row_bytes <= 256 else 16
    chunks = ceil(group * query_tokens / most_rows)
    pack = ceil(group / chunks)
    block_m = max(MIN_ROWS, next_power_of_2(pack * query_tokens))
    # By the size of the product's operand, not of the stored element: a quantized tile is widened in
    # registers.
    tile_bytes = 12 * KIB if target.backend == "hip" else 16 * KIB
    block_n = max(16, min(128, _power_of_2_below(tile_bytes // row_bytes), 8192 // block_m))
    num_warps = 8 if block_m >= 64 or row_bytes > 512 else 4
    wanted = 3 if kv_bytes == 1 else 2
    return Tile(
        block_m,
        block_n,
        pack,
        num_warps,
        _depth(target, block_m, block_n, width, kv_bytes, compute_bytes, wanted),
    )


def mla_tile(target: Target, *, query_tokens: int, heads: int, latent: int, compute_bytes: int) -> Tile:
    """The tile of latent attention: rows of latent + rope elements, read once for K and V."""
    width = next_power_of_2(latent)
    if compute_bytes == 4 or target.backend != "cuda" or int(target.arch) < 90:
        most_rows = 16  # the products' operands live in registers
    else:
        most_rows = 64 if int(target.arch) < 100 else 32
    pack = ceil(heads / ceil(heads * query_tokens / most_rows))
    block_m = max(MIN_ROWS, next_power_of_2(pack * query_tokens))
    tile_bytes = (16 if target.backend == "hip" else 32) * KIB
    block_n = max(16, min(64, _power_of_2_below(tile_bytes // (width * compute_bytes))))
    num_warps = 4 if compute_bytes == 4 else 8
    return Tile(
        block_m,
        block_n,
        pack,
        num_warps,
        _depth(target, block_m, block_n, width // 2, compute_bytes, compute_bytes, 2),
    )


def _depth(
    target: Target, block_m: int, block_n: int, width: int, kv_bytes: int, compute_bytes: int, wanted: int
) -> int:
    """``wanted`` tiles ahead, or as many as one program's shared memory allows."""
    if target.backend == "hip":
        return 1
    fixed = block_m * (width + block_n) * compute_bytes
    ahead = 2 * block_n * width * kv_bytes
    return max(1, min(wanted, (target.shared_bytes - fixed) // ahead))


def prefill_tile(target: Target, *, group: int, head_dim: int, kv_bytes: int, compute_bytes: int) -> Tile:
    """The tile of prefill attention: 128 query rows, so that the products are the widest the matrix units
    have.

    Up to 16 heads of a KV head are packed beside one another; a larger group gains nothing more, and its
    heads are spread over programs instead.
    """
    width = next_power_of_2(head_dim)
    row_bytes = width * compute_bytes
    pack = ceil(group / ceil(group / 16))
    if compute_bytes == 4:
        block_m, block_n, num_warps = (
            (32, 32, 8) if row_bytes <= 256 else (16, 32, 4) if row_bytes <= 512 else (16, 16, 8)
        )
    elif row_bytes <= 256:
        # Below compute capability 9.0 and on AMD the products' operands live in registers: half the tile.
        in_registers = target.backend == "hip" or (target.backend == "cuda" and int(target.arch) < 90)
        block_m, num_warps = 128, 8
        block_n = max(32, min(64, (8 if in_registers else 16) * KIB // row_bytes))
        if kv_bytes == 1 and width <= 64:
            block_m = 64
    elif kv_bytes == 1:
        block_m, block_n, num_warps = 32, 32, 4  # widening takes the registers that 64 rows would need
    else:
        block_m, block_n, num_warps = 64, 16 if target.backend == "hip" else 32, 8
    pack = min(pack, block_m)
    return Tile(block_m, block_n, pack, num_warps, _depth(target, block_m, block_n, width, kv_bytes, compute_bytes, 2))


def resident_programs(target: Target, tile: Tile, head_dim: int, kv_bytes: int, compute_bytes: int) -> int:
    """How many programs of this tile a multiprocessor holds, by shared memory and by 2048 threads (an
    estimate)."""
    width = next_power_of_2(head_dim)
    used = tile.block_m * (width + tile.block_n) * compute_bytes
    used += tile.depth * 2 * tile.block_n * width * kv_bytes
    by_threads = 2048 // (tile.num_warps * 32 * 4)
    return max(1, min(by_threads, target.shared_bytes_per_sm // (used + KIB)))


def choose_splits(
    target: Target, *, programs: int, resident: int, max_context: int, block_n: int, min_tokens: int = 256
) -> tuple[int, int]:
    """(number of splits, tokens a split) of the KV length, so that the device is full but no split is tiny.

    Args:
        programs: programs one split takes (sequences · KV heads · head chunks).
        resident: programs that a multiprocessor holds at once.
        max_context: the longest context in the batch.
        block_n: a split is a multiple of it.
        min_tokens: below this the partial results cost more than the parallelism brings.

    Takes the smallest count whose last wave is at least 85% as full as the best count's would be.
    """
    slots = target.sm_count * resident
    most = max(1, min(max_context // min_tokens, 128))
    if programs >= 2 * slots or most == 1:
        return 1, _round_up(max(max_context, 1), block_n)

    def fullness(splits: int) -> float:
        waves = programs * splits / slots
        return waves / ceil(waves)

    best = max(fullness(splits) for splits in range(1, most + 1))
    count = next(splits for splits in range(1, most + 1) if fullness(splits) >= 0.85 * best)
    tokens = _round_up(ceil(max_context / count), block_n)
    return ceil(max_context / tokens), tokens


def _round_up(n: int, multiple: int) -> int:
    return -(-n // multiple) * multiple
