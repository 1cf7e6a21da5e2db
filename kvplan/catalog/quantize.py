"""A model as if its checkpoint were quantized otherwise: for ``--quantization`` and for names such as ``...-AWQ``."""

from __future__ import annotations

import re
from dataclasses import replace

from kvplan.catalog.architecture import ModelConfig, Quantization
from kvplan.errors import InputError

_KEPT = frozenset({"lm_head", "embedding", "router", "vision"})
_SCHEMES = {
    "fp8": Quantization("fp8", 8, 0, excluded=_KEPT),
    "int8": Quantization("int8", 8, 0, excluded=_KEPT),
    "w8a8": Quantization("int8", 8, 0, excluded=_KEPT),
    "gptq": Quantization("gptq", 4, 128, zero_points=True, excluded=_KEPT),
    "w4a16": Quantization("gptq", 4, 128, excluded=_KEPT),
    "awq": Quantization("awq", 4, 128, zero_points=True, excluded=_KEPT),
    "int4": Quantization("awq", 4, 128, zero_points=True, excluded=_KEPT),
    "nvfp4": Quantization("nvfp4", 4, 16, excluded=_KEPT),
    "mxfp4": Quantization("mxfp4", 4, 32, excluded=_KEPT | {"attention"}),
}
_IN_NAMES = (
    (
        re.compile(r"gptq-?int8", re.IGNORECASE),
        Quantization("gptq", 8, 128, zero_points=True, excluded=_KEPT),
    ),
    (re.compile(r"nvfp4|fp4", re.IGNORECASE), _SCHEMES["nvfp4"]),
    (re.compile(r"awq", re.IGNORECASE), _SCHEMES["awq"]),
    (re.compile(r"gptq|4bit|w4a16|int4", re.IGNORECASE), _SCHEMES["gptq"]),
    (re.compile(r"fp8", re.IGNORECASE), _SCHEMES["fp8"]),
    (re.compile(r"w8a8|int8|8bit", re.IGNORECASE), _SCHEMES["int8"]),
)


def with_quantization(model: ModelConfig, scheme: str) -> ModelConfig:
    """``model`` with its linear layers stored in ``scheme``; ``none`` for the plain type.

    Raises:
        InputError: an unknown scheme.
    """
    name = scheme.strip().lower()
    if name in ("none", "bf16", "fp16"):
        return replace(model, quantization=None)
    if name not in _SCHEMES:
        raise InputError(
            "unknown quantization",
            field="quantization",
            value=scheme,
            hint="one of none, " + ", ".join(_SCHEMES),
        )
    return replace(model, quantization=_SCHEMES[name])


def quantization_in_name(name: str) -> Quantization | None:
    """The scheme a checkpoint's name announces, or None."""
    return next((scheme for pattern, scheme in _IN_NAMES if pattern.search(name)), None)
