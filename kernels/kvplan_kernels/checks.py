"""What the launchers refuse, and how a cache's dtype decides the arithmetic. Nothing here touches a device's
data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import triton.language as tl

from kvplan_kernels.errors import KernelInputError
from kvplan_kernels.target import Target

FLOATS = (torch.float16, torch.bfloat16, torch.float32)
QUANTIZED = (torch.float8_e4m3fn, torch.int8)
MAX_BLOCK_SIZE = 256
MAX_HEAD_DIM = 256

_TRITON_FLOAT = {torch.float16: tl.float16, torch.bfloat16: tl.bfloat16, torch.float32: tl.float32}


def require(condition: bool, field: str, message: str, value: Any) -> None:
    """Raise KernelInputError about ``field`` unless ``condition`` holds."""
    if not condition:
        raise KernelInputError(field, message, value)


def check_tensor(
    field: str,
    tensor: torch.Tensor,
    *,
    shape: Sequence[int | None],
    dtypes: Sequence[torch.dtype],
    device: torch.device,
) -> None:
    """``tensor`` has this shape (None: any length), one of the dtypes, lies on the device, last axis
    contiguous."""
    fits = tensor.dim() == len(shape) and all(
        want is None or have == want for have, want in zip(tensor.shape, shape, strict=True)
    )
    wanted = "[" + ", ".join("*" if n is None else str(n) for n in shape) + "]"
    require(fits, field, f"must have shape {wanted}", tuple(tensor.shape))
    require(tensor.dtype in dtypes, field, f"must be one of {[str(d) for d in dtypes]}", str(tensor.dtype))
    require(tensor.device == device, field, f"must lie on {device}", str(tensor.device))
    if tensor.dim() and tensor.shape[-1] > 1:
        require(tensor.stride(-1) == 1, field, "must be contiguous along its last axis", tensor.stride())


def check_head_dim(field: str, head_dim: int, limit: int = MAX_HEAD_DIM) -> None:
    """A multiple of 16, so that every row is made of whole 16-byte loads at any cache dtype."""
    require(
        16 <= head_dim <= limit and head_dim % 16 == 0,
        field,
        f"must be a multiple of 16 up to {limit}",
        head_dim,
    )


def check_scales(k_scale: Any, v_scale: Any, cache: torch.Tensor, kv_heads: int) -> None:
    """Scales stand beside a quantized cache, one fp32 a KV head, and only there."""
    for field, scale in (("k_scale", k_scale), ("v_scale", v_scale)):
        if cache.dtype in QUANTIZED:
            require(scale is not None, field, f"is needed for a {cache.dtype} cache", None)
            check_tensor(field, scale, shape=[kv_heads], dtypes=[torch.float32], device=cache.device)
        else:
            require(scale is None, field, f"has no meaning for a {cache.dtype} cache", scale)


def check_attention(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    block_table: torch.Tensor | None,
    context_lens: torch.Tensor,
    out: torch.Tensor,
) -> tuple[int, int, int]:
    """The tensors every attention takes; (query heads, KV heads, head_dim). Without a table K and V are
    contiguous."""
    device = q.device
    check_tensor("q", q, shape=[None, None, None], dtypes=FLOATS, device=device)
    query_heads, head_dim = q.shape[1:]
    check_head_dim("q", head_dim)
    check_tensor("k_cache", k_cache, shape=[None, None, None, head_dim], dtypes=FLOATS + QUANTIZED, device=device)
    kv_heads = k_cache.shape[2]
    check_tensor("v_cache", v_cache, shape=tuple(k_cache.shape), dtypes=[k_cache.dtype], device=device)
    strides = k_cache.stride()
    require(v_cache.stride() == strides, "v_cache", f"must have k_cache's strides {strides}", v_cache.stride())
    divides = kv_heads > 0 and query_heads % kv_heads == 0
    require(divides, "q", f"query heads must be a multiple of the {kv_heads} KV heads", query_heads)
    check_tensor("context_lens", context_lens, shape=[None], dtypes=[torch.int32], device=device)
    num_seqs = context_lens.shape[0]
    if block_table is None:
        require(k_cache.shape[0] >= num_seqs, "k_cache", f"must hold {num_seqs} sequences", tuple(k_cache.shape))
    else:
        size = k_cache.shape[1]
        require(1 <= size <= MAX_BLOCK_SIZE, "k_cache", f"block_size must lie in 1..{MAX_BLOCK_SIZE}", size)
        check_tensor("block_table", block_table, shape=[num_seqs, None], dtypes=[torch.int32], device=device)
    check_tensor("out", out, shape=tuple(q.shape), dtypes=[q.dtype], device=device)
    return query_heads, kv_heads, head_dim


@dataclass(frozen=True)
class Arithmetic:
    """How q, K and V meet: the kernel's constants that follow from the dtypes and the device.

    Args:
        compute: dtype of both matrix products' operands (accumulation is always fp32).
        kv_format: how a stored element is widened, see :func:`kvplan_kernels.tile.widen`.
        precision: ``tl.dot``'s ``input_precision``; matters in fp32 only.
    """

    compute: torch.dtype
    kv_format: str
    precision: str

    @property
    def constants(self) -> dict[str, Any]:
        return {
            "COMPUTE": _TRITON_FLOAT[self.compute],
            "KV_FORMAT": self.kv_format,
            "PRECISION": self.precision,
        }


def arithmetic(query: torch.dtype, cache: torch.dtype, head_dim: int, target: Target) -> Arithmetic:
    """The arithmetic for a query dtype and a cache dtype.

    A quantized cache is widened to fp16, which holds every e4m3 and int8 value exactly, also under bf16
    queries (they are clamped to fp16's range, which an attention query does not reach). Triton's interpreter
    computes bf16 wrongly, so there bf16 is widened to fp32. fp32 products are three tf32 instructions on
    NVIDIA (error about 1e-6, like fp32, at matrix-unit speed) up to head_dim 128; beyond, their operands do
    not fit the registers, and plain fp32 arithmetic does.
    """
    if cache in QUANTIZED:
        compute = torch.float32 if query == torch.float32 else torch.float16
    else:
        compute = torch.promote_types(query, cache)
    if target.is_interpreter and compute == torch.bfloat16:
        compute = torch.float32
    if cache == torch.int8:
        kv_format = "int8"
    elif cache == torch.float8_e4m3fn:
        kv_format = "e4m3" if target.converts_e4m3 else "e4m3_bits"
    else:
        kv_format = "float"
    splits = target.backend == "cuda" and head_dim <= 128
    return Arithmetic(compute, kv_format, "tf32x3" if splits else "ieee")


def as_stored(cache: torch.Tensor) -> torch.Tensor:
    """The cache as the kernels take it: quantized ones as their bytes."""
    return cache.view(torch.uint8) if cache.dtype in QUANTIZED else cache
