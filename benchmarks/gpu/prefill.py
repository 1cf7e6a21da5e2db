"""Prefill attention in TFLOP/s: whole prompts and chunks over a cached prefix, beside torch's causal SDPA."""

from __future__ import annotations

import sys

from torch.nn.functional import scaled_dot_product_attention

from benchmarks.gpu.measure import Bench, main
from benchmarks.gpu.pools import HEAD_DIM, KV_HEADS, QUERY_HEADS, pool
from kvplan_kernels import paged_attention, plan_batch

CASES = [(1, 8192, 8192), (4, 2048, 2048), (16, 512, 512), (1, 2048, 32768), (8, 512, 8192)]
"""(sequences, new tokens each, context each)."""


def prefill(bench: Bench) -> None:
    """Time prefill attention; operations are 4 · query-key pairs · query heads · head_dim."""
    for batch, new, context in [(2, 32, 64)] if bench.dry_run else CASES:
        base = pool(bench, batch, context, 16, queries=new)
        plan = plan_batch(
            [new] * batch,
            [context] * batch,
            num_query_heads=QUERY_HEADS,
            num_kv_heads=KV_HEADS,
            head_dim=HEAD_DIM,
            query_dtype=base.q.dtype,
            cache_dtype=base.k.dtype,
            device=bench.device,
        )
        seconds = bench.seconds(lambda base=base, plan=plan: paged_attention(base.q, base.k, base.v, base.table, plan))
        pairs = batch * (new * (context - new) + new * (new + 1) // 2)
        operations = 4 * pairs * QUERY_HEADS * HEAD_DIM
        sdpa_s = None
        if new == context:
            query = base.q.view(batch, new, QUERY_HEADS, HEAD_DIM).transpose(1, 2)
            k, v = (cache.transpose(1, 2) for cache in base.contiguous())
            sdpa_s = bench.seconds(
                lambda query=query, k=k, v=v: scaled_dot_product_attention(query, k, v, is_causal=True, enable_gqa=True)
            )
        bench.record(
            part="prefill", batch=batch, new_tokens=new, context=context, seconds=seconds,
            tflops=operations / seconds / 1e12, sdpa_s=sdpa_s,
        )  # fmt: skip


if __name__ == "__main__":
    sys.exit(main(prefill))
