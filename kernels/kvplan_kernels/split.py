"""Join the partial results of split-KV attention.

Each split s wrote its own normalized output o_s and the log2 of its softmax denominator, lse_s. With M = max
lse_s::

    out = Σ_s 2^(lse_s - M) o_s / Σ_s 2^(lse_s - M)

A split that saw no token wrote lse = -inf and weighs nothing; its o_s is not read.

======= ============================================= ===== =============
tensor  shape                                         dtype layout
======= ============================================= ===== =============
partial [rows · k, num_query_heads, splits, head_dim] fp32  contiguous
lse     [rows · k, num_query_heads, splits]           fp32  contiguous
out     [tokens, num_query_heads, head_dim]           any   last stride 1
======= ============================================= ===== =============
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from kvplan_kernels.configs import next_power_of_2
from kvplan_kernels.launch import Launch
from kvplan_kernels.target import Target


@triton.jit
def join_kernel(
    partial_ptr,
    lse_ptr,
    out_ptr,
    row_ptr,
    start_ptr,
    splits,
    partial_stride_row,
    partial_stride_head,
    partial_stride_split,
    lse_stride_row,
    lse_stride_head,
    out_stride_token,
    out_stride_head,
    QUERY_TOKENS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_S: tl.constexpr,
    STEP: tl.constexpr,
):
    """Grid (query heads, rows · query tokens)."""
    head = tl.program_id(0)
    index = tl.program_id(1)
    if row_ptr is None:
        token = index
    else:
        seq = tl.load(row_ptr + index // QUERY_TOKENS)
        token = tl.load(start_ptr + seq) + index % QUERY_TOKENS
    lse_ptr += index.to(tl.int64) * lse_stride_row + head * lse_stride_head
    partial_ptr += index.to(tl.int64) * partial_stride_row + head * partial_stride_head
    offs_s = tl.arange(0, BLOCK_S)
    offs_d = tl.arange(0, BLOCK_D)
    lse = tl.load(lse_ptr + offs_s, mask=offs_s < splits, other=float("-inf"))
    top = tl.max(lse, 0)
    top = tl.where(top == float("-inf"), 0.0, top)
    total = tl.sum(tl.exp2(lse - top), 0)
    total = tl.where(total == 0.0, 1.0, total)

    acc = tl.zeros([BLOCK_D], tl.float32)
    for start in range(0, splits, STEP):
        s = start + tl.arange(0, STEP)
        weight = tl.exp2(tl.load(lse_ptr + s, mask=s < splits, other=float("-inf")) - top)
        live = (weight > 0.0)[:, None] & (offs_d < HEAD_DIM)[None, :]
        part = tl.load(partial_ptr + s[:, None] * partial_stride_split + offs_d[None, :], mask=live, other=0.0)
        acc += tl.sum(part * weight[:, None], 0)
    out_ptr += token.to(tl.int64) * out_stride_token + head * out_stride_head
    tl.store(out_ptr + offs_d, (acc / total).to(out_ptr.dtype.element_ty), mask=offs_d < HEAD_DIM)


def partial_buffers(out: torch.Tensor, rows: int, splits: int) -> tuple[torch.Tensor, torch.Tensor]:
    """(partial outputs, lse) of ``rows`` query tokens, uninitialized: the attention kernel writes every
    lse."""
    _, heads, head_dim = out.shape
    partial = torch.empty((rows, heads, splits, head_dim), dtype=torch.float32, device=out.device)
    lse = torch.empty((rows, heads, splits), dtype=torch.float32, device=out.device)
    return partial, lse


def join_launch(
    partial: torch.Tensor,
    lse: torch.Tensor,
    out: torch.Tensor,
    target: Target,
    *,
    rows: torch.Tensor | None = None,
    query_start: torch.Tensor | None = None,
    query_tokens: int = 1,
) -> Launch:
    """The launch that joins ``partial`` into ``out``, for every token or for those of ``rows`` (see
    decode_launches)."""
    count, heads, splits, head_dim = partial.shape
    width = next_power_of_2(head_dim)
    return Launch(
        join_kernel,
        grid=(heads, count),
        args={
            "partial_ptr": partial, "lse_ptr": lse, "out_ptr": out, "row_ptr": rows, "start_ptr": query_start,
            "splits": splits,
            "partial_stride_row": partial.stride(0), "partial_stride_head": partial.stride(1),
            "partial_stride_split": partial.stride(2),
            "lse_stride_row": lse.stride(0), "lse_stride_head": lse.stride(1),
            "out_stride_token": out.stride(0), "out_stride_head": out.stride(1),
        },
        constants={
            "QUERY_TOKENS": query_tokens, "HEAD_DIM": head_dim, "BLOCK_D": width,
            "BLOCK_S": max(16, next_power_of_2(splits)), "STEP": max(1, min(16, 2048 // width)),
        },
        num_warps=4 if target.backend == "cuda" else 2,
        num_stages=2,
    )  # fmt: skip
