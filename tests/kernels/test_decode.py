"""Decode attention in the interpreter, against the torch reference."""

from __future__ import annotations

import pytest
import torch

from kvplan_kernels import contiguous_decode_attention, paged_decode_attention
from kvplan_kernels.decode import decode_launches
from kvplan_kernels.testing import TOLERANCE, PagedBatch, error, paged_batch, poison

FP32, FP16, BF16 = torch.float32, torch.float16, torch.bfloat16
FP8, INT8 = torch.float8_e4m3fn, torch.int8


def decode(batch: PagedBatch, **options) -> torch.Tensor:
    out = torch.empty_like(batch.q)
    poison(out)
    return paged_decode_attention(
        batch.q,
        batch.k_cache,
        batch.v_cache,
        batch.block_table,
        batch.context,
        out=out,
        **batch.scales,
        **options,
    )


@pytest.mark.parametrize("dtype", [FP32, FP16], ids=["fp32", "fp16"])
@pytest.mark.parametrize("block_size", [1, 8, 16, 48, 128, 256])
def test_every_edge_of_a_block(generator, block_size, dtype):
    edges = {1, block_size - 1, block_size, block_size + 1, 2 * block_size} - {0}
    batch = paged_batch(generator, context_lens=sorted(edges), block_size=block_size, dtype=dtype)
    assert error(decode(batch), batch.expected()) < TOLERANCE[dtype]


@pytest.mark.parametrize("dtype", [FP32, FP16, BF16], ids=["fp32", "fp16", "bf16"])
@pytest.mark.parametrize(
    "heads", [(1, 1), (4, 4), (8, 1), (12, 2), (71, 1)], ids=lambda heads: f"{heads[0]}q{heads[1]}kv"
)
def test_heads_grouped_any_way(generator, heads, dtype):
    batch = paged_batch(generator, context_lens=[37], query_heads=heads[0], kv_heads=heads[1], dtype=dtype)
    assert error(decode(batch), batch.expected()) < TOLERANCE[dtype]


@pytest.mark.parametrize("head_dim", [16, 64, 80, 96, 128, 256])
def test_head_dims_that_are_no_power_of_two(generator, head_dim):
    batch = paged_batch(generator, context_lens=[50, 7], head_dim=head_dim, dtype=FP16)
    assert error(decode(batch), batch.expected()) < TOLERANCE[FP16]


@pytest.mark.parametrize("cache_dtype", [FP8, INT8], ids=["fp8", "int8"])
@pytest.mark.parametrize("dtype", [FP32, FP16, BF16], ids=["fp32", "fp16", "bf16"])
def test_quantized_caches_with_a_scale_a_head(generator, dtype, cache_dtype):
    batch = paged_batch(
        generator, context_lens=[33, 80], kv_heads=4, query_heads=8, dtype=dtype, cache_dtype=cache_dtype
    )
    assert error(decode(batch), batch.expected()) < TOLERANCE[dtype]


def test_hardware_without_e4m3_reads_the_same_values(generator):
    """The bit-moving path (sm_80, gfx942) and the converting one agree bit for bit, over every finite
    code."""
    from kvplan_kernels.target import A100, H200

    batch = paged_batch(generator, context_lens=[33], head_dim=128, dtype=FP16, cache_dtype=FP8)
    codes = torch.arange(256, dtype=torch.uint8)
    codes = codes[(codes & 0x7F) != 0x7F]
    shape = batch.v_cache.shape
    filled = codes.repeat(-(-batch.v_cache.numel() // len(codes)))[: batch.v_cache.numel()].view(shape)
    batch.v_cache.view(torch.uint8).copy_(filled)
    by_bits, by_conversion = (decode(batch, target=target, num_splits=1) for target in (A100, H200))
    assert torch.equal(by_bits, by_conversion)


def test_fp32_queries_over_a_16_bit_cache(generator):
    batch = paged_batch(generator, context_lens=[40], dtype=FP32, cache_dtype=FP16)
    assert error(decode(batch), batch.expected()) < TOLERANCE[FP32]


@pytest.mark.parametrize("splits", [2, 3, 7])
def test_split_tokens_equal_unsplit(generator, splits):
    """Among them a sequence too short for some splits to see anything."""
    batch = paged_batch(generator, context_lens=[3, 200, 65], dtype=FP32)
    assert error(decode(batch, num_splits=splits), decode(batch, num_splits=1)) < TOLERANCE[FP32]


def test_splits_are_chosen_from_the_longest_context(generator):
    from kvplan_kernels.target import H200

    batch = paged_batch(generator, context_lens=[4000, 5], kv_heads=1, query_heads=1, head_dim=16, dtype=FP32)
    launches = decode_launches(
        batch.q, batch.k_cache, batch.v_cache, batch.block_table, batch.context, batch.q, target=H200
    )
    assert [launch.kernel.__name__ for launch in launches] == ["decode_kernel", "join_kernel"]
    assert launches[0].grid == (
        1,
        11,
        2,
    )  # splits of 384 tokens: whole tiles, and never fewer than 256 tokens


@pytest.mark.parametrize("splits", [1, 3])
@pytest.mark.parametrize("window", [1, 16, 33, 1000])
def test_sliding_window(generator, window, splits):
    batch = paged_batch(generator, context_lens=[1, 16, 150], dtype=FP32)
    assert error(decode(batch, window=window, num_splits=splits), batch.expected(window=window)) < TOLERANCE[FP32]


def test_blocks_that_left_the_window_are_not_read(generator):
    """vLLM gives their table entries to the null block, which holds anything."""
    batch = paged_batch(generator, context_lens=[100], block_size=8, dtype=FP32)
    expected = batch.expected(window=20)
    for block in batch.block_table[0, : (100 - 20 + 1) // 8].tolist():
        batch.k_cache[block] = batch.v_cache[block] = float("nan")
    assert error(decode(batch, window=20), expected) < TOLERANCE[FP32]


def test_soft_cap(generator):
    batch = paged_batch(generator, context_lens=[90], dtype=FP32)
    assert error(decode(batch, softcap=2.0, scale=1.0), batch.expected(softcap=2.0, scale=1.0)) < TOLERANCE[FP32]


def test_extreme_scores_stay_finite(generator):
    batch = paged_batch(generator, context_lens=[90], dtype=FP32)
    for scale in (1e4, -1e4):
        assert error(decode(batch, scale=scale), batch.expected(scale=scale)) < TOLERANCE[FP32]
        capped = batch.expected(scale=scale, softcap=50.0)
        assert error(decode(batch, scale=scale, softcap=50.0), capped) < TOLERANCE[FP32]


@pytest.mark.parametrize("splits", [1, 2])
def test_speculated_tokens_are_causal_among_themselves(generator, splits):
    batch = paged_batch(generator, context_lens=[4, 5, 70], query_lens=[4, 4, 4], query_heads=6, dtype=FP32)
    assert error(decode(batch, query_tokens=4, num_splits=splits), batch.expected()) < TOLERANCE[FP32]
    assert error(decode(batch, query_tokens=4, window=9), batch.expected(window=9)) < TOLERANCE[FP32]


def test_an_empty_context_gives_zeros(generator):
    """A padding row of a CUDA graph."""
    batch = paged_batch(generator, context_lens=[0, 9], dtype=FP32)
    for splits in (1, 2):
        assert torch.equal(decode(batch, num_splits=splits)[0], torch.zeros(4, 64))


def test_where_the_blocks_lie_changes_no_bit(generator):
    batch = paged_batch(generator, context_lens=[130, 17, 64], block_size=8, dtype=FP16)
    elsewhere = batch.shuffled(generator)
    for options in ({}, {"num_splits": 3}, {"window": 40}):
        assert torch.equal(decode(batch, **options), decode(elsewhere, **options))


@pytest.mark.parametrize("splits", [1, 3])
def test_contiguous_equals_paged_bit_for_bit(generator, splits):
    batch = paged_batch(generator, context_lens=[130, 17, 64], dtype=FP16)
    k, v = batch.contiguous()
    paged = decode(batch, num_splits=splits, max_context=130)
    assert torch.equal(contiguous_decode_attention(batch.q, k, v, batch.context, num_splits=splits), paged)


def test_heads_outside_blocks_is_only_another_stride(generator):
    """[num_blocks, num_kv_heads, block_size, head_dim] (FlashInfer's HND) through a permuted view."""
    batch = paged_batch(generator, context_lens=[45], dtype=FP32)
    k_cache, v_cache = (
        cache.permute(0, 2, 1, 3).contiguous().permute(0, 2, 1, 3) for cache in (batch.k_cache, batch.v_cache)
    )
    out = paged_decode_attention(batch.q, k_cache, v_cache, batch.block_table, batch.context)
    assert torch.equal(out, decode(batch))


def test_pools_past_two_to_the_31_elements(generator):
    """A block far out: the pool is a strided view whose untouched middle costs no memory."""
    batch = paged_batch(generator, context_lens=[20], dtype=FP16, kv_heads=1, query_heads=1)
    stride = 2**28
    storage = torch.empty(9 * stride, dtype=FP16)
    views = [storage.as_strided((9, 16, 1, 64), (stride, 64, 64, 1), offset) for offset in (0, 2048)]
    table = torch.tensor([[8, 7]], dtype=torch.int32)
    for view, cache in zip(views, (batch.k_cache, batch.v_cache), strict=True):
        view[[8, 7]] = cache[batch.block_table[0].long()]
    far = paged_decode_attention(batch.q, *views, table, batch.context)
    assert torch.equal(far, decode(batch))
