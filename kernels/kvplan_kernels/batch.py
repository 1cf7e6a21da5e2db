"""A mixed batch in one step: sequences that decode beside sequences that prefill.

Planned once a step on the host, run once a layer: :func:`plan_batch` sorts the rows, cuts the chunks into
query tiles and uploads everything the kernels read in one copy; :func:`paged_attention` runs the decode
kernel over the rows with one query token and the prefill kernel over the rest, each writing its own tokens of
``out``.

Example: query_lens (1, 5, 1), context_lens (40, 5, 7), tiles of 4 tokens::

    q            | s0 | s1 s1 s1 s1 s1 | s2 |
    query_start    0    1                6    7
    decode_rows    0, 2
    tiles (seq, token)  (1, 4) (1, 0)         the one that sees the most tokens first
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from kvplan_kernels.checks import arithmetic, require
from kvplan_kernels.configs import Tile, prefill_tile
from kvplan_kernels.decode import decode_launches
from kvplan_kernels.launch import Launch
from kvplan_kernels.prefill import prefill_launch
from kvplan_kernels.target import Target, target_of

_ALIGN = 4
"""int32 elements in 16 bytes: each part of the upload starts on it, as every launch's pointers do (else: a
recompile)."""


@dataclass(frozen=True)
class BatchPlan:
    """One step's batch, ready for every layer. Tensors are int32 on the device.

    Args:
        tile: the query tile the prefill chunks were cut for.
        context_lens: [num_seqs], tokens in the cache after this step's K and V are written.
        query_start: [num_seqs + 1], where each sequence's tokens begin in q.
        decode_rows: the sequences with one query token.
        tile_seq, tile_token: sequence and first token of each query tile, longest context first.
        num_tokens: rows of q.
        max_decode_context: the longest context among the decode rows; 0 without any.
    """

    tile: Tile
    context_lens: torch.Tensor
    query_start: torch.Tensor
    decode_rows: torch.Tensor
    tile_seq: torch.Tensor
    tile_token: torch.Tensor
    num_tokens: int
    max_decode_context: int


def plan_batch(
    query_lens: Sequence[int],
    context_lens: Sequence[int],
    *,
    num_query_heads: int,
    num_kv_heads: int,
    head_dim: int,
    query_dtype: torch.dtype,
    cache_dtype: torch.dtype,
    device: torch.device | str,
    target: Target | None = None,
    tile: Tile | None = None,
) -> BatchPlan:
    """Plan a step.

    Args:
        query_lens: host numbers, tokens each sequence brings; at least 1.
        context_lens: host numbers, tokens each has in the cache, this step's included.
        target, tile: what to choose for and the choice itself, for tuning.

    Raises:
        KernelInputError: the lengths contradict one another.
    """
    device = torch.device(device)
    target = target or target_of(device)
    require(
        len(query_lens) == len(context_lens),
        "context_lens",
        f"must have {len(query_lens)} entries",
        len(context_lens),
    )
    for index, (new, context) in enumerate(zip(query_lens, context_lens, strict=True)):
        require(new >= 1, f"query_lens[{index}]", "must be at least 1", new)
        require(context >= new, f"context_lens[{index}]", f"must include the {new} new tokens", context)
    tile = tile or prefill_tile(
        target,
        group=num_query_heads // num_kv_heads,
        head_dim=head_dim,
        kv_bytes=cache_dtype.itemsize,
        compute_bytes=arithmetic(query_dtype, cache_dtype, head_dim, target).compute.itemsize,
    )
    tile_tokens = tile.block_m // tile.pack
    starts, decode_rows, tiles = [0], [], []
    for row, (new, context) in enumerate(zip(query_lens, context_lens, strict=True)):
        starts.append(starts[-1] + int(new))
        if new == 1:
            decode_rows.append(row)
            continue
        tiles += [(context - new + token, row, token) for token in range(0, new, tile_tokens)]
    tiles.sort(reverse=True)
    parts = [
        list(context_lens),
        starts,
        decode_rows,
        [row for _, row, _ in tiles],
        [token for _, _, token in tiles],
    ]
    lens, start, rows, tile_seq, tile_token = _upload(parts, device)
    return BatchPlan(
        tile=tile,
        context_lens=lens,
        query_start=start,
        decode_rows=rows,
        tile_seq=tile_seq,
        tile_token=tile_token,
        num_tokens=starts[-1],
        max_decode_context=max((int(context_lens[row]) for row in decode_rows), default=0),
    )


def _upload(parts: Sequence[Sequence[int]], device: torch.device) -> list[torch.Tensor]:
    """The lists as int32 tensors, moved in one copy, each 16-byte aligned."""
    lengths = [-(-len(part) // _ALIGN) * _ALIGN for part in parts]
    host = torch.zeros(sum(lengths), dtype=torch.int32, pin_memory=device.type == "cuda")
    views = list(host.split(lengths))
    for view, part in zip(views, parts, strict=True):
        view[: len(part)] = torch.tensor(part, dtype=torch.int32)
    moved = host.to(device, non_blocking=True).split(lengths)
    return [view[: len(part)] for view, part in zip(moved, parts, strict=True)]


def attention_launches(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    block_table: torch.Tensor,
    plan: BatchPlan,
    out: torch.Tensor,
    *,
    num_splits: int | None = None,
    **options: Any,
) -> list[Launch]:
    """The launches of a planned batch: decode rows (one or two kernels), then prefill tiles; none for an
    empty part."""
    require(q.shape[0] == plan.num_tokens, "q", f"must have the plan's {plan.num_tokens} tokens", q.shape[0])
    launches = []
    if plan.decode_rows.shape[0]:
        launches += decode_launches(
            q, k_cache, v_cache, block_table, plan.context_lens, out,
            rows=plan.decode_rows, query_start=plan.query_start,
            max_context=plan.max_decode_context, num_splits=num_splits, **options,
        )  # fmt: skip
    if plan.tile_seq.shape[0]:
        launches.append(
            prefill_launch(
                q, k_cache, v_cache, block_table, plan.context_lens, plan.query_start,
                plan.tile_seq, plan.tile_token, out, tile=plan.tile, **options,
            )
        )  # fmt: skip
    return launches


def paged_attention(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    block_table: torch.Tensor,
    plan: BatchPlan,
    *,
    out: torch.Tensor | None = None,
    **options: Any,
) -> torch.Tensor:
    """Attention of a mixed batch over the paged pool.

    Args:
        q: [tokens, num_query_heads, head_dim], sequences in the plan's order.
        k_cache, v_cache: [num_blocks, block_size, num_kv_heads, head_dim]; this step's K and V already
            written.
        block_table: int32 [num_seqs, max_blocks].
        plan: from :func:`plan_batch`, for these heads and dtypes.
        out: where to write; a new tensor by default.
        options: ``scale, window, softcap, k_scale, v_scale, num_splits, target`` as in
            ``paged_decode_attention``.

    Raises:
        KernelInputError: an argument does not fit; nothing was launched.
    """
    out = torch.empty_like(q) if out is None else out
    for launch in attention_launches(q, k_cache, v_cache, block_table, plan, out, **options):
        launch.run()
    return out


def paged_prefill_attention(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    block_table: torch.Tensor,
    query_lens: Sequence[int],
    context_lens: Sequence[int],
    *,
    out: torch.Tensor | None = None,
    target: Target | None = None,
    **options: Any,
) -> torch.Tensor:
    """Attention of chunks over their cached prefixes, planned and run: :func:`paged_attention` for one
    call."""
    plan = plan_batch(
        query_lens,
        context_lens,
        num_query_heads=q.shape[1],
        num_kv_heads=k_cache.shape[2],
        head_dim=q.shape[2],
        query_dtype=q.dtype,
        cache_dtype=k_cache.dtype,
        device=q.device,
        target=target,
    )
    return paged_attention(q, k_cache, v_cache, block_table, plan, out=out, target=target, **options)
