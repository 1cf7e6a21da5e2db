"""Prefill attention: a chunk of new query tokens a sequence against its cached prefix and itself.

Maths, for query i of a chunk of n at position p = context - n + i, head h of KV head g::

    out[i, h] = Σ_t softmax_t( cap(q[i, h] · K[t, g] · scale) ) V[t, g]    over t in (p - window, p]

The chunk's own K and V are in the cache already (write them first), so prefix and chunk are read the same
way, and chunked prefill, prefix hits and a plain prompt are one case. A program serves a tile of query tokens
with ``pack`` heads of one KV head. The tokens that all of its queries see go unmasked; the mask is for the
diagonal only.

============ ================================================ ============== =============================
tensor       shape                                            dtype          layout
============ ================================================ ============== =============================
q            [tokens, num_query_heads, head_dim]              fp16 bf16 fp32 sequences one after another
k_cache      [num_blocks, block_size, num_kv_heads, head_dim] + e4m3, int8   any strides, last one 1
v_cache      as k_cache                                       as k_cache     k_cache's strides
block_table  [num_seqs, max_blocks]                           int32          not read past the context
context_lens [num_seqs]                                       int32          tokens cached, chunk included
query_start  [num_seqs + 1]                                   int32          first row of a sequence in q
tile_seq     [num_tiles]                                      int32          the sequence of a query tile
tile_token   [num_tiles]                                      int32          its first token in the chunk
out          as q                                             as q           last stride 1
============ ================================================ ============== =============================
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from kvplan_kernels.checks import arithmetic, as_stored, check_attention, check_scales, check_tensor, require
from kvplan_kernels.configs import Tile, next_power_of_2
from kvplan_kernels.launch import Launch
from kvplan_kernels.target import Target, target_of
from kvplan_kernels.tile import LOG2_E, attend, finish, format_factor, load_queries


@triton.jit
def prefill_kernel(
    q_ptr,
    k_ptr,
    v_ptr,
    table_ptr,
    context_ptr,
    start_ptr,
    tile_seq_ptr,
    tile_token_ptr,
    k_scale_ptr,
    v_scale_ptr,
    out_ptr,
    scale,
    softcap,
    window,
    q_stride_token,
    q_stride_head,
    stride_block,
    stride_token,
    stride_head,
    table_stride,
    out_stride_token,
    out_stride_head,
    BLOCK_SIZE: tl.constexpr,
    GROUP: tl.constexpr,
    PACK: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
    COMPUTE: tl.constexpr,
    KV_FORMAT: tl.constexpr,
    PRECISION: tl.constexpr,
    SOFTCAP: tl.constexpr,
    WINDOW: tl.constexpr,
):
    """Grid (query tiles, kv_heads · chunks of a group): neighbours share a KV head, so its tokens stay in
    L2."""
    CHUNKS: tl.constexpr = (GROUP + PACK - 1) // PACK
    TILE_TOKENS: tl.constexpr = BLOCK_M // PACK
    tile = tl.program_id(0)
    kv_head = tl.program_id(1) // CHUNKS
    chunk = tl.program_id(1) % CHUNKS
    seq = tl.load(tile_seq_ptr + tile)
    tile_token = tl.load(tile_token_ptr + tile)
    query_start = tl.load(start_ptr + seq)
    queries = tl.load(start_ptr + seq + 1) - query_start
    context = tl.load(context_ptr + seq)

    r = tl.arange(0, BLOCK_M)
    offs_d = tl.arange(0, BLOCK_D)
    in_chunk = tile_token + r // PACK
    in_group = chunk * PACK + r % PACK
    real = (r // PACK < TILE_TOKENS) & (in_chunk < queries) & (in_group < GROUP)
    head = kv_head * GROUP + in_group
    token = (query_start + in_chunk).to(tl.int64)
    prior = context - queries
    query_pos = prior + tl.minimum(in_chunk, queries - 1)
    q = load_queries(q_ptr, token * q_stride_token + head * q_stride_head, real, offs_d, HEAD_DIM, COMPUTE)

    lowest = prior + tile_token
    end = tl.minimum(lowest + TILE_TOKENS, context)
    first = 0
    if WINDOW:
        first = tl.maximum(lowest - window + 1, 0)
    begin = first // BLOCK_N * BLOCK_N
    # The tokens up to the tile's first query are seen by all of its queries, unless a window cuts them off.
    diagonal = tl.maximum((lowest + 1) // BLOCK_N * BLOCK_N, begin)

    factor = format_factor(KV_FORMAT)
    if k_scale_ptr is not None:
        scale *= tl.load(k_scale_ptr + kv_head) * factor
    k_ptr += kv_head.to(tl.int64) * stride_head
    v_ptr += kv_head.to(tl.int64) * stride_head
    table_ptr += seq.to(tl.int64) * table_stride
    acc = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    m = tl.full([BLOCK_M], float("-inf"), tl.float32)
    l = tl.zeros([BLOCK_M], tl.float32)
    acc, m, l = attend(
        acc, m, l, q, query_pos, k_ptr, v_ptr, table_ptr, begin, diagonal, first, context - 1,
        scale, softcap, window, stride_block, stride_token,
        True, BLOCK_SIZE, BLOCK_N, HEAD_DIM, BLOCK_D, COMPUTE, KV_FORMAT, PRECISION, SOFTCAP, WINDOW, WINDOW,
    )  # fmt: skip
    acc, m, l = attend(
        acc, m, l, q, query_pos, k_ptr, v_ptr, table_ptr, diagonal, end, first, context - 1,
        scale, softcap, window, stride_block, stride_token,
        True, BLOCK_SIZE, BLOCK_N, HEAD_DIM, BLOCK_D, COMPUTE, KV_FORMAT, PRECISION, SOFTCAP, WINDOW, True,
    )  # fmt: skip
    out, _ = finish(acc, m, l)
    if v_scale_ptr is not None:
        out *= tl.load(v_scale_ptr + kv_head) * factor
    out_rows = token * out_stride_token + head * out_stride_head
    out_mask = real[:, None] & (offs_d < HEAD_DIM)[None, :]
    tl.store(out_ptr + out_rows[:, None] + offs_d[None, :], out.to(out_ptr.dtype.element_ty), mask=out_mask)


def prefill_launch(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    block_table: torch.Tensor,
    context_lens: torch.Tensor,
    query_start: torch.Tensor,
    tile_seq: torch.Tensor,
    tile_token: torch.Tensor,
    out: torch.Tensor,
    *,
    tile: Tile,
    scale: float | None = None,
    window: int = 0,
    softcap: float = 0.0,
    k_scale: torch.Tensor | None = None,
    v_scale: torch.Tensor | None = None,
    target: Target | None = None,
) -> Launch:
    """The launch of one prefill attention, validated. ``tile`` is the one the query tiles were cut for
    (:func:`kvplan_kernels.batch.plan_batch` does both); the other arguments are those of ``paged_attention``.

    Raises:
        KernelInputError: an argument does not fit; nothing was launched.
    """
    target = target or target_of(q.device)
    query_heads, kv_heads, head_dim = check_attention(q, k_cache, v_cache, block_table, context_lens, out)
    check_scales(k_scale, v_scale, k_cache, kv_heads)
    require(window >= 0, "window", "must be 0 (off) or the number of tokens seen", window)
    require(softcap >= 0, "softcap", "must be 0 (off) or positive", softcap)
    num_seqs = context_lens.shape[0]
    check_tensor("query_start", query_start, shape=[num_seqs + 1], dtypes=[torch.int32], device=q.device)
    check_tensor("tile_seq", tile_seq, shape=[None], dtypes=[torch.int32], device=q.device)
    check_tensor("tile_token", tile_token, shape=[tile_seq.shape[0]], dtypes=[torch.int32], device=q.device)
    group = query_heads // kv_heads
    require(1 <= tile.pack <= min(group, tile.block_m), "tile", f"must pack 1..{group} heads", tile)
    scale = head_dim**-0.5 if scale is None else scale
    return Launch(
        prefill_kernel,
        grid=(tile_seq.shape[0], kv_heads * -(-group // tile.pack)),
        args={
            "q_ptr": q,
            "k_ptr": as_stored(k_cache),
            "v_ptr": as_stored(v_cache),
            "table_ptr": block_table,
            "context_ptr": context_lens,
            "start_ptr": query_start,
            "tile_seq_ptr": tile_seq,
            "tile_token_ptr": tile_token,
            "k_scale_ptr": k_scale,
            "v_scale_ptr": v_scale,
            "out_ptr": out,
            "scale": float(scale) if softcap else float(scale) * LOG2_E.value,
            "softcap": float(softcap),
            "window": window,
            "q_stride_token": q.stride(0),
            "q_stride_head": q.stride(1),
            "stride_block": k_cache.stride(0),
            "stride_token": k_cache.stride(1),
            "stride_head": k_cache.stride(2),
            "table_stride": block_table.stride(0),
            "out_stride_token": out.stride(0),
            "out_stride_head": out.stride(1),
        },
        constants={
            "BLOCK_SIZE": k_cache.shape[1],
            "GROUP": group,
            "PACK": tile.pack,
            "BLOCK_M": tile.block_m,
            "BLOCK_N": tile.block_n,
            "HEAD_DIM": head_dim,
            "BLOCK_D": next_power_of_2(head_dim),
            **arithmetic(q.dtype, k_cache.dtype, head_dim, target).constants,
            "SOFTCAP": softcap > 0,
            "WINDOW": window > 0,
        },
        num_warps=tile.num_warps,
        num_stages=tile.num_stages(target, paged=True),
    )
