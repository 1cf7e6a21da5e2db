"""Bytes of the element types that configs, flags and logs name."""

from __future__ import annotations

from kvplan.errors import InputError

_BYTES = {
    "float32": 4.0,
    "bfloat16": 2.0,
    "float16": 2.0,
    "fp8": 1.0,
    "int8": 1.0,
    "int4": 0.5,
    "fp4": 0.5,
}
_ALIASES = {
    "float": "float32",
    "fp32": "float32",
    "f32": "float32",
    "half": "float16",
    "fp16": "float16",
    "f16": "float16",
    "bf16": "bfloat16",
    "fp8_e4m3": "fp8",
    "fp8_e5m2": "fp8",
    "fp8_inc": "fp8",
    "float8_e4m3fn": "fp8",
}


def canonical_dtype(name: str, field: str = "dtype") -> str:
    """The one name of an element type; ``torch.`` prefixes and the usual short forms are understood.

    Raises:
        InputError: no such type.
    """
    key = str(name).strip().lower().removeprefix("torch.")
    key = _ALIASES.get(key, key)
    if key not in _BYTES:
        raise InputError("unknown element type", field=field, value=name, hint="one of " + ", ".join(sorted(_BYTES)))
    return key


def dtype_bytes(name: str, field: str = "dtype") -> float:
    """Bytes of one element; half a byte for the 4-bit types."""
    return _BYTES[canonical_dtype(name, field)]
