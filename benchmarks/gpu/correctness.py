"""Every kernel against its torch reference, on fresh random inputs, with everything foreign poisoned."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch

import kvplan_kernels as kk
from benchmarks.gpu.measure import Bench, main
from kvplan_kernels import reference
from kvplan_kernels.testing import TOLERANCE, PagedBatch, error, paged_batch, poison

FP16, BF16, FP32 = torch.float16, torch.bfloat16, torch.float32
FP8, INT8 = torch.float8_e4m3fn, torch.int8

Check = tuple[str, Callable[[], tuple[float, float]]]
"""A name, and what gives (error, largest error allowed)."""


def attention(bench: Bench, shape: dict[str, Any], options: dict[str, Any]) -> tuple[float, float]:
    batch = paged_batch(bench.generator, device=bench.device, **shape)
    plan = kk.plan_batch(
        batch.query_lens,
        batch.context_lens,
        num_query_heads=batch.q.shape[1],
        num_kv_heads=batch.k_cache.shape[2],
        head_dim=batch.q.shape[2],
        query_dtype=batch.q.dtype,
        cache_dtype=batch.k_cache.dtype,
        device=bench.device,
    )
    out = torch.empty_like(batch.q)
    poison(out)
    kk.paged_attention(
        batch.q, batch.k_cache, batch.v_cache, batch.block_table, plan, out=out, **batch.scales, **options
    )
    plain = {name: value for name, value in options.items() if name != "num_splits"}
    return error(out, batch.expected(**plain)), TOLERANCE[batch.q.dtype]


def speculation(bench: Bench, dtype: torch.dtype) -> tuple[float, float]:
    batch = paged_batch(
        bench.generator,
        context_lens=[4, 70, 300],
        query_lens=[4, 4, 4],
        query_heads=8,
        dtype=dtype,
        device=bench.device,
    )
    out = kk.paged_decode_attention(
        batch.q, batch.k_cache, batch.v_cache, batch.block_table, batch.context, query_tokens=4
    )
    return error(out, batch.expected()), TOLERANCE[dtype]


def permutation(bench: Bench) -> tuple[float, float]:
    """0 when moving the blocks changes no bit."""
    batch = paged_batch(bench.generator, context_lens=[130, 17, 64], head_dim=128, dtype=FP16, device=bench.device)
    moved = batch.shuffled(bench.generator)
    first, second = (_decode(b) for b in (batch, moved))
    return float(not torch.equal(first, second)), 0.5


def contiguity(bench: Bench) -> tuple[float, float]:
    """Contiguous against paged: one tile, though the compiler may contract its sums differently."""
    batch = paged_batch(bench.generator, context_lens=[130, 17, 64], head_dim=128, dtype=BF16, device=bench.device)
    k, v = batch.contiguous()
    out = kk.contiguous_decode_attention(batch.q, k, v, batch.context, num_splits=1)
    return error(out, _decode(batch)), TOLERANCE[BF16]


def _decode(batch: PagedBatch) -> torch.Tensor:
    return kk.paged_decode_attention(
        batch.q, batch.k_cache, batch.v_cache, batch.block_table, batch.context, num_splits=1
    )


def latent(bench: Bench, dtype: torch.dtype, heads: int) -> tuple[float, float]:
    batch = paged_batch(
        bench.generator, context_lens=[1, 63, 400], query_heads=heads, kv_heads=1, head_dim=576, dtype=dtype,
        block_size=64, device=bench.device,
    )  # fmt: skip
    cache = batch.k_cache[:, :, 0]
    out = kk.mla_decode_attention(batch.q, cache, batch.block_table, batch.context, latent=512, scale=0.07)
    expected = reference.mla_attention(
        batch.q, cache, batch.block_table, batch.context_lens, batch.query_lens, latent=512, scale=0.07
    )
    return error(out, expected), TOLERANCE[dtype]


def write(bench: Bench, dtype: torch.dtype, cache: torch.dtype) -> tuple[float, float]:
    """The share of bytes that differ from the reference's."""
    key, value = (torch.randn((9, 3, 80), generator=bench.generator).to(bench.device, dtype) for _ in range(2))
    slots = torch.tensor([3, -1, 7, 19, 0, 1, -1, 10, 11], device=bench.device)
    caches = [torch.zeros((5, 4, 3, 80), device=bench.device).to(cache) for _ in range(4)]
    quantized = cache in (FP8, INT8)
    scales = {name: torch.rand(3, device=bench.device) + 0.5 if quantized else None for name in ("k_scale", "v_scale")}
    kk.write_kv(key, value, *caches[:2], slots, **scales)
    reference.write_kv(key, value, *caches[2:], slots, **scales)
    wrong = [
        (a.view(torch.uint8) != b.view(torch.uint8)).float().mean() for a, b in zip(caches[:2], caches[2:], strict=True)
    ]
    return float(max(wrong)), 1e-9


def moves(bench: Bench) -> tuple[float, float]:
    """0 when copy, gather and scatter move exactly their blocks."""
    pool = torch.randn((6, 9, 16, 3, 80), generator=bench.generator).to(bench.device, BF16)
    expected = pool.clone()
    reference.copy_blocks(expected, [(0, 3), (0, 4), (6, 5)])
    kk.copy_blocks(pool, torch.tensor([[0, 3], [0, 4], [6, 5]], device=bench.device))
    blocks, places = torch.tensor([7, 0], device=bench.device), torch.tensor([1, 8], device=bench.device)
    staging = torch.empty((6, 2, 16, 3, 80), dtype=BF16, device=bench.device)
    kk.gather_blocks(pool, blocks, staging)
    kk.scatter_blocks(staging, places, pool)
    expected[:, places] = expected[:, blocks]
    return float(not torch.equal(pool, expected)), 0.5


def far_pool(bench: Bench) -> tuple[float, float]:
    """0 when blocks past element 2^31 of the pool are found."""
    batch = paged_batch(
        bench.generator,
        context_lens=[20],
        head_dim=64,
        kv_heads=1,
        query_heads=1,
        dtype=FP16,
        device=bench.device,
    )
    stride = 2**28
    storage = torch.empty(9 * stride, dtype=FP16, device=bench.device)
    k, v = (storage.as_strided((9, 16, 1, 64), (stride, 64, 64, 1), offset) for offset in (0, 2048))
    for view, cache in ((k, batch.k_cache), (v, batch.v_cache)):
        view[[8, 7]] = cache[batch.block_table[0].long()]
    table = torch.tensor([[8, 7]], dtype=torch.int32, device=bench.device)
    out = kk.paged_decode_attention(batch.q, k, v, table, batch.context, num_splits=1)
    return float(not torch.equal(out, _decode(batch))), 0.5


def checks(bench: Bench) -> Iterator[Check]:
    """Every kernel, with each feature and each dtype it takes."""

    def attend(name: str, options: dict[str, Any] | None = None, **shape: Any) -> Check:
        full = {"context_lens": [1, 15, 16, 17, 333, 40, 200], "query_lens": [1, 1, 1, 1, 1, 40, 33], **shape}
        return name, lambda: attention(bench, full, options or {})

    for block in (1, 8, 16, 48, 256):
        yield attend(f"B{block}", block_size=block, dtype=FP16, head_dim=128)
    for dtype in (FP32, BF16):
        for dim in (64, 80, 96, 128, 256):
            yield attend(f"{dtype} d{dim}", dtype=dtype, head_dim=dim)
    for heads in ((1, 1), (28, 4), (32, 8), (71, 1), (128, 1)):
        yield attend(f"{heads[0]}q{heads[1]}kv", query_heads=heads[0], kv_heads=heads[1], dtype=BF16)
    for cache in (FP8, INT8):
        for dtype in (FP16, BF16, FP32):
            yield attend(f"{dtype} over {cache}", dtype=dtype, cache_dtype=cache, head_dim=128)
        yield attend(f"d256 over {cache}", dtype=BF16, cache_dtype=cache, head_dim=256)
    for options in (
        {"window": 1},
        {"window": 33},
        {"softcap": 2.0},
        {"num_splits": 3},
        {"window": 40, "num_splits": 2},
    ):
        yield attend(str(options), options, dtype=BF16, head_dim=128)
    yield "permutation", lambda: permutation(bench)
    yield "contiguous", lambda: contiguity(bench)
    for dtype in (FP16, FP32):
        yield f"speculation {dtype}", lambda dtype=dtype: speculation(bench, dtype)
        for count in (16, 128):
            yield f"latent {dtype} {count}q", lambda dtype=dtype, count=count: latent(bench, dtype, count)
    for cache in (FP16, FP8, INT8):
        yield f"write {cache}", lambda cache=cache: write(bench, FP16, cache)
    yield "moves", lambda: moves(bench)
    yield "far pool", lambda: far_pool(bench)


def correctness(bench: Bench) -> None:
    """Run all checks; a wrong or a failing one is a row like any other, and the part fails at its end."""
    bad = []
    chosen = list(checks(bench))
    if bench.dry_run:
        kept = (
            "B16",
            "write torch.float8_e4m3fn",
            "permutation",
            "contiguous",
            "moves",
            "speculation torch.float16",
        )
        chosen = [check for check in chosen if check[0] in kept]
    for name, check in chosen:
        try:
            off, allowed = check()
        except Exception as fault:
            bench.record(part="correctness", case=name, ok=False, fault=f"{type(fault).__name__}: {fault}"[:500])
            bad.append(name)
            continue
        bench.record(part="correctness", case=name, ok=off < allowed, error=off, allowed=allowed)
        if not off < allowed:
            bad.append(name)
    if bad:
        raise SystemExit(f"wrong: {', '.join(bad)}")


if __name__ == "__main__":
    sys.exit(main(correctness))
