"""Large paged batches for timing: no poison, no reference, only shuffled blocks."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from benchmarks.gpu.measure import Bench

QUERY_HEADS, KV_HEADS, HEAD_DIM = 32, 8, 128
"""Llama 3.1 8B."""


@dataclass(frozen=True)
class Pool:
    """``batch`` sequences of ``context`` tokens each.

    Args:
        q: [batch · queries, QUERY_HEADS, HEAD_DIM].
        k, v: [blocks, block_size, KV_HEADS, HEAD_DIM].
        table: int32 [batch, blocks a sequence], a permutation of the blocks.
        lens: int32 [batch].
    """

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    table: torch.Tensor
    lens: torch.Tensor
    batch: int
    context: int

    @property
    def kv_bytes(self) -> int:
        """Bytes of K and V that one attention must read."""
        return 2 * self.batch * self.context * KV_HEADS * HEAD_DIM * self.k.element_size()

    def repaged(self, bench: Bench, block_size: int) -> Pool:
        """The same memory cut into blocks of another size, shuffled anew."""
        shape = (-1, block_size, KV_HEADS, HEAD_DIM)
        k, v = self.k.view(shape), self.v.view(shape)
        table = torch.randperm(k.shape[0], generator=bench.generator).to(torch.int32).view(self.batch, -1)
        return Pool(self.q, k, v, table.to(bench.device), self.lens, self.batch, self.context)

    def contiguous(self) -> tuple[torch.Tensor, torch.Tensor]:
        """The same memory as one extent a sequence, [batch, context, KV_HEADS, HEAD_DIM]."""
        shape = (self.batch, -1, KV_HEADS, HEAD_DIM)
        return self.k.view(shape), self.v.view(shape)


def pool(bench: Bench, batch: int, context: int, block_size: int, queries: int = 1) -> Pool:
    """A bf16 pool; ``context`` is a multiple of every block size used on it."""
    shape = (batch * context // block_size, block_size, KV_HEADS, HEAD_DIM)
    k, v = bench.randn(*shape), bench.randn(*shape)
    table = torch.randperm(shape[0], generator=bench.generator).to(torch.int32).view(batch, -1)
    lens = torch.full((batch,), context, dtype=torch.int32, device=bench.device)
    q = bench.randn(batch * queries, QUERY_HEADS, HEAD_DIM)
    return Pool(q, k, v, table.to(bench.device), lens, batch, context)
