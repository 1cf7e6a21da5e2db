"""Latent decode attention (MLA): every query head attends to one shared, compressed row a token.

Maths, with the up-projections absorbed into q and out, for head h and cached row x_t = [c_t, r_t]::

    s[h, t] = (q_c[h] · c_t + q_r[h] · r_t) · scale
    out[h]  = Σ_t softmax_t(s[h, t]) c_t

K is the whole row (latent + rope, 512 + 64 in DeepSeek), V its latent part, so each tile is loaded once and
used in
both products: half the bytes of an attention that reads K and V.

============ ======================================== ============== =============================
tensor       shape                                    dtype          layout
============ ======================================== ============== =============================
q            [num_seqs · k, num_heads, latent + rope] fp16 bf16 fp32 latent first
cache        [num_blocks, block_size, latent + rope]  as q           any strides, last one 1
block_table  [num_seqs, max_blocks]                   int32          not read past the context
context_lens [num_seqs]                               int32          tokens cached, the k included
out          [num_seqs · k, num_heads, latent]        as q           last stride 1
============ ======================================== ============== =============================
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from kvplan_kernels.checks import FLOATS, MAX_BLOCK_SIZE, arithmetic, check_tensor, require
from kvplan_kernels.configs import choose_splits, mla_tile, next_power_of_2
from kvplan_kernels.launch import Launch
from kvplan_kernels.split import join_launch, partial_buffers
from kvplan_kernels.target import Target, target_of
from kvplan_kernels.tile import (  # fmt: skip
    LOG2_E,
    finish,
    load_queries,
    load_rows,
    own_tokens,
    softmax_step,
    token_rows,
    visible_scores,
)

MAX_LATENT = 512
MAX_ROPE = 128


@triton.jit
def mla_kernel(
    q_ptr,
    cache_ptr,
    table_ptr,
    context_ptr,
    out_ptr,
    lse_ptr,
    scale,
    split_tokens,
    q_stride_token,
    q_stride_head,
    stride_block,
    stride_token,
    table_stride,
    out_stride_token,
    out_stride_head,
    out_stride_split,
    lse_stride_token,
    lse_stride_head,
    BLOCK_SIZE: tl.constexpr,
    QUERY_TOKENS: tl.constexpr,
    HEADS: tl.constexpr,
    PACK: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    LATENT: tl.constexpr,
    BLOCK_L: tl.constexpr,
    ROPE: tl.constexpr,
    BLOCK_R: tl.constexpr,
    COMPUTE: tl.constexpr,
    PRECISION: tl.constexpr,
    SPLIT: tl.constexpr,
):
    """Grid (chunks of the heads, splits, sequences): the chunks of a sequence read the same rows, side by
    side."""
    chunk = tl.program_id(0)
    split = tl.program_id(1)
    seq = tl.program_id(2)
    context = tl.load(context_ptr + seq)

    r = tl.arange(0, BLOCK_M)
    offs_n = tl.arange(0, BLOCK_N)
    offs_l = tl.arange(0, BLOCK_L)
    offs_r = tl.arange(0, BLOCK_R)
    head = chunk * PACK + r % PACK
    real = (r // PACK < QUERY_TOKENS) & (head < HEADS)
    token = (seq * QUERY_TOKENS + r // PACK).to(tl.int64)
    query_pos = context - QUERY_TOKENS + tl.minimum(r // PACK, QUERY_TOKENS - 1)
    q_rows = token * q_stride_token + head * q_stride_head
    q_latent = load_queries(q_ptr, q_rows, real, offs_l, LATENT, COMPUTE)
    q_rope = load_queries(q_ptr + LATENT, q_rows, real, offs_r, ROPE, COMPUTE)

    begin = 0
    end = context
    if SPLIT:
        begin = split * split_tokens
        end = tl.minimum(begin + split_tokens, context)
    table_ptr += seq.to(tl.int64) * table_stride
    acc = tl.zeros([BLOCK_M, BLOCK_L], tl.float32)
    m = tl.full([BLOCK_M], float("-inf"), tl.float32)
    l = tl.zeros([BLOCK_M], tl.float32)
    for start in range(begin, end, BLOCK_N):
        tokens = start + offs_n
        owned = own_tokens(tokens, 0, context - 1, True, False)
        rows = token_rows(table_ptr, owned, stride_block, stride_token, True, BLOCK_SIZE)
        latent = load_rows(cache_ptr, rows, offs_l, LATENT, BLOCK_L).to(COMPUTE)
        rope = load_rows(cache_ptr + LATENT, rows, offs_r, ROPE, BLOCK_R).to(COMPUTE)
        s = tl.dot(q_rope, tl.trans(rope), input_precision=PRECISION)
        s = tl.dot(q_latent, tl.trans(latent), s, input_precision=PRECISION)
        s = visible_scores(s, scale, 0.0, tokens, query_pos, 0, False, False, True)
        p, shrink, m, l = softmax_step(s, m, l)
        acc = tl.dot(p.to(COMPUTE), latent, acc * shrink[:, None], input_precision=PRECISION)

    out, lse = finish(acc, m, l)
    if SPLIT:
        tl.store(lse_ptr + token * lse_stride_token + head * lse_stride_head + split, lse, mask=real)
        out_ptr += split * out_stride_split
    out_rows = token * out_stride_token + head * out_stride_head
    out_mask = real[:, None] & (offs_l < LATENT)[None, :]
    tl.store(out_ptr + out_rows[:, None] + offs_l[None, :], out.to(out_ptr.dtype.element_ty), mask=out_mask)


def mla_launches(
    q: torch.Tensor,
    cache: torch.Tensor,
    block_table: torch.Tensor,
    context_lens: torch.Tensor,
    out: torch.Tensor,
    *,
    latent: int,
    scale: float,
    query_tokens: int = 1,
    max_context: int | None = None,
    num_splits: int | None = None,
    target: Target | None = None,
) -> list[Launch]:
    """The launches of one latent decode attention, validated; arguments as :func:`mla_decode_attention`."""
    device = q.device
    target = target or target_of(device)
    check_tensor("q", q, shape=[None, None, None], dtypes=FLOATS, device=device)
    heads, width = q.shape[1:]
    rope = width - latent
    require(
        16 <= latent <= MAX_LATENT and latent % 16 == 0,
        "latent",
        f"must be a multiple of 16 up to {MAX_LATENT}",
        latent,
    )
    require(
        16 <= rope <= MAX_ROPE and rope % 16 == 0,
        "q",
        f"must have 16..{MAX_ROPE} rope elements after the latent, a multiple of 16",
        width,
    )
    check_tensor("cache", cache, shape=[None, None, width], dtypes=[q.dtype], device=device)
    block_size = cache.shape[1]
    require(1 <= block_size <= MAX_BLOCK_SIZE, "cache", f"block_size must lie in 1..{MAX_BLOCK_SIZE}", block_size)
    check_tensor("context_lens", context_lens, shape=[None], dtypes=[torch.int32], device=device)
    num_seqs = context_lens.shape[0]
    check_tensor("block_table", block_table, shape=[num_seqs, None], dtypes=[torch.int32], device=device)
    require(query_tokens >= 1, "query_tokens", "must be at least 1", query_tokens)
    require(
        q.shape[0] == num_seqs * query_tokens,
        "q",
        f"must have {num_seqs} · {query_tokens} tokens",
        q.shape[0],
    )
    check_tensor("out", out, shape=[q.shape[0], heads, latent], dtypes=[q.dtype], device=device)
    longest = block_size * block_table.shape[1]
    max_context = longest if max_context is None else max_context
    require(0 <= max_context <= longest, "max_context", f"must lie in 0..{longest}", max_context)

    sums = arithmetic(q.dtype, cache.dtype, latent, target)
    tile = mla_tile(target, query_tokens=query_tokens, heads=heads, latent=latent, compute_bytes=sums.compute.itemsize)
    chunks = -(-heads // tile.pack)
    if num_splits is None:
        splits, split_tokens = choose_splits(
            target, programs=chunks * num_seqs, resident=1, max_context=max_context, block_n=tile.block_n
        )
    else:
        require(num_splits >= 1, "num_splits", "must be at least 1", num_splits)
        splits, split_tokens = (
            num_splits,
            -(-max(max_context, 1) // (num_splits * tile.block_n)) * tile.block_n,
        )
    split = splits > 1
    target_out, lse = partial_buffers(out, out.shape[0], splits) if split else (out, None)
    attention = Launch(
        mla_kernel,
        grid=(chunks, splits, num_seqs),
        args={
            "q_ptr": q,
            "cache_ptr": cache,
            "table_ptr": block_table,
            "context_ptr": context_lens,
            "out_ptr": target_out,
            "lse_ptr": lse,
            "scale": float(scale) * LOG2_E.value,
            "split_tokens": split_tokens,
            "q_stride_token": q.stride(0),
            "q_stride_head": q.stride(1),
            "stride_block": cache.stride(0),
            "stride_token": cache.stride(1),
            "table_stride": block_table.stride(0),
            "out_stride_token": target_out.stride(0),
            "out_stride_head": target_out.stride(1),
            "out_stride_split": target_out.stride(2) if split else 0,
            "lse_stride_token": lse.stride(0) if lse is not None else 0,
            "lse_stride_head": lse.stride(1) if lse is not None else 0,
        },
        constants={
            "BLOCK_SIZE": block_size,
            "QUERY_TOKENS": query_tokens,
            "HEADS": heads,
            "PACK": tile.pack,
            "BLOCK_M": tile.block_m,
            "BLOCK_N": tile.block_n,
            "LATENT": latent,
            "BLOCK_L": next_power_of_2(latent),
            "ROPE": rope,
            "BLOCK_R": next_power_of_2(rope),
            "COMPUTE": sums.constants["COMPUTE"],
            "PRECISION": sums.precision,
            "SPLIT": split,
        },
        num_warps=tile.num_warps,
        num_stages=tile.num_stages(target, paged=True),
    )
    if lse is None:
        return [attention]
    return [attention, join_launch(target_out, lse, out, target)]


def mla_decode_attention(
    q: torch.Tensor,
    cache: torch.Tensor,
    block_table: torch.Tensor,
    context_lens: torch.Tensor,
    *,
    latent: int,
    scale: float,
    query_tokens: int = 1,
    max_context: int | None = None,
    num_splits: int | None = None,
    out: torch.Tensor | None = None,
    target: Target | None = None,
) -> torch.Tensor:
    """Latent decode attention over the paged pool.

    Args:
        q: [num_seqs · query_tokens, num_heads, latent + rope], the key up-projection absorbed.
        cache: [num_blocks, block_size, latent + rope].
        block_table: int32 [num_seqs, max_blocks].
        context_lens: int32 [num_seqs], the query tokens' own included. 0 gives zeros.
        latent: elements of a row that are V too (512 in DeepSeek), at most 512.
        scale: factor of the scores; the model's own, since head_dim is not what it was before absorbing.
        query_tokens, max_context, num_splits, out, target: as in ``paged_decode_attention``.

    Returns:
        [num_seqs · query_tokens, num_heads, latent], before the value up-projection.

    Raises:
        KernelInputError: an argument does not fit; nothing was launched.
    """
    if out is None:
        out = q.new_empty((*q.shape[:-1], latent))
    launches = mla_launches(
        q, cache, block_table, context_lens, out, latent=latent, scale=scale, query_tokens=query_tokens,
        max_context=max_context, num_splits=num_splits, target=target,
    )  # fmt: skip
    for launch in launches:
        launch.run()
    return out
