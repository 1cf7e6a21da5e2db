"""Bytes that one token's K and V take in one head, with the scales its format carries."""

from __future__ import annotations

from dataclasses import dataclass

from kvplan.catalog import ModelConfig
from kvplan.catalog.dtypes import dtype_bytes
from kvplan.errors import InputError

_SCALE_BYTES = 4  # vLLM keeps one float32 a head and side beside per-token-head quantized caches


@dataclass(frozen=True)
class KvFormat:
    """A cache format: ``element_bytes`` for each value, ``per_head_bytes`` more for each head's K and again
    its V, and one scale of ``block_scale_bytes`` for every ``block`` values."""

    name: str
    element_bytes: float
    per_head_bytes: int = 0
    block: int = 0
    block_scale_bytes: int = 0
    mla_bytes: int = 0
    """Bytes of one MLA token where the format packs it in a layout of its own; 0 elsewhere."""

    def side_bytes(self, head_dim: int) -> int:
        """Bytes of one head's K (or V) of one token.

        Raises:
            InputError: the format cannot hold a head of this size.
        """
        exact = head_dim * self.element_bytes
        if exact != int(exact) or (self.block and head_dim % self.block):
            raise InputError(
                f"a head of {head_dim} values has no whole number of bytes in it",
                field="kv_cache_dtype",
                value=self.name,
            )
        scales = head_dim // self.block * self.block_scale_bytes if self.block else 0
        return int(exact) + scales + self.per_head_bytes


_FORMATS = {
    "fp8_per_token_head": KvFormat("fp8_per_token_head", 1, _SCALE_BYTES),
    "int8_per_token_head": KvFormat("int8_per_token_head", 1, _SCALE_BYTES),
    "int4_per_token_head": KvFormat("int4_per_token_head", 0.5, _SCALE_BYTES),
    "nvfp4": KvFormat("nvfp4", 0.5, block=16, block_scale_bytes=1),
    "q8_0": KvFormat("q8_0", 1, block=32, block_scale_bytes=2),
    "q4_0": KvFormat("q4_0", 0.5, block=32, block_scale_bytes=2),
    "fp8_ds_mla": KvFormat("fp8_ds_mla", 1, mla_bytes=656),
    "nvfp4_ds_mla": KvFormat("nvfp4_ds_mla", 0.5, mla_bytes=352),
}
_ALIASES = {"int8": "int8_per_token_head", "int4": "int4_per_token_head", "fp4": "nvfp4"}


def kv_format(kv_cache_dtype: str, model_dtype: str, engine: str = "vllm") -> KvFormat:
    """The format that ``kv_cache_dtype`` means for a model of ``model_dtype``.

    ``auto`` is the model's own type. Per-tensor ``fp8`` scales are two numbers a layer and live with the
    weights. ``int8`` and ``int4`` mean vLLM's per-token-head formats; TensorRT-LLM's int8 has static scales
    (1 byte a value) and LMDeploy's int8 and int4 keep a scale and a zero in fp16 a head.

    Raises:
        InputError: no engine has such a cache.
    """
    name = str(kv_cache_dtype).strip().lower()
    if name == "auto":
        return KvFormat(f"auto ({model_dtype})", dtype_bytes(model_dtype))
    if engine == "trtllm" and name == "int8":
        return KvFormat("int8", 1)
    if engine == "lmdeploy" and name in ("int8", "int4"):
        return KvFormat(name, 1 if name == "int8" else 0.5, _SCALE_BYTES)
    name = _ALIASES.get(name, name)
    if name in _FORMATS:
        return _FORMATS[name]
    try:
        return KvFormat(name, dtype_bytes(name))
    except InputError:
        known = ["auto", "float16", "bfloat16", "float32", "fp8", "int8", "int4", *_FORMATS]
        raise InputError(
            "unknown KV cache type",
            field="kv_cache_dtype",
            value=kv_cache_dtype,
            hint="one of " + ", ".join(known),
        ) from None


def model_kv_format(model: ModelConfig, kv_cache_dtype: str = "auto", engine: str = "vllm") -> KvFormat:
    """The same for a model, whose checkpoint may itself ask for a type where the flag says ``auto``."""
    asked = model.kv_cache_dtype if str(kv_cache_dtype).strip().lower() == "auto" else kv_cache_dtype
    return kv_format(asked, model.dtype, engine)


def token_bytes(attention: str, kv_heads: int, head_dim: int, value_head_dim: int, form: KvFormat) -> int:
    """Bytes one token takes in one layer of one rank (``kv_heads`` are that rank's)."""
    if attention == "mla":
        return form.mla_bytes or form.side_bytes(head_dim)
    if form.mla_bytes:
        raise InputError("is a format for MLA models only", field="kv_cache_dtype", value=form.name)
    return kv_heads * (form.side_bytes(head_dim) + form.side_bytes(value_head_dim))
