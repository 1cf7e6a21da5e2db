"""What the kernels must compute, in plain torch: slow, obvious, in fp32 whatever came in.

They follow the block table one sequence at a time and read nothing but what a sequence owns.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

E4M3_MAX = 448.0
INT8_MAX = 127.0


def gather_tokens(cache: torch.Tensor, block_row: torch.Tensor, context: int) -> torch.Tensor:
    """The first ``context`` tokens of one sequence, [context, num_kv_heads, head_dim], out of the paged
    pool."""
    block_size = cache.shape[1]
    tokens = torch.arange(context, device=cache.device)
    return cache[block_row[tokens // block_size].long(), tokens % block_size]


def attend_sequence(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    scale: float | None = None,
    window: int = 0,
    softcap: float = 0.0,
) -> torch.Tensor:
    """Causal attention of the last queries of one sequence over all its tokens.

    Args:
        q: [queries, num_query_heads, head_dim], at the positions tokens - queries .. tokens - 1.
        k, v: [tokens, num_kv_heads, head_dim]; v's head_dim may differ.

    Returns:
        fp32 [queries, num_query_heads, v's head_dim]; zeros where there is no token.
    """
    queries, heads, head_dim = q.shape
    tokens, kv_heads, _ = k.shape
    if tokens == 0:
        return torch.zeros(queries, heads, v.shape[-1], device=q.device)
    k = k.float().repeat_interleave(heads // kv_heads, dim=1)
    v = v.float().repeat_interleave(heads // kv_heads, dim=1)
    scores = torch.einsum("qhd,thd->hqt", q.float(), k) * (head_dim**-0.5 if scale is None else scale)
    if softcap > 0:
        scores = softcap * torch.tanh(scores / softcap)
    position = torch.arange(tokens - queries, tokens, device=q.device)[:, None]
    token = torch.arange(tokens, device=q.device)[None, :]
    hidden = token > position
    if window > 0:
        hidden |= token <= position - window
    weights = torch.softmax(scores.masked_fill(hidden, float("-inf")), dim=-1)
    return torch.einsum("hqt,thd->qhd", weights, v)


def dequantize(stored: torch.Tensor, scale: torch.Tensor | None) -> torch.Tensor:
    """Cached [.., num_kv_heads, head_dim] as fp32: stored · scale of its head."""
    return stored.float() if scale is None else stored.float() * scale[:, None]


def paged_attention(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    block_table: torch.Tensor,
    context_lens: Sequence[int],
    query_lens: Sequence[int],
    *,
    k_scale: torch.Tensor | None = None,
    v_scale: torch.Tensor | None = None,
    scale: float | None = None,
    window: int = 0,
    softcap: float = 0.0,
) -> torch.Tensor:
    """Attention of a batch of any mix: sequence i brings query_lens[i] tokens, the last of its context.
    fp32."""
    parts = []
    for row, (context, chunk) in enumerate(zip(context_lens, q.split(list(query_lens)), strict=True)):
        k = dequantize(gather_tokens(k_cache, block_table[row], context), k_scale)
        v = dequantize(gather_tokens(v_cache, block_table[row], context), v_scale)
        parts.append(attend_sequence(chunk, k, v, scale=scale, window=window, softcap=softcap))
    return torch.cat(parts)


def mla_attention(
    q: torch.Tensor,
    cache: torch.Tensor,
    block_table: torch.Tensor,
    context_lens: Sequence[int],
    query_lens: Sequence[int],
    *,
    latent: int,
    scale: float,
) -> torch.Tensor:
    """Latent attention: K is the whole cached row, V its first ``latent`` elements. fp32 [tokens, heads,
    latent]."""
    parts = []
    for row, (context, chunk) in enumerate(zip(context_lens, q.split(list(query_lens)), strict=True)):
        k = gather_tokens(cache, block_table[row], context)[:, None, :]
        parts.append(attend_sequence(chunk, k, k[..., :latent], scale=scale))
    return torch.cat(parts)


def quantize(x: torch.Tensor, scale: torch.Tensor | None, dtype: torch.dtype) -> torch.Tensor:
    """[.., num_kv_heads, head_dim] as the cache stores it: x / scale, saturated, rounded to nearest even."""
    if scale is None:
        return x.to(dtype)
    scaled = x.float() / scale[:, None]
    if dtype == torch.int8:
        return scaled.round().clamp(-INT8_MAX, INT8_MAX).to(dtype)
    return scaled.clamp(-E4M3_MAX, E4M3_MAX).to(dtype)


def write_kv(
    key: torch.Tensor,
    value: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    slots: torch.Tensor,
    *,
    k_scale: torch.Tensor | None = None,
    v_scale: torch.Tensor | None = None,
) -> None:
    """Put token i's K and V in slot slots[i] = block · block_size + offset; -1 puts it nowhere. In place."""
    block_size = k_cache.shape[1]
    for cache, new, scale in ((k_cache, key, k_scale), (v_cache, value, v_scale)):
        rows = quantize(new, scale, cache.dtype)
        for token, slot in enumerate(slots.tolist()):
            if slot >= 0:
                cache[slot // block_size, slot % block_size] = rows[token]


def copy_blocks(pool: torch.Tensor, pairs: Sequence[tuple[int, int]]) -> None:
    """pool[:, destination] = pool[:, source] for every pair, as if all at once. In place."""
    if pairs:
        sources, destinations = (list(column) for column in zip(*pairs, strict=True))
        pool[:, destinations] = pool[:, sources].clone()
