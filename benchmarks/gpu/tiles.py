"""Other tiles than the one chosen, for decode and prefill: whether the choice in ``configs.py`` is the card's
own."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import asdict

from benchmarks.gpu.measure import Bench, main
from benchmarks.gpu.pools import HEAD_DIM, KV_HEADS, QUERY_HEADS, pool
from kvplan_kernels import BatchPlan, paged_attention, paged_decode_attention, plan_batch
from kvplan_kernels.configs import Tile, decode_tile, prefill_tile
from kvplan_kernels.target import target_of

GROUP = QUERY_HEADS // KV_HEADS
DECODE = [Tile(16, n, GROUP, warps, depth) for n in (32, 64, 128) for warps in (4, 8) for depth in (1, 2, 3)]
PREFILL = [Tile(128, n, GROUP, 8, depth) for n in (32, 64, 128) for depth in (1, 2)] + [Tile(64, 64, GROUP, 4, 2)]
TOO_LARGE = "out of resource"


def tiles(bench: Bench) -> None:
    """Time each candidate on one large shape; a tile that does not fit the card is a row with its error."""
    target = target_of(bench.device)
    sizes = {"group": GROUP, "head_dim": HEAD_DIM, "kv_bytes": 2, "compute_bytes": 2}
    decode_tiles(bench, decode_tile(target, query_tokens=1, **sizes))
    prefill_tiles(bench, prefill_tile(target, **sizes))


def decode_tiles(bench: Bench, chosen: Tile) -> None:
    """2 GiB of K and V in blocks of 16; ``work_per_s`` is bytes."""
    batch, context = (1, 64) if bench.dry_run else (64, 8192)
    base = pool(bench, batch, context, 16)
    for tile in [chosen] if bench.dry_run else [chosen, *DECODE]:

        def run(tile: Tile = tile) -> None:
            paged_decode_attention(base.q, base.k, base.v, base.table, base.lens, tile=tile)

        _row(bench, "decode", tile, tile == chosen, run, base.kv_bytes)


def prefill_tiles(bench: Bench, chosen: Tile) -> None:
    """One prompt of 4096 tokens; ``work_per_s`` is operations, half of the square's for causality."""
    new = 32 if bench.dry_run else 4096
    base = pool(bench, 1, new, 16, queries=new)
    for tile in [chosen] if bench.dry_run else [chosen, *PREFILL]:
        plan = plan_batch(
            [new], [new], num_query_heads=QUERY_HEADS, num_kv_heads=KV_HEADS, head_dim=HEAD_DIM,
            query_dtype=base.q.dtype, cache_dtype=base.k.dtype, device=bench.device, tile=tile,
        )  # fmt: skip

        def run(plan: BatchPlan = plan) -> None:
            paged_attention(base.q, base.k, base.v, base.table, plan)

        _row(bench, "prefill", tile, tile == chosen, run, 2 * new * new * QUERY_HEADS * HEAD_DIM)


def _row(bench: Bench, case: str, tile: Tile, chosen: bool, run: Callable[[], None], work: int) -> None:
    row = {"part": "tiles", "case": case, "chosen": chosen, **asdict(tile)}
    try:
        seconds = bench.seconds(run, repeats=10)
    except Exception as fault:
        if TOO_LARGE not in str(fault):
            raise
        bench.record(**row, seconds=None, error=str(fault)[:200])
    else:
        bench.record(**row, seconds=seconds, work_per_s=work / seconds)


if __name__ == "__main__":
    sys.exit(main(tiles))
