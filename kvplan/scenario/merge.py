"""Laying one mapping over another."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

REPLACED_WHOLE = frozenset({"timing"})
"""Keys of alternatives: ``{constant: 1}`` over ``{profile: FILE}`` must not become both."""


def merged(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """``base`` with what ``over`` says: mappings leaf by leaf, anything else (lists too) replaced."""
    result = dict(base)
    for key, value in over.items():
        below = result.get(key)
        if isinstance(below, Mapping) and isinstance(value, Mapping) and key not in REPLACED_WHOLE:
            result[key] = merged(below, value)
        else:
            result[key] = value
    return result


def nested(key: str, value: Any) -> dict[str, Any]:
    """``nested("cache.block_size", 32)`` is ``{"cache": {"block_size": 32}}``."""
    for step in reversed(key.split(".")):
        value = {step: value}
    return dict(value)
