"""Decode attention: one query token a sequence (k when speculating) against its cached K and V.

Maths, for the query heads h of KV head g and query token j of k, at position context - k + j::

    out[j, h] = Σ_t softmax_t( cap(q[j, h] · K[t, g] · scale) ) V[t, g]        over the tokens t it may see

The queries of one KV head (GQA: several heads; speculation: several tokens) are the rows of one matrix tile,
padded to 16, so every byte of K and V is read once. With few sequences or long contexts the tokens are split
among programs (split-KV): each writes its own normalized output and log2 denominator, and
:mod:`kvplan_kernels.split` joins them.

============ ================================================ ============== =============================
tensor       shape                                            dtype          layout
============ ================================================ ============== =============================
q            [num_seqs · k, num_query_heads, head_dim]        fp16 bf16 fp32 tokens of a sequence together
k_cache      [num_blocks, block_size, num_kv_heads, head_dim] + e4m3, int8   any strides, last one 1
v_cache      as k_cache                                       as k_cache     k_cache's strides
block_table  [num_seqs, max_blocks]                           int32          not read past the context
context_lens [num_seqs]                                       int32          tokens cached, the k included
k_scale      [num_kv_heads]                                   fp32           value = stored · scale
out          as q                                             as q           last stride 1
============ ================================================ ============== =============================

Contiguous attention runs the same kernel over ``[num_seqs, max_len, num_kv_heads, head_dim]``: only the
address of a token differs (PAGED=False), so paged ÷ contiguous is the price of the block table.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from kvplan_kernels.checks import arithmetic, as_stored, check_attention, check_scales, check_tensor, require
from kvplan_kernels.configs import Tile, choose_splits, decode_tile, next_power_of_2, resident_programs
from kvplan_kernels.launch import Launch
from kvplan_kernels.split import join_launch, partial_buffers
from kvplan_kernels.target import Target, target_of
from kvplan_kernels.tile import LOG2_E, attend, finish, format_factor, load_queries


@triton.jit
def decode_kernel(
    q_ptr,
    k_ptr,
    v_ptr,
    table_ptr,
    context_ptr,
    row_ptr,
    start_ptr,
    k_scale_ptr,
    v_scale_ptr,
    out_ptr,
    lse_ptr,
    scale,
    softcap,
    window,
    split_tokens,
    q_stride_token,
    q_stride_head,
    stride_seq,
    stride_block,
    stride_token,
    stride_head,
    table_stride,
    out_stride_token,
    out_stride_head,
    out_stride_split,
    lse_stride_token,
    lse_stride_head,
    PAGED: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    QUERY_TOKENS: tl.constexpr,
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
    SPLIT: tl.constexpr,
):
    """Grid (kv_heads · chunks of a group, splits, rows): heads side by side, since they share a token's cache
    line."""
    CHUNKS: tl.constexpr = (GROUP + PACK - 1) // PACK
    kv_head = tl.program_id(0) // CHUNKS
    chunk = tl.program_id(0) % CHUNKS
    split = tl.program_id(1)
    row = tl.program_id(2)
    if row_ptr is None:
        seq = row
        token0 = row * QUERY_TOKENS
    else:
        seq = tl.load(row_ptr + row)
        token0 = tl.load(start_ptr + seq)
    context = tl.load(context_ptr + seq)

    r = tl.arange(0, BLOCK_M)
    offs_d = tl.arange(0, BLOCK_D)
    in_group = chunk * PACK + r % PACK
    real = (r // PACK < QUERY_TOKENS) & (in_group < GROUP)
    head = kv_head * GROUP + in_group
    token = (token0 + r // PACK).to(tl.int64)
    query_pos = context - QUERY_TOKENS + tl.minimum(r // PACK, QUERY_TOKENS - 1)
    q = load_queries(q_ptr, token * q_stride_token + head * q_stride_head, real, offs_d, HEAD_DIM, COMPUTE)

    first = 0
    if WINDOW:
        first = tl.maximum(context - QUERY_TOKENS - window + 1, 0)
    begin = first // BLOCK_N * BLOCK_N
    end = context
    if SPLIT:
        begin += split * split_tokens
        end = tl.minimum(begin + split_tokens, context)

    factor = format_factor(KV_FORMAT)
    if k_scale_ptr is not None:
        scale *= tl.load(k_scale_ptr + kv_head) * factor
    kv_offset = kv_head.to(tl.int64) * stride_head
    if PAGED:
        table_ptr += seq.to(tl.int64) * table_stride
    else:
        kv_offset += seq.to(tl.int64) * stride_seq
    acc = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    m = tl.full([BLOCK_M], float("-inf"), tl.float32)
    l = tl.zeros([BLOCK_M], tl.float32)
    acc, m, l = attend(
        acc, m, l, q, query_pos, k_ptr + kv_offset, v_ptr + kv_offset, table_ptr,
        begin, end, first, context - 1, scale, softcap, window, stride_block, stride_token,
        PAGED, BLOCK_SIZE, BLOCK_N, HEAD_DIM, BLOCK_D, COMPUTE, KV_FORMAT, PRECISION, SOFTCAP, WINDOW, True,
    )  # fmt: skip
    out, lse = finish(acc, m, l)
    if v_scale_ptr is not None:
        out *= tl.load(v_scale_ptr + kv_head) * factor
    if SPLIT:
        # Partial results are numbered by row, not by token: a mixed batch has few decode rows among many
        # tokens.
        token = (row * QUERY_TOKENS + r // PACK).to(tl.int64)
        tl.store(lse_ptr + token * lse_stride_token + head * lse_stride_head + split, lse, mask=real)
        out_ptr += split * out_stride_split
    out_rows = token * out_stride_token + head * out_stride_head
    out_mask = real[:, None] & (offs_d < HEAD_DIM)[None, :]
    tl.store(out_ptr + out_rows[:, None] + offs_d[None, :], out.to(out_ptr.dtype.element_ty), mask=out_mask)


def decode_launches(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    block_table: torch.Tensor | None,
    context_lens: torch.Tensor,
    out: torch.Tensor,
    *,
    scale: float | None = None,
    query_tokens: int = 1,
    window: int = 0,
    softcap: float = 0.0,
    k_scale: torch.Tensor | None = None,
    v_scale: torch.Tensor | None = None,
    rows: torch.Tensor | None = None,
    query_start: torch.Tensor | None = None,
    max_context: int | None = None,
    num_splits: int | None = None,
    target: Target | None = None,
    tile: Tile | None = None,
) -> list[Launch]:
    """The launches of one decode attention, validated: the kernel and, where the tokens are split, the join.

    Paged with a ``block_table``, contiguous without. ``rows`` with ``query_start`` picks the sequences that
    decode
    out of a mixed batch: row i is sequence rows[i], whose query tokens begin at q[query_start[rows[i]]]. The
    other arguments are those of :func:`paged_decode_attention`.
    """
    target = target or target_of(q.device)
    paged = block_table is not None
    query_heads, kv_heads, head_dim = check_attention(q, k_cache, v_cache, block_table, context_lens, out)
    num_rows = context_lens.shape[0] if rows is None else rows.shape[0]
    require(query_tokens >= 1, "query_tokens", "must be at least 1", query_tokens)
    if rows is None:
        require(
            q.shape[0] == num_rows * query_tokens,
            "q",
            f"must have {num_rows} · {query_tokens} tokens",
            q.shape[0],
        )
    else:
        check_tensor("rows", rows, shape=[None], dtypes=[torch.int32], device=q.device)
        require(query_start is not None, "query_start", "is needed with rows", None)
    check_scales(k_scale, v_scale, k_cache, kv_heads)
    require(window >= 0, "window", "must be 0 (off) or the number of tokens seen", window)
    require(softcap >= 0, "softcap", "must be 0 (off) or positive", softcap)
    longest = k_cache.shape[1] * (block_table.shape[1] if block_table is not None else 1)
    max_context = longest if max_context is None else max_context
    require(0 <= max_context <= longest, "max_context", f"must lie in 0..{longest}", max_context)

    sums = arithmetic(q.dtype, k_cache.dtype, head_dim, target)
    group = query_heads // kv_heads
    tile = tile or decode_tile(
        target,
        query_tokens=query_tokens,
        group=group,
        head_dim=head_dim,
        kv_bytes=k_cache.element_size(),
        compute_bytes=sums.compute.itemsize,
    )
    programs = kv_heads * -(-group // tile.pack)
    # Tokens from the aligned start of the window on; a tile more, since the alignment can fall anywhere in
    # it.
    span = min(max_context, window + query_tokens + tile.block_n) if window else max_context
    if num_splits is None:
        resident = resident_programs(target, tile, head_dim, k_cache.element_size(), sums.compute.itemsize)
        splits, split_tokens = choose_splits(
            target, programs=programs * num_rows, resident=resident, max_context=span, block_n=tile.block_n
        )
    else:
        require(num_splits >= 1, "num_splits", "must be at least 1", num_splits)
        splits, split_tokens = num_splits, -(-max(span, 1) // (num_splits * tile.block_n)) * tile.block_n
    split = splits > 1
    target_out, lse = partial_buffers(out, num_rows * query_tokens, splits) if split else (out, None)
    stored_k, stored_v = as_stored(k_cache), as_stored(v_cache)
    scale = head_dim**-0.5 if scale is None else scale
    attention = Launch(
        decode_kernel,
        grid=(programs, splits, num_rows),
        args={
            "q_ptr": q,
            "k_ptr": stored_k,
            "v_ptr": stored_v,
            "table_ptr": block_table,
            "context_ptr": context_lens,
            "row_ptr": rows,
            "start_ptr": query_start,
            "k_scale_ptr": k_scale,
            "v_scale_ptr": v_scale,
            "out_ptr": target_out,
            "lse_ptr": lse,
            "scale": float(scale) if softcap else float(scale) * LOG2_E.value,
            "softcap": float(softcap),
            "window": window,
            "split_tokens": split_tokens,
            "q_stride_token": q.stride(0),
            "q_stride_head": q.stride(1),
            "stride_seq": 0 if paged else k_cache.stride(0),
            "stride_block": k_cache.stride(0) if paged else 0,
            "stride_token": k_cache.stride(1),
            "stride_head": k_cache.stride(2),
            "table_stride": block_table.stride(0) if block_table is not None else 0,
            "out_stride_token": target_out.stride(0),
            "out_stride_head": target_out.stride(1),
            "out_stride_split": target_out.stride(2) if split else 0,
            "lse_stride_token": lse.stride(0) if lse is not None else 0,
            "lse_stride_head": lse.stride(1) if lse is not None else 0,
        },
        constants={
            "PAGED": paged,
            "BLOCK_SIZE": k_cache.shape[1] if paged else 1,
            "QUERY_TOKENS": query_tokens,
            "GROUP": group,
            "PACK": tile.pack,
            "BLOCK_M": tile.block_m,
            "BLOCK_N": tile.block_n,
            "HEAD_DIM": head_dim,
            "BLOCK_D": next_power_of_2(head_dim),
            **sums.constants,
            "SOFTCAP": softcap > 0,
            "WINDOW": window > 0,
            "SPLIT": split,
        },
        num_warps=tile.num_warps,
        num_stages=tile.num_stages(target, paged=paged),
    )
    if lse is None:
        return [attention]
    return [
        attention,
        join_launch(target_out, lse, out, target, rows=rows, query_start=query_start, query_tokens=query_tokens),
    ]


def paged_decode_attention(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    block_table: torch.Tensor,
    context_lens: torch.Tensor,
    *,
    out: torch.Tensor | None = None,
    **options: Any,
) -> torch.Tensor:
    """Decode attention over the paged pool.

    Args:
        q: [num_seqs · query_tokens, num_query_heads, head_dim].
        k_cache, v_cache: [num_blocks, block_size, num_kv_heads, head_dim], block_size 1..256.
        block_table: int32 [num_seqs, max_blocks]; entries past a context are never read.
        context_lens: int32 [num_seqs], tokens in the cache, the query tokens' own included. 0 gives zeros.
        out: where to write; a new tensor by default.
        scale: factor of the scores, 1/√head_dim by default.
        query_tokens: k query tokens a sequence, the last k of its context, causal among themselves.
        window: a query sees the last ``window`` tokens, itself included; 0 for all.
        softcap: scores become cap · tanh(score / cap); 0 for none.
        k_scale, v_scale: fp32 [num_kv_heads], needed for an fp8 or int8 cache.
        max_context: the longest of ``context_lens`` as a host number, decides the splits; default: what the
            table holds.
        num_splits: fix the number of splits instead of choosing it.
        target, tile: what to choose for and the choice itself, for tuning.

    Raises:
        KernelInputError: an argument does not fit; nothing was launched.
    """
    out = torch.empty_like(q) if out is None else out
    for launch in decode_launches(q, k_cache, v_cache, block_table, context_lens, out, **options):
        launch.run()
    return out


def contiguous_decode_attention(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    context_lens: torch.Tensor,
    *,
    out: torch.Tensor | None = None,
    **options: Any,
) -> torch.Tensor:
    """Decode attention over one extent a sequence, ``[num_seqs, max_len, num_kv_heads, head_dim]``: the same
    kernel and tile as :func:`paged_decode_attention`, with the same options, and no block table."""
    out = torch.empty_like(q) if out is None else out
    for launch in decode_launches(q, k_cache, v_cache, None, context_lens, out, **options):
        launch.run()
    return out
