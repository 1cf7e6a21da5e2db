"""Decode attention over batch × context × block size, as a share of the device's copy bandwidth, beside
torch's SDPA over contiguous memory of the same size."""

from __future__ import annotations

import sys

import torch
from torch.nn.functional import scaled_dot_product_attention

from benchmarks.gpu.measure import Bench, main
from benchmarks.gpu.pools import KV_HEADS, QUERY_HEADS, pool
from kvplan_kernels import paged_decode_attention
from kvplan_kernels.testing import TOLERANCE, error

SIZES = [
    (1, 4096),
    (1, 65536),
    (8, 4096),
    (32, 1024),
    (32, 8192),
    (64, 8192),
    (128, 4096),
    (128, 16384),
    (256, 2048),
]
BLOCKS = [1, 16, 32, 128]


def decode(bench: Bench) -> None:
    """Time decode attention; each size is checked against SDPA before it is timed."""
    copy = bench.copy_bytes_per_s()
    bench.record(part="decode", case="copy", bytes_per_s=copy)
    for batch, context in [(2, 128)] if bench.dry_run else SIZES:
        base = pool(bench, batch, context, 16)
        k, v = (cache.transpose(1, 2) for cache in base.contiguous())
        query = base.q.view(batch, QUERY_HEADS, 1, -1)

        def sdpa(query=query, k=k, v=v) -> torch.Tensor:
            return scaled_dot_product_attention(query, k, v, enable_gqa=QUERY_HEADS != KV_HEADS)

        sdpa_s = bench.seconds(sdpa)
        for block_size in [1, 16] if bench.dry_run else BLOCKS:
            paged = base.repaged(bench, block_size)
            in_order = torch.arange(paged.table.numel(), dtype=torch.int32, device=bench.device)
            ordered = paged_decode_attention(
                base.q, paged.k, paged.v, in_order.view_as(paged.table), base.lens, max_context=context
            )
            off = error(ordered.view(batch, QUERY_HEADS, -1), sdpa().view(batch, QUERY_HEADS, -1))

            def attention(paged=paged) -> torch.Tensor:
                return paged_decode_attention(
                    paged.q, paged.k, paged.v, paged.table, paged.lens, max_context=paged.context
                )

            seconds = bench.seconds(attention)
            bench.record(
                part="decode", case="paged", batch=batch, context=context, block_size=block_size,
                kv_bytes=base.kv_bytes, seconds=seconds, bytes_per_s=base.kv_bytes / seconds,
                share_of_copy=base.kv_bytes / seconds / copy, sdpa_s=sdpa_s,
                error_against_sdpa=off, correct=off < TOLERANCE[torch.bfloat16],
            )  # fmt: skip


if __name__ == "__main__":
    sys.exit(main(decode))
