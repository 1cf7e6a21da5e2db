"""What the launchers refuse, each naming the field and the value, before anything runs."""

from __future__ import annotations

import pytest
import torch

from kvplan_kernels import (
    KernelInputError,
    copy_blocks,
    gather_blocks,
    mla_decode_attention,
    paged_decode_attention,
    plan_batch,
    write_kv,
)

Q = torch.zeros(2, 4, 64)
CACHE = torch.zeros(3, 16, 2, 64)
TABLE = torch.zeros(2, 1, dtype=torch.int32)
LENS = torch.ones(2, dtype=torch.int32)
SCALE = torch.ones(2)


def decode(q=Q, k_cache=CACHE, v_cache=CACHE, block_table=TABLE, context_lens=LENS, **options):
    return paged_decode_attention(q, k_cache, v_cache, block_table, context_lens, **options)


@pytest.mark.parametrize(
    ("field", "value", "change"),
    [
        ("q", (2, 64), {"q": Q[:, 0]}),
        ("q", "torch.float64", {"q": Q.double()}),
        ("q", 5, {"q": torch.zeros(2, 5, 64)}),
        ("q", 3, {"q": torch.zeros(3, 4, 64)}),
        ("q", 72, {"q": torch.zeros(2, 4, 72), "k_cache": torch.zeros(3, 16, 2, 72)}),
        ("q", 272, {"q": torch.zeros(2, 4, 272)}),
        ("q", (256, 1, 4), {"q": torch.zeros(2, 64, 4).transpose(1, 2)}),
        ("k_cache", (3, 16, 2, 80), {"k_cache": torch.zeros(3, 16, 2, 80)}),
        ("k_cache", 512, {"k_cache": torch.zeros(3, 512, 2, 64), "v_cache": torch.zeros(3, 512, 2, 64)}),
        ("k_cache", "meta", {"k_cache": CACHE.to("meta")}),
        ("v_cache", "torch.float16", {"v_cache": CACHE.half()}),
        ("v_cache", (2048, 64, 1024, 1), {"v_cache": torch.zeros(3, 2, 16, 64).transpose(1, 2)}),
        ("block_table", "torch.int64", {"block_table": TABLE.long()}),
        ("block_table", (1, 1), {"block_table": TABLE[:1]}),
        ("context_lens", "torch.int64", {"context_lens": LENS.long()}),
        ("out", (2, 4, 32), {"out": torch.zeros(2, 4, 32)}),
        ("query_tokens", 0, {"query_tokens": 0}),
        ("window", -1, {"window": -1}),
        ("softcap", -2.0, {"softcap": -2.0}),
        ("num_splits", 0, {"num_splits": 0}),
        ("max_context", 17, {"max_context": 17}),
        ("k_scale", None, {"k_cache": CACHE.to(torch.int8), "v_cache": CACHE.to(torch.int8)}),
        ("v_scale", (1,), {"k_cache": CACHE.to(torch.int8), "v_cache": CACHE.to(torch.int8), "k_scale": SCALE,
                           "v_scale": SCALE[:1]}),
        ("rows", "torch.int64", {"rows": torch.zeros(1, dtype=torch.int64)}),
        ("query_start", None, {"rows": torch.zeros(1, dtype=torch.int32)}),
    ],
)  # fmt: skip
def test_decode_refuses(field, value, change):
    with pytest.raises(KernelInputError) as refused:
        decode(**change)
    assert (refused.value.field, refused.value.value) == (field, value)
    assert str(refused.value).startswith(f"{field}: ")
    assert repr(value) in str(refused.value)


def test_scales_have_no_place_beside_a_float_cache():
    with pytest.raises(KernelInputError, match=r"^k_scale: has no meaning for a torch\.float32 cache"):
        decode(k_scale=SCALE)


def test_a_refusal_is_a_value_error():
    with pytest.raises(ValueError, match=r"^window: .*\(got -1\)"):
        decode(window=-1)


def plan(query_lens, context_lens):
    return plan_batch(
        query_lens, context_lens, num_query_heads=4, num_kv_heads=2, head_dim=64, query_dtype=torch.float16,
        cache_dtype=torch.float16, device="cpu",
    )  # fmt: skip


def test_a_plan_refuses_lengths_that_contradict_one_another():
    for lens, message in (
        (([1], [1, 2]), r"^context_lens: must have 1 entries \(got 2\)"),
        (([1, 0], [1, 2]), r"^query_lens\[1\]: must be at least 1 \(got 0\)"),
        (([5], [4]), r"^context_lens\[0\]: must include the 5 new tokens \(got 4\)"),
    ):
        with pytest.raises(KernelInputError, match=message):
            plan(*lens)


def test_mla_refuses_a_row_without_rope():
    q, cache = torch.zeros(2, 4, 64), torch.zeros(3, 16, 64)
    with pytest.raises(KernelInputError, match=r"^q: must have 16\.\.128 rope elements"):
        mla_decode_attention(q, cache, TABLE, LENS, latent=64, scale=1.0)
    with pytest.raises(KernelInputError, match=r"^latent: "):
        mla_decode_attention(q, cache, TABLE, LENS, latent=40, scale=1.0)


def test_write_refuses():
    key = torch.zeros(2, 2, 64)
    with pytest.raises(KernelInputError, match=r"^slots: must have shape \[2\] \(got \(3,\)\)"):
        write_kv(key, key, CACHE, CACHE, torch.zeros(3, dtype=torch.int64))
    with pytest.raises(KernelInputError, match=r"^value: must have shape \[2, 2, 64\]"):
        write_kv(key, key[:1], CACHE, CACHE, torch.zeros(2, dtype=torch.int64))


def test_moves_refuse():
    pool = torch.zeros(2, 3, 4, 1, 16)
    with pytest.raises(KernelInputError, match=r"^pairs: must have shape \[\*, 2\]"):
        copy_blocks(pool, torch.zeros(4, dtype=torch.int64))
    with pytest.raises(KernelInputError, match=r"^pool: must have blocks of a multiple of 16 bytes \(got 12\)"):
        copy_blocks(torch.zeros(2, 3, 3), torch.zeros((1, 2), dtype=torch.int64))
    with pytest.raises(KernelInputError, match=r"^pool: must have contiguous blocks"):
        copy_blocks(pool.transpose(2, 4), torch.zeros((1, 2), dtype=torch.int64))
    with pytest.raises(KernelInputError, match=r"^staging: must have shape \[2, 1, 4, 1, 16\]"):
        gather_blocks(pool, torch.zeros(1, dtype=torch.int64), pool)
