"""Move whole blocks: copies inside the pool (copy-on-write) and between the pool and a staging buffer (swap).

Maths, for every plane p (a layer's K or V)::

    copy      pool[p, destination] = pool[p, source]      for each (source, destination)
    gather    staging[p, i]        = pool[p, blocks[i]]   swap out: one buffer for one large transfer
    scatter   pool[p, blocks[i]]   = staging[p, i]        swap in

A block is moved as bytes, 16 a load, whatever its dtype. One launch serves all layers. The staging buffer may
lie on the device or in pinned host memory that the device can address.

======= ============================== =========== ==========================================
tensor  shape                          dtype       layout
======= ============================== =========== ==========================================
pool    [planes, num_blocks, ...block] any         a block contiguous, a multiple of 16 bytes
staging [planes, n, ...block]          as pool     a block contiguous
pairs   [n, 2]                         int32 int64 contiguous; source, destination
blocks  [n]                            int32 int64 no block twice when scattering
======= ============================== =========== ==========================================
"""

from __future__ import annotations

from math import prod

import torch
import triton
import triton.language as tl

from kvplan_kernels.checks import check_tensor, require
from kvplan_kernels.launch import Launch

INDEX = (torch.int32, torch.int64)
WORD = 8
"""Bytes of the integer the blocks are moved as; a thread moves two of them in one 16-byte load."""
WORDS_PER_PROGRAM = 2048


@triton.jit
def move_kernel(
    source_ptr,
    destination_ptr,
    source_index_ptr,
    destination_index_ptr,
    source_stride_plane,
    source_stride_block,
    destination_stride_plane,
    destination_stride_block,
    words,
    INDEX_STEP: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Grid (moves, chunks of a block, planes). An index pointer of None counts 0, 1, 2, ..."""
    move = tl.program_id(0)
    plane = tl.program_id(2).to(tl.int64)
    source = move.to(tl.int64)
    destination = move.to(tl.int64)
    if source_index_ptr is not None:
        source = tl.load(source_index_ptr + move * INDEX_STEP).to(tl.int64)
    if destination_index_ptr is not None:
        destination = tl.load(destination_index_ptr + move * INDEX_STEP).to(tl.int64)
    source_ptr += plane * source_stride_plane + source * source_stride_block
    destination_ptr += plane * destination_stride_plane + destination * destination_stride_block
    offs = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    # Both sides of the range are multiples of two words, so the mask keeps 16-byte accesses whole.
    mask = offs < words
    tl.store(destination_ptr + offs, tl.load(source_ptr + offs, mask=mask, other=0), mask=mask)


def _as_words(field: str, blocks: torch.Tensor) -> torch.Tensor:
    """[planes, blocks, words] int64 view of [planes, blocks, ...block]; the blocks need not be neighbours."""
    require(blocks.dim() >= 3, field, "must have shape [planes, num_blocks, ...block]", tuple(blocks.shape))
    whole = 0 in blocks.shape or blocks[0, 0].is_contiguous()
    require(whole, field, "must have contiguous blocks", blocks.stride())
    size = blocks.element_size()
    block_bytes = prod(blocks.shape[2:]) * size
    require(block_bytes % 16 == 0, field, "must have blocks of a multiple of 16 bytes", block_bytes)
    for stride in blocks.stride()[:2]:
        require(stride * size % 16 == 0, field, "must have planes and blocks 16 bytes aligned", blocks.stride())
    flat = blocks.as_strided((*blocks.shape[:2], block_bytes // size), (*blocks.stride()[:2], 1))
    return flat.view(torch.int64)


def _launch(
    source: torch.Tensor,
    destination: torch.Tensor,
    source_index: torch.Tensor | None,
    destination_index: torch.Tensor | None,
    moves: int,
    step: int,
) -> Launch:
    planes, _, words = source.shape
    return Launch(
        move_kernel,
        grid=(moves, -(-words // WORDS_PER_PROGRAM), planes),
        args={
            "source_ptr": source,
            "destination_ptr": destination,
            "source_index_ptr": source_index,
            "destination_index_ptr": destination_index,
            "source_stride_plane": source.stride(0),
            "source_stride_block": source.stride(1),
            "destination_stride_plane": destination.stride(0),
            "destination_stride_block": destination.stride(1),
            "words": words,
        },
        constants={"INDEX_STEP": step, "BLOCK": WORDS_PER_PROGRAM},
        num_warps=4,
        num_stages=1,
    )


def copy_launch(pool: torch.Tensor, pairs: torch.Tensor) -> Launch:
    """The launch of :func:`copy_blocks`, validated."""
    words = _as_words("pool", pool)
    check_tensor("pairs", pairs, shape=[None, 2], dtypes=INDEX, device=pool.device)
    require(pairs.is_contiguous(), "pairs", "must be contiguous", pairs.stride())
    flat = pairs.view(-1)
    return _launch(words, words, flat, flat[1:], pairs.shape[0], 2)


def gather_launch(pool: torch.Tensor, blocks: torch.Tensor, staging: torch.Tensor) -> Launch:
    """The launch of :func:`gather_blocks`, validated."""
    source, destination = _pool_and_staging(pool, blocks, staging)
    return _launch(source, destination, blocks, None, blocks.shape[0], 1)


def scatter_launch(staging: torch.Tensor, blocks: torch.Tensor, pool: torch.Tensor) -> Launch:
    """The launch of :func:`scatter_blocks`, validated."""
    destination, source = _pool_and_staging(pool, blocks, staging)
    return _launch(source, destination, None, blocks, blocks.shape[0], 1)


def _pool_and_staging(
    pool: torch.Tensor, blocks: torch.Tensor, staging: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    words = _as_words("pool", pool)
    check_tensor("blocks", blocks, shape=[None], dtypes=INDEX, device=pool.device)
    wanted = (pool.shape[0], blocks.shape[0], *pool.shape[2:])
    require(tuple(staging.shape) == wanted, "staging", f"must have shape {list(wanted)}", tuple(staging.shape))
    require(staging.dtype == pool.dtype, "staging", f"must be {pool.dtype}", str(staging.dtype))
    reachable = staging.device == pool.device or staging.is_pinned()
    require(reachable, "staging", f"must lie on {pool.device} or in pinned host memory", str(staging.device))
    return words, _as_words("staging", staging)


def copy_blocks(pool: torch.Tensor, pairs: torch.Tensor) -> None:
    """Copy blocks inside the pool, all planes, in place.

    Args:
        pool: [planes, num_blocks, ...block].
        pairs: [n, 2], (source, destination). A source may serve several destinations; no destination may
            appear twice or be a source of the same call: the copies run at once.

    Raises:
        KernelInputError: an argument does not fit; nothing was copied.
    """
    copy_launch(pool, pairs).run()


def gather_blocks(pool: torch.Tensor, blocks: torch.Tensor, staging: torch.Tensor) -> None:
    """Swap out: staging[:, i] = pool[:, blocks[i]]. Raises KernelInputError; nothing was copied then."""
    gather_launch(pool, blocks, staging).run()


def scatter_blocks(staging: torch.Tensor, blocks: torch.Tensor, pool: torch.Tensor) -> None:
    """Swap in: pool[:, blocks[i]] = staging[:, i]. Raises KernelInputError; nothing was copied then."""
    scatter_launch(staging, blocks, pool).run()
