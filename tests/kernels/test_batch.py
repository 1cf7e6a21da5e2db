"""Prefill over cached prefixes, and decode and prefill mixed in one step."""

from __future__ import annotations

import pytest
import torch

from kvplan_kernels import paged_attention, paged_prefill_attention, plan_batch
from kvplan_kernels.batch import attention_launches
from kvplan_kernels.configs import Tile
from kvplan_kernels.testing import TOLERANCE, PagedBatch, error, paged_batch, poison

FP32, FP16, FP8 = torch.float32, torch.float16, torch.float8_e4m3fn


def plan(batch: PagedBatch, **options):
    return plan_batch(
        batch.query_lens,
        batch.context_lens,
        num_query_heads=batch.q.shape[1],
        num_kv_heads=batch.k_cache.shape[2],
        head_dim=batch.q.shape[2],
        query_dtype=batch.q.dtype,
        cache_dtype=batch.k_cache.dtype,
        device="cpu",
        **options,
    )


def attend(batch: PagedBatch, tile: Tile | None = None, **options) -> torch.Tensor:
    out = torch.empty_like(batch.q)
    poison(out)
    return paged_attention(
        batch.q, batch.k_cache, batch.v_cache, batch.block_table, plan(batch, tile=tile), out=out,
        **batch.scales, **options,
    )  # fmt: skip


@pytest.mark.parametrize("dtype", [FP32, FP16], ids=["fp32", "fp16"])
@pytest.mark.parametrize("block_size", [1, 16, 128])
def test_chunks_over_prefixes(generator, block_size, dtype):
    """A whole prompt, a chunk on a block's edge, one inside a block, one of two tokens."""
    batch = paged_batch(
        generator,
        query_lens=[90, 32, 33, 2],
        context_lens=[90, 160, 100, 17],
        block_size=block_size,
        dtype=dtype,
    )
    assert error(attend(batch), batch.expected()) < TOLERANCE[dtype]


@pytest.mark.parametrize("heads", [(6, 2), (7, 1), (71, 1)], ids=lambda heads: f"{heads[0]}q{heads[1]}kv")
def test_groups_that_do_not_divide_the_tile(generator, heads):
    batch = paged_batch(
        generator, query_lens=[21], context_lens=[50], query_heads=heads[0], kv_heads=heads[1], dtype=FP16
    )
    assert error(attend(batch), batch.expected()) < TOLERANCE[FP16]


@pytest.mark.parametrize("head_dim", [80, 96, 256])
def test_head_dims(generator, head_dim):
    batch = paged_batch(generator, query_lens=[40], context_lens=[70], head_dim=head_dim, dtype=FP16)
    assert error(attend(batch), batch.expected()) < TOLERANCE[FP16]


def test_decode_and_prefill_in_one_step(generator):
    batch = paged_batch(
        generator, query_lens=[1, 40, 1, 1, 7], context_lens=[1, 40, 200, 33, 64], query_heads=8, dtype=FP32
    )
    for options in ({}, {"num_splits": 3}):
        assert error(attend(batch, **options), batch.expected()) < TOLERANCE[FP32]


@pytest.mark.parametrize("window", [1, 20, 64])
def test_sliding_window(generator, window):
    batch = paged_batch(generator, query_lens=[50, 1], context_lens=[130, 90], dtype=FP32)
    assert error(attend(batch, window=window), batch.expected(window=window)) < TOLERANCE[FP32]


def test_soft_cap(generator):
    batch = paged_batch(generator, query_lens=[30, 1], context_lens=[60, 9], dtype=FP32)
    assert error(attend(batch, softcap=1.5), batch.expected(softcap=1.5)) < TOLERANCE[FP32]


@pytest.mark.parametrize("cache_dtype", [FP8, torch.int8], ids=["fp8", "int8"])
def test_quantized(generator, cache_dtype):
    batch = paged_batch(generator, query_lens=[30, 1], context_lens=[60, 9], dtype=FP16, cache_dtype=cache_dtype)
    assert error(attend(batch), batch.expected()) < TOLERANCE[FP16]


def test_chunks_give_what_the_whole_prompt_gives(generator):
    """Chunked prefill: the same tokens in two steps, over a tile small enough to be crossed."""
    tile = Tile(block_m=16, block_n=16, pack=2, num_warps=4, depth=1)
    whole = paged_batch(generator, query_lens=[45], context_lens=[45], dtype=FP32)
    first = PagedBatch(**{**vars(whole), "q": whole.q[:19], "query_lens": (19,), "context_lens": (19,)})
    rest = PagedBatch(**{**vars(whole), "q": whole.q[19:], "query_lens": (26,)})
    chunked = torch.cat([attend(first, tile=tile), attend(rest, tile=tile)])
    assert error(chunked, attend(whole, tile=tile)) < TOLERANCE[FP32]


def test_where_the_blocks_lie_changes_no_bit(generator):
    batch = paged_batch(generator, query_lens=[40, 1, 3], context_lens=[90, 70, 64], block_size=8, dtype=FP16)
    assert torch.equal(attend(batch), attend(batch.shuffled(generator)))


def test_the_convenience_form_plans_for_itself(generator):
    batch = paged_batch(generator, query_lens=[12], context_lens=[30], dtype=FP32)
    out = paged_prefill_attention(
        batch.q, batch.k_cache, batch.v_cache, batch.block_table, batch.query_lens, batch.context_lens
    )
    assert torch.equal(out, attend(batch))


def test_the_plan_of_the_docstring(generator):
    batch = paged_batch(generator, query_lens=[1, 5, 1], context_lens=[40, 5, 7])
    planned = plan(batch, tile=Tile(block_m=16, block_n=16, pack=4, num_warps=4, depth=1))
    assert planned.query_start.tolist() == [0, 1, 6, 7]
    assert planned.decode_rows.tolist() == [0, 2]
    assert list(zip(planned.tile_seq.tolist(), planned.tile_token.tolist(), strict=True)) == [(1, 4), (1, 0)]
    assert planned.max_decode_context == 40


def test_an_empty_part_launches_nothing(generator):
    for query_lens, names in (([1], ["decode_kernel"]), ([2], ["prefill_kernel"])):
        batch = paged_batch(generator, query_lens=query_lens, context_lens=[9])
        launches = attention_launches(
            batch.q, batch.k_cache, batch.v_cache, batch.block_table, plan(batch), batch.q, num_splits=1
        )
        assert [launch.kernel.__name__ for launch in launches] == names
