"""Random paged batches with everything a kernel must not touch poisoned, and what error is allowed.

Used by the tests (in Triton's interpreter) and by ``benchmarks/gpu`` (on a card), so both check the same
things.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from kvplan_kernels import reference

TOLERANCE = {torch.float32: 2e-5, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}
"""Largest |out - reference| over max(1, largest |reference|), by the dtype of q and out. fp32: sums in
another order and three-fold tf32. fp16, bf16: two or three roundings of the weights and of the output (2^-11,
2^-8 each)."""

POISON_BLOCK = 2**30
"""An id no pool has: a look-up past a context reads far out of bounds."""


@dataclass(frozen=True)
class PagedBatch:
    """Sequences in a shuffled pool. Blocks no sequence owns, and slots past a context, hold NaN (int8: -128).

    Args:
        q: [Σ query_lens, num_query_heads, head_dim].
        k_cache, v_cache: [num_blocks, block_size, num_kv_heads, head_dim].
        block_table: int32 [num_seqs, max_blocks], POISON_BLOCK past each context.
        context_lens, query_lens: host numbers.
        k_scale, v_scale: fp32 [num_kv_heads] for a quantized cache.
    """

    q: torch.Tensor
    k_cache: torch.Tensor
    v_cache: torch.Tensor
    block_table: torch.Tensor
    context_lens: tuple[int, ...]
    query_lens: tuple[int, ...]
    k_scale: torch.Tensor | None
    v_scale: torch.Tensor | None

    @property
    def context(self) -> torch.Tensor:
        """``context_lens`` as the kernels take it."""
        return torch.tensor(self.context_lens, dtype=torch.int32, device=self.q.device)

    @property
    def scales(self) -> dict[str, torch.Tensor | None]:
        return {"k_scale": self.k_scale, "v_scale": self.v_scale}

    def expected(self, *, window: int = 0, softcap: float = 0.0, scale: float | None = None) -> torch.Tensor:
        """What attention must give, fp32."""
        return reference.paged_attention(
            self.q, self.k_cache, self.v_cache, self.block_table, self.context_lens, self.query_lens,
            window=window, softcap=softcap, scale=scale, **self.scales,
        )  # fmt: skip

    def shuffled(self, generator: torch.Generator) -> PagedBatch:
        """The same batch with its blocks elsewhere in the pool, by a new permutation."""
        blocks = self.k_cache.shape[0]
        place = torch.randperm(blocks, generator=generator).to(self.q.device)
        table = self.block_table.clone()
        owned = table < blocks
        table[owned] = place[table[owned].long()].to(torch.int32)
        k_cache, v_cache = torch.empty_like(self.k_cache), torch.empty_like(self.v_cache)
        k_cache[place], v_cache[place] = self.k_cache, self.v_cache
        return replace(self, k_cache=k_cache, v_cache=v_cache, block_table=table)

    def contiguous(self) -> tuple[torch.Tensor, torch.Tensor]:
        """K and V as [num_seqs, longest context, num_kv_heads, head_dim], poisoned past each context."""
        longest = max(1, *self.context_lens)
        rows = []
        for cache in (self.k_cache, self.v_cache):
            row = torch.empty(
                (len(self.context_lens), longest, *cache.shape[2:]), dtype=cache.dtype, device=cache.device
            )
            poison(row)
            for index, context in enumerate(self.context_lens):
                row[index, :context] = reference.gather_tokens(cache, self.block_table[index], context)
            rows.append(row)
        return rows[0], rows[1]


def poison(tensor: torch.Tensor) -> None:
    """Fill with what any use of it betrays: NaN, or the int8 that quantizing never stores."""
    if tensor.dtype == torch.int8:
        tensor.fill_(-128)
    elif tensor.dtype == torch.float8_e4m3fn:
        tensor.view(torch.uint8).fill_(0x7F)
    else:
        tensor.fill_(float("nan"))


def paged_batch(
    generator: torch.Generator,
    *,
    context_lens: Sequence[int],
    query_lens: Sequence[int] | None = None,
    block_size: int = 16,
    query_heads: int = 4,
    kv_heads: int = 2,
    head_dim: int = 64,
    dtype: torch.dtype = torch.float32,
    cache_dtype: torch.dtype | None = None,
    device: torch.device | str = "cpu",
) -> PagedBatch:
    """A random batch; query_lens is one token each by default. Random numbers come from a CPU
    ``generator``."""
    cache_dtype = cache_dtype or dtype
    query_lens = tuple(query_lens or [1] * len(context_lens))
    needed = [-(-context // block_size) for context in context_lens]
    blocks = sum(needed) + 3
    order = torch.randperm(blocks, generator=generator).to(torch.int32)
    table = torch.full((len(context_lens), max(1, *needed)), POISON_BLOCK, dtype=torch.int32)
    quantized = cache_dtype in (torch.float8_e4m3fn, torch.int8)
    caches, scales = [], []
    for _ in range(2):
        values = torch.randn((blocks, block_size, kv_heads, head_dim), generator=generator)
        scale = (0.5 + torch.rand(kv_heads, generator=generator)) / 32 if quantized else None
        caches.append(reference.quantize(values, scale, cache_dtype))
        scales.append(scale.to(device) if scale is not None else None)
    written = torch.zeros(blocks, block_size, dtype=torch.bool)
    start = 0
    for row, (context, count) in enumerate(zip(context_lens, needed, strict=True)):
        own = order[start : start + count]
        start += count
        table[row, :count] = own
        tokens = torch.arange(context)
        written[own[tokens // block_size].long(), tokens % block_size] = True
    for cache in caches:
        poisoned = torch.empty_like(cache)
        poison(poisoned)
        cache.view(torch.uint8)[~written] = poisoned.view(torch.uint8)[~written]
    q = torch.randn((sum(query_lens), query_heads, head_dim), generator=generator).to(dtype)
    return PagedBatch(
        q=q.to(device),
        k_cache=caches[0].to(device),
        v_cache=caches[1].to(device),
        block_table=table.to(device),
        context_lens=tuple(context_lens),
        query_lens=query_lens,
        k_scale=scales[0],
        v_scale=scales[1],
    )


def error(out: torch.Tensor, expected: torch.Tensor) -> float:
    """Largest |out - expected| over max(1, largest |expected|); infinite where out is not finite."""
    difference = (out.float() - expected.float()).abs()
    if not bool(torch.isfinite(difference).all()):
        return float("inf")
    return float(difference.max() / expected.abs().max().clamp(min=1.0)) if difference.numel() else 0.0
