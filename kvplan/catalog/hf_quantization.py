"""The ``quantization_config`` of a checkpoint, in kvplan's few words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from kvplan.catalog.architecture import Quantization
from kvplan.errors import InputError

_ALWAYS_KEPT = frozenset({"embedding", "router", "vision"})
_PART_WORDS = {
    "attention": ("self_attn", "attention", "attn"),
    "lm_head": ("lm_head",),
    "embedding": ("embed_tokens",),
    "router": ("router", "mlp.gate"),
    "shared_expert": ("shared_expert",),
    "state_space": ("linear_attn", "mixer.in_proj", "mamba"),
    "dense_mlp": ("mlp\\.(gate|up", "mlp.(gate|up"),
}


def read_quantization(config: Mapping[str, Any] | None) -> Quantization | None:
    """None for an unquantized model.

    Raises:
        InputError: a method kvplan does not know the bytes of.
    """
    if not config:
        return None
    method = str(config.get("quant_method") or config.get("quant_algo") or "").lower()
    excluded = _excluded(config)
    if method == "fp8" or method == "fbgemm_fp8":
        block = config.get("weight_block_size")
        return Quantization("fp8", 8, 0 if block is None else -1, tuple(block) if block else None, excluded=excluded)
    if method in ("gptq", "awq", "gptq_marlin", "awq_marlin", "auto-round", "auto_round"):
        bits = int(config.get("bits") or config.get("w_bit") or 4)
        symmetric = bool(config.get("sym", False))
        kind = "awq" if "awq" in method else "gptq"
        zeros = bool(config.get("zero_point", True)) if kind == "awq" else True
        group = int(config.get("group_size") or config.get("q_group_size") or 128)
        return Quantization(kind, bits, group, zero_points=zeros or not symmetric, excluded=excluded | {"lm_head"})
    if method == "mxfp4":
        return Quantization("mxfp4", 4, 32, excluded=excluded | {"lm_head", "attention"})
    if method == "compressed-tensors":
        return _compressed_tensors(config, excluded)
    if method in ("modelopt", "modelopt_fp4", "nvfp4", "fp8_pb_wo"):
        algorithm = str(config.get("quant_algo") or "NVFP4").upper()
        if "FP4" in algorithm or "W4A16" in algorithm:
            return Quantization("nvfp4", 4, 16, excluded=excluded | {"lm_head"})
        return Quantization("fp8", 8, -1, excluded=excluded | {"lm_head"})
    if method in ("int8", "w8a8_int8", "smoothquant"):
        return Quantization("int8", 8, 0, excluded=excluded | {"lm_head"})
    if method in ("bitsandbytes", "bnb"):
        bits = 8 if config.get("load_in_8bit") else 4
        return Quantization(
            "int8" if bits == 8 else "int4", bits, 64 if bits == 4 else 0, excluded=excluded | {"lm_head"}
        )
    raise InputError(
        "unknown quantization method",
        field="quantization_config.quant_method",
        value=method,
        hint="known: fp8, gptq, awq, mxfp4, compressed-tensors, modelopt, int8, bitsandbytes; or give --weights-gib",
    )


def announced_kv_dtype(config: Mapping[str, Any] | None) -> str:
    """The cache type a quantized checkpoint carries scales for: ``fp8``, ``nvfp4``, or ``auto`` where it names none."""
    if not config:
        return "auto"
    scheme = config.get("kv_cache_scheme")
    if isinstance(scheme, Mapping) and scheme.get("type") == "float":
        return {8: "fp8", 4: "nvfp4"}.get(int(scheme.get("num_bits") or 0), "auto")
    algorithm = str(config.get("kv_cache_quant_algo") or "").upper()
    return {"FP8": "fp8", "NVFP4": "nvfp4"}.get(algorithm, "auto")


def _excluded(config: Mapping[str, Any]) -> frozenset[str]:
    names: Sequence[str] = config.get("modules_to_not_convert") or config.get("ignore") or ()
    if isinstance(names, str):
        names = (names,)
    found = {
        part
        for part, words in _PART_WORDS.items()
        for name in names
        if any(word in str(name).lower() for word in words)
    }
    return frozenset(found) | _ALWAYS_KEPT


def _compressed_tensors(config: Mapping[str, Any], excluded: frozenset[str]) -> Quantization:
    groups = config.get("config_groups") or {}
    weights = next((group["weights"] for group in groups.values() if group.get("weights")), None)
    if weights is None:
        raise InputError("compressed-tensors without a weight scheme", field="quantization_config.config_groups")
    bits, strategy = int(weights["num_bits"]), weights.get("strategy", "channel")
    group = int(weights.get("group_size") or 0)
    if weights.get("type") == "float" and bits == 8:
        block = weights.get("block_structure")
        return Quantization("fp8", 8, -1 if strategy in ("tensor", "block") else 0, _block(block), excluded=excluded)
    if weights.get("type") == "float":
        return Quantization("nvfp4" if group == 16 else "mxfp4", bits, group or 16, excluded=excluded)
    if bits == 8 and strategy in ("channel", "tensor"):
        return Quantization("int8", 8, 0 if strategy == "channel" else -1, excluded=excluded)
    return Quantization("gptq", bits, group or 128, zero_points=not weights.get("symmetric", True), excluded=excluded)


def _block(structure: Any) -> tuple[int, int] | None:
    if not structure:
        return None
    if isinstance(structure, str):
        rows, columns = structure.lower().split("x")
        return int(rows), int(columns)
    return int(structure[0]), int(structure[1])
