"""The rotary tables that an engine allocates with the model: how many rows, how wide."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_WITHOUT = ("opt", "gpt2", "bloom", "mpt", "nemotron_h")


def rotary_tables(text: Mapping[str, Any], family: str, head_dim: int, mla: bool) -> tuple[tuple[int, int], ...]:
    """(rows, width) of each table, as vLLM builds them: one for every distinct rotary embedding.

    Yarn and linear scaling lengthen the table by their factor. Models whose window layers rotate with a base of
    their own (Gemma 3 and 4) have a second one; both stand on every rank.
    """
    if family in _WITHOUT:
        return ()
    positions = int(text.get("max_position_embeddings") or 0)
    parameters = text.get("rope_parameters") or {}
    per_layer_type = {key: value for key, value in parameters.items() if isinstance(value, Mapping)}
    if per_layer_type:
        sizes = {"full_attention": int(text.get("global_head_dim") or head_dim)}
        return tuple(
            (_rows(positions, rope), _width(sizes.get(kind, head_dim), rope)) for kind, rope in per_layer_type.items()
        )
    scaling = text.get("rope_scaling") or parameters
    width = int(text.get("qk_rope_head_dim") or 0) if mla else int(text.get("rotary_dim") or _width(head_dim, text))
    if not mla and not text.get("rotary_dim") and not text.get("partial_rotary_factor"):
        width = _width(head_dim, parameters)
    tables = [(_rows(positions, scaling), width)]
    if text.get("rope_local_base_freq"):
        tables.append((positions, width))
    return tuple(tables)


def _rows(positions: int, scaling: Mapping[str, Any]) -> int:
    kind = scaling.get("rope_type") or scaling.get("type")
    factor = float(scaling.get("factor") or 1)
    if kind == "yarn" and scaling.get("original_max_position_embeddings"):
        return int(scaling["original_max_position_embeddings"] * factor)
    return int(positions * factor) if kind == "linear" else positions


def _width(head_dim: int, rope: Mapping[str, Any]) -> int:
    return int(head_dim * float(rope.get("partial_rotary_factor") or 1.0))
