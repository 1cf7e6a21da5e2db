"""Latent attention in the interpreter, against the torch reference."""

from __future__ import annotations

import pytest
import torch

from kvplan_kernels import mla_decode_attention, reference
from kvplan_kernels.testing import TOLERANCE, error, paged_batch, poison

FP32, FP16, BF16 = torch.float32, torch.float16, torch.bfloat16


def latent_batch(generator, *, context_lens, query_tokens=1, heads=4, width=96, dtype=FP32, block_size=16):
    """(q, cache, batch): a paged batch of one KV head, its K cache taken for the latent cache."""
    batch = paged_batch(
        generator,
        context_lens=context_lens,
        query_lens=[query_tokens] * len(context_lens),
        query_heads=heads,
        kv_heads=1,
        head_dim=width,
        dtype=dtype,
        block_size=block_size,
    )
    return batch.q, batch.k_cache[:, :, 0], batch


def check(generator, *, latent, splits=1, query_tokens=1, dtype=FP32, **shape):
    q, cache, batch = latent_batch(generator, query_tokens=query_tokens, dtype=dtype, **shape)
    out = q.new_empty((*q.shape[:2], latent))
    poison(out)
    mla_decode_attention(
        q, cache, batch.block_table, batch.context, latent=latent, scale=0.1, query_tokens=query_tokens,
        num_splits=splits, out=out,
    )  # fmt: skip
    expected = reference.mla_attention(
        q, cache, batch.block_table, batch.context_lens, batch.query_lens, latent=latent, scale=0.1
    )
    assert error(out, expected) < TOLERANCE[dtype]


@pytest.mark.parametrize("dtype", [FP32, FP16, BF16], ids=["fp32", "fp16", "bf16"])
def test_deepseek_rows(generator, dtype):
    check(generator, latent=512, width=576, heads=20, context_lens=[1, 70], dtype=dtype)


@pytest.mark.parametrize("block_size", [1, 16, 64])
def test_edges_of_a_block(generator, block_size):
    edges = sorted({1, max(1, block_size - 1), block_size, block_size + 1})
    check(generator, latent=64, context_lens=edges, block_size=block_size)


def test_a_latent_that_is_no_power_of_two(generator):
    check(generator, latent=80, width=128, context_lens=[33], dtype=FP16)


@pytest.mark.parametrize("splits", [2, 5])
def test_split_tokens(generator, splits):
    check(generator, latent=64, context_lens=[3, 150], splits=splits)


def test_more_heads_than_a_tile(generator):
    check(generator, latent=64, context_lens=[20], heads=37)


def test_speculated_tokens(generator):
    check(generator, latent=64, context_lens=[2, 40], query_tokens=2)


def test_where_the_blocks_lie_changes_no_bit(generator):
    q, cache, batch = latent_batch(generator, context_lens=[70, 9], dtype=FP16)
    moved = batch.shuffled(generator)
    here, there = (
        mla_decode_attention(q, c, b.block_table, b.context, latent=64, scale=0.1)
        for c, b in ((cache, batch), (moved.k_cache[:, :, 0], moved))
    )
    assert torch.equal(here, there)
