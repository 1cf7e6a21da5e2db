"""Parameters of a vision tower and its projector, which are loaded beside the decoder."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def vision_parameters(config: Mapping[str, Any], text_hidden: int) -> int:
    """How many parameters ``vision_config`` stands for; 0 where there is none.

    Matrices only, biases included where the family has them: within a few percent of the tower, which is a
    few percent of the model.
    """
    vision = config.get("vision_config")
    if not isinstance(vision, Mapping):
        return 0
    hidden = int(vision.get("hidden_size") or vision.get("embed_dim") or 0)
    layers = int(vision.get("num_hidden_layers") or vision.get("depth") or vision.get("layers") or 0)
    if not hidden or not layers:
        return 0
    width = int(vision.get("intermediate_size") or int(hidden * float(vision.get("mlp_ratio") or 4)))
    patch = int(vision.get("patch_size") or 14)
    frames = int(vision.get("temporal_patch_size") or 1)
    gated = str(vision.get("model_type")) in ("pixtral", "qwen2_5_vl", "gemma4_vision")
    layer = 4 * hidden * hidden + (3 if gated else 2) * hidden * width + 6 * hidden
    embedding = 3 * frames * patch * patch * hidden + int(vision.get("num_position_embeddings") or 0) * hidden
    merge = int(vision.get("spatial_merge_size") or config.get("spatial_merge_size") or 1) ** 2
    out = int(vision.get("out_hidden_size") or text_hidden)
    if str(vision.get("model_type")) == "pixtral":  # patch merger, then two matrices (Mistral 3)
        projector = merge * hidden * hidden + hidden * out + out * out
    elif merge > 1:  # Qwen-VL: the merged patch through a square and a rectangular matrix, deep stacks too
        stacks = 1 + len(vision.get("deepstack_visual_indexes") or ())
        projector = stacks * (merge * hidden) * (merge * hidden + out)
    else:
        projector = hidden * out
    return layers * layer + embedding + projector
