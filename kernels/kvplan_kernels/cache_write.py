"""Write new K and V into their slots of the paged pool, quantizing on the way.

Maths, for token i with slot s = slots[i] >= 0, KV head g::

    k_cache[s // block_size, s % block_size, g] = store(key[i, g] / k_scale[g])      and v likewise

``store`` is a cast for float caches; for e4m3 it saturates at ±448, for int8 at ±127, and both round to
nearest even. e4m3 is encoded in integer arithmetic, bit for bit what torch's cast gives, since sm_80 and
gfx942 have no instruction for it. A slot of -1 (padding) is skipped. Two tokens with one slot race: the
caller never gives that.

======= ================================================ ============== ===============================
tensor  shape                                            dtype          layout
======= ================================================ ============== ===============================
key     [tokens, num_kv_heads, head_dim]                 fp16 bf16 fp32 last stride 1 (a slice of qkv)
value   as key                                           as key         own strides
k_cache [num_blocks, block_size, num_kv_heads, head_dim] + e4m3, int8   any strides, last one 1
v_cache as k_cache                                       as k_cache     k_cache's strides
slots   [tokens]                                         int32 int64    block · block_size + offset, -1
k_scale [num_kv_heads]                                   fp32           quantized caches only
======= ================================================ ============== ===============================
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from kvplan_kernels.checks import (
    FLOATS,
    QUANTIZED,
    as_stored,
    check_head_dim,
    check_scales,
    check_tensor,
    require,
)
from kvplan_kernels.configs import next_power_of_2
from kvplan_kernels.launch import Launch


@triton.jit
def encode_e4m3(x):
    """fp32 → the byte of its nearest e4m3 value: ties to even, saturating, NaN kept."""
    bits = tl.minimum(tl.maximum(x, -448.0), 448.0).to(tl.uint32, bitcast=True)
    sign = (bits >> 24) & 0x80
    size = bits & 0x7FFFFFFF
    # Normal: round the mantissa to 3 bits and move the exponent's bias from 127 to 7.
    normal = ((size + 0x7FFFF + ((size >> 20) & 1)) >> 20) - 960
    # Below 2^-6: adding 2^14 leaves multiples of 2^-9, e4m3's subnormal step, in the low mantissa bits.
    subnormal = (size.to(tl.float32, bitcast=True) + 16384.0).to(tl.uint32, bitcast=True) - 0x46800000
    code = tl.where(size >= 0x3C800000, normal, subnormal) | sign
    return tl.where(x != x, 0x7F, code).to(tl.uint8)


@triton.jit
def encode_int8(x):
    """fp32 → the byte of its nearest integer in ±127. Adding 1.5 · 2^23 rounds to nearest even."""
    clamped = tl.minimum(tl.maximum(x, -127.0), 127.0)
    return ((clamped + 12582912.0) - 12582912.0).to(tl.int32).to(tl.uint8)


@triton.jit
def encode(x, scale_ptr, heads, mask, KV_FORMAT: tl.constexpr):
    """[heads, head_dim] as the cache stores it."""
    if KV_FORMAT == "float":
        y = x.to(tl.float32)
    else:
        scale = tl.load(scale_ptr + heads, mask=mask, other=1.0)
        scaled = tl.div_rn(x.to(tl.float32), tl.broadcast_to(scale[:, None], x.shape))
        if KV_FORMAT == "int8":
            y = encode_int8(scaled)
        else:
            y = encode_e4m3(scaled)
    return y


@triton.jit
def write_kernel(
    key_ptr,
    value_ptr,
    k_cache_ptr,
    v_cache_ptr,
    slot_ptr,
    k_scale_ptr,
    v_scale_ptr,
    key_stride_token,
    key_stride_head,
    value_stride_token,
    value_stride_head,
    stride_block,
    stride_token,
    stride_head,
    BLOCK_SIZE: tl.constexpr,
    HEADS: tl.constexpr,
    BLOCK_H: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
    KV_FORMAT: tl.constexpr,
):
    """Grid (tokens, chunks of the KV heads)."""
    token = tl.program_id(0).to(tl.int64)
    slot = tl.load(slot_ptr + token).to(tl.int64)
    if slot >= 0:
        heads = tl.program_id(1) * BLOCK_H + tl.arange(0, BLOCK_H)
        offs_d = tl.arange(0, BLOCK_D)
        mask = (heads < HEADS)[:, None] & (offs_d < HEAD_DIM)[None, :]
        rows = slot // BLOCK_SIZE * stride_block + slot % BLOCK_SIZE * stride_token + heads.to(tl.int64) * stride_head
        target = rows[:, None] + offs_d[None, :]
        key = tl.load(
            key_ptr + token * key_stride_token + (heads * key_stride_head)[:, None] + offs_d[None, :],
            mask=mask, other=0.0,
        )  # fmt: skip
        value = tl.load(
            value_ptr + token * value_stride_token + (heads * value_stride_head)[:, None] + offs_d[None, :],
            mask=mask, other=0.0,
        )  # fmt: skip
        k = encode(key, k_scale_ptr, heads, heads < HEADS, KV_FORMAT)
        v = encode(value, v_scale_ptr, heads, heads < HEADS, KV_FORMAT)
        tl.store(k_cache_ptr + target, k.to(k_cache_ptr.dtype.element_ty), mask=mask)
        tl.store(v_cache_ptr + target, v.to(v_cache_ptr.dtype.element_ty), mask=mask)


def write_launch(
    key: torch.Tensor,
    value: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    slots: torch.Tensor,
    *,
    k_scale: torch.Tensor | None = None,
    v_scale: torch.Tensor | None = None,
) -> Launch:
    """The launch of one write, validated; arguments as :func:`write_kv`."""
    device = key.device
    check_tensor("key", key, shape=[None, None, None], dtypes=FLOATS, device=device)
    tokens, heads, head_dim = key.shape
    check_head_dim("key", head_dim)
    check_tensor("value", value, shape=[tokens, heads, head_dim], dtypes=[key.dtype], device=device)
    check_tensor("k_cache", k_cache, shape=[None, None, heads, head_dim], dtypes=FLOATS + QUANTIZED, device=device)
    check_tensor("v_cache", v_cache, shape=tuple(k_cache.shape), dtypes=[k_cache.dtype], device=device)
    strides = k_cache.stride()
    require(v_cache.stride() == strides, "v_cache", f"must have k_cache's strides {strides}", v_cache.stride())
    check_tensor("slots", slots, shape=[tokens], dtypes=[torch.int32, torch.int64], device=device)
    check_scales(k_scale, v_scale, k_cache, heads)
    width = next_power_of_2(head_dim)
    block_h = min(next_power_of_2(heads), max(1, 4096 // width))
    formats = {torch.int8: "int8", torch.float8_e4m3fn: "e4m3"}
    return Launch(
        write_kernel,
        grid=(tokens, -(-heads // block_h)),
        args={
            "key_ptr": key,
            "value_ptr": value,
            "k_cache_ptr": as_stored(k_cache),
            "v_cache_ptr": as_stored(v_cache),
            "slot_ptr": slots,
            "k_scale_ptr": k_scale,
            "v_scale_ptr": v_scale,
            "key_stride_token": key.stride(0),
            "key_stride_head": key.stride(1),
            "value_stride_token": value.stride(0),
            "value_stride_head": value.stride(1),
            "stride_block": strides[0],
            "stride_token": strides[1],
            "stride_head": strides[2],
        },
        constants={
            "BLOCK_SIZE": k_cache.shape[1],
            "HEADS": heads,
            "BLOCK_H": block_h,
            "HEAD_DIM": head_dim,
            "BLOCK_D": width,
            "KV_FORMAT": formats.get(k_cache.dtype, "float"),
        },
        num_warps=max(1, min(4, block_h * width // 512)),  # 8 elements a thread, also with AMD's 64 lanes a warp
        num_stages=1,
    )


def write_kv(
    key: torch.Tensor,
    value: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    slots: torch.Tensor,
    *,
    k_scale: torch.Tensor | None = None,
    v_scale: torch.Tensor | None = None,
) -> None:
    """Write new K and V into the pool, in place.

    Args:
        key, value: [tokens, num_kv_heads, head_dim].
        k_cache, v_cache: [num_blocks, block_size, num_kv_heads, head_dim], one pair of strides.
        slots: [tokens], block · block_size + offset, -1 to skip. Not checked against the pool: they are on
            the device.
        k_scale, v_scale: fp32 [num_kv_heads], needed for an fp8 or int8 cache.

    Raises:
        KernelInputError: an argument does not fit; nothing was written.
    """
    write_launch(key, value, k_cache, v_cache, slots, k_scale=k_scale, v_scale=v_scale).run()
