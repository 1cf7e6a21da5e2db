"""Writing into slots and moving blocks: bit for bit what the references do."""

from __future__ import annotations

import pytest
import torch

from kvplan_kernels import copy_blocks, gather_blocks, reference, scatter_blocks, write_kv
from kvplan_kernels.cache_write import write_launch
from kvplan_kernels.testing import poison

FP32, FP16, BF16 = torch.float32, torch.float16, torch.bfloat16
FP8, INT8 = torch.float8_e4m3fn, torch.int8


def as_bytes(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().view(torch.uint8)


@pytest.mark.parametrize("cache_dtype", [FP32, FP16, FP8, INT8], ids=["fp32", "fp16", "fp8", "int8"])
@pytest.mark.parametrize("dtype", [FP32, FP16, BF16], ids=["fp32", "fp16", "bf16"])
@pytest.mark.parametrize("shape", [(1, 3, 80), (16, 2, 64), (256, 1, 16)], ids=lambda s: f"B{s[0]}h{s[1]}d{s[2]}")
def test_write_into_slots(generator, shape, dtype, cache_dtype):
    """Slots in no order, some skipped; what is not written keeps its bits."""
    block_size, heads, head_dim = shape
    slots = torch.randperm(4 * block_size, generator=generator)[:4]
    slots = torch.cat([slots[:2], torch.tensor([-1]), slots[2:], torch.tensor([-1])])
    sizes = torch.logspace(-4, 3, head_dim)  # below e4m3's subnormals to past its largest value
    key, value = ((torch.randn((len(slots), heads, head_dim), generator=generator) * sizes).to(dtype) for _ in range(2))
    k_cache = torch.empty((4, block_size, heads, head_dim), dtype=cache_dtype)
    poison(k_cache)
    v_cache, k_expected, v_expected = k_cache.clone(), k_cache.clone(), k_cache.clone()
    quantized = cache_dtype in (FP8, INT8)
    scales = {
        name: torch.rand(heads, generator=generator) + 0.5 if quantized else None for name in ("k_scale", "v_scale")
    }
    write_kv(key, value, k_cache, v_cache, slots, **scales)
    reference.write_kv(key, value, k_expected, v_expected, slots, **scales)
    assert torch.equal(as_bytes(k_cache), as_bytes(k_expected))
    assert torch.equal(as_bytes(v_cache), as_bytes(v_expected))


def test_write_bf16(generator):
    """Within one rounding: the interpreter cuts where a GPU rounds."""
    key = torch.randn((3, 2, 64), generator=generator).to(BF16)
    k_cache, v_cache = torch.zeros((2, 4, 2, 64), dtype=BF16), torch.zeros((2, 4, 2, 64), dtype=BF16)
    write_kv(key, key.float().to(BF16), k_cache, v_cache, torch.tensor([5, 0, 2], dtype=torch.int32))
    assert torch.equal(k_cache.view(-1, 2, 64)[[5, 0, 2]], key)


def test_every_e4m3_value_and_the_ties_between_survive():
    """Each finite code, and each midpoint of two neighbours, encodes as torch encodes it."""
    codes = torch.arange(0x7F, dtype=torch.uint8).view(FP8).float()
    ladder = torch.cat([codes, (codes[:-1] + codes[1:]) / 2])
    row = torch.cat([ladder, -ladder, torch.tensor([float("nan"), 1e9, -1e9])])
    key = torch.nn.functional.pad(row, (0, -len(row) % 16)).view(-1, 1, 16)
    k_cache = torch.zeros((len(key), 1, 1, 16), dtype=FP8)
    v_cache = torch.zeros_like(k_cache)
    one = torch.ones(1)
    write_kv(key, key, k_cache, v_cache, torch.arange(len(key)), k_scale=one, v_scale=one)
    expected = key.clamp(-448, 448).to(FP8).view(torch.uint8).view(-1)
    assert torch.equal(k_cache.view(torch.uint8).view(-1) & 0x7F, expected & 0x7F)
    finite = ~key.isnan().view(-1)
    assert torch.equal(k_cache.view(torch.uint8).view(-1)[finite], expected[finite])


def test_write_takes_slices_of_a_fused_projection(generator):
    qkv = torch.randn((5, 8, 64), generator=generator)
    key, value = qkv[:, 4:6], qkv[:, 6:8]
    k_cache, v_cache = torch.zeros((2, 4, 2, 64)), torch.zeros((2, 4, 2, 64))
    write_kv(key, value, k_cache, v_cache, torch.arange(5))
    assert torch.equal(k_cache.view(8, 2, 64)[:5], key)
    assert torch.equal(v_cache.view(8, 2, 64)[:5], value)


def test_many_heads_take_several_programs():
    key = torch.zeros((2, 128, 128), dtype=FP16)
    launch = write_launch(key, key, key.new_zeros((1, 2, 128, 128)), key.new_zeros((1, 2, 128, 128)), torch.arange(2))
    assert launch.grid == (2, 4)


@pytest.mark.parametrize("dtype", [FP32, BF16, FP8], ids=["fp32", "bf16", "fp8"])
@pytest.mark.parametrize("block", [(1, 1, 16), (16, 3, 80), (64, 8, 128)], ids=str)
def test_copy_on_write(generator, block, dtype):
    """One source to two destinations, in every plane; the rest keeps its bits."""
    pool = torch.randn((6, 7, *block), generator=generator).to(dtype)
    expected = as_bytes(pool).clone()
    pairs = [(0, 3), (0, 4), (6, 5)]
    reference.copy_blocks(expected, pairs)
    copy_blocks(pool, torch.tensor(pairs, dtype=torch.int32))
    assert torch.equal(as_bytes(pool), expected)


def test_copy_in_a_pool_whose_blocks_are_not_neighbours(generator):
    """Planes of a [layers, num_blocks, 2, ...] pool: a block's K and V lie together, so each plane is
    strided."""
    pool = torch.randn((2, 5, 2, 4, 2, 16), generator=generator)
    planes = pool.permute(0, 2, 1, 3, 4, 5)[:, 0]
    expected = pool.clone()
    expected[:, 4, 0] = expected[:, 1, 0]
    copy_blocks(planes, torch.tensor([[1, 4]]))
    assert torch.equal(pool, expected)


def test_swap_out_and_in_elsewhere(generator):
    pool = torch.randn((4, 9, 16, 2, 64), generator=generator).to(FP16)
    blocks, places = torch.tensor([7, 0, 3]), torch.tensor([1, 8, 7])
    kept = pool[:, blocks].clone()
    staging = torch.empty((4, 3, 16, 2, 64), dtype=FP16)
    poison(staging)
    gather_blocks(pool, blocks, staging)
    poison(pool)
    scatter_blocks(staging, places, pool)
    assert torch.equal(pool[:, places], kept)
    assert bool(pool[:, [0, 2, 3, 4, 5, 6]].isnan().all())


def test_nothing_to_move_is_nothing_done(generator):
    pool = torch.randn((2, 3, 4, 1, 16), generator=generator)
    before = pool.clone()
    copy_blocks(pool, torch.empty((0, 2), dtype=torch.int64))
    gather_blocks(pool, torch.empty(0, dtype=torch.int64), pool[:, :0].clone())
    assert torch.equal(pool, before)
