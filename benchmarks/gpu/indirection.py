"""What the block table costs: paged ÷ contiguous decode with the same tile and the same splits, by block
size."""

from __future__ import annotations

import sys

import torch

from benchmarks.gpu.measure import Bench, main
from benchmarks.gpu.pools import pool
from kvplan_kernels import contiguous_decode_attention, paged_decode_attention

SIZES = [(64, 8192), (8, 32768)]
BLOCKS = [1, 2, 4, 8, 16, 32, 64, 128, 256]


def indirection(bench: Bench) -> None:
    """Time contiguous once a size, paged by block size, shuffled and in order; outputs must agree bit for
    bit."""
    for batch, context in [(2, 256)] if bench.dry_run else SIZES:
        base = pool(bench, batch, context, 16)
        k, v = base.contiguous()
        # Fixed, so that both run the very same programs: enough for any card here.
        splits = 2 if bench.dry_run else max(1, 512 // (batch * 8))

        def contiguous(base=base, k=k, v=v, splits=splits) -> torch.Tensor:
            return contiguous_decode_attention(base.q, k, v, base.lens, num_splits=splits)

        contiguous_s = bench.seconds(contiguous)
        expected = contiguous()
        for block_size in [1, 16, 256] if bench.dry_run else BLOCKS:
            shuffled = base.repaged(bench, block_size)
            in_order = torch.arange(shuffled.table.numel(), dtype=torch.int32, device=bench.device)
            for order, table in (
                ("shuffled", shuffled.table),
                ("in order", in_order.view_as(shuffled.table)),
            ):

                def paged(shuffled=shuffled, table=table, splits=splits) -> torch.Tensor:
                    return paged_decode_attention(
                        shuffled.q, shuffled.k, shuffled.v, table, shuffled.lens, num_splits=splits
                    )

                seconds = bench.seconds(paged)
                bench.record(
                    part="indirection", batch=batch, context=context, block_size=block_size, order=order,
                    seconds=seconds, contiguous_s=contiguous_s, paged_over_contiguous=seconds / contiguous_s,
                    same_bits=torch.equal(paged(), expected) if order == "in order" else None,
                )  # fmt: skip


if __name__ == "__main__":
    sys.exit(main(indirection))
