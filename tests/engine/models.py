"""Tiny models with weights that transformers draws: its own class, and ours read from the checkpoint it writes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers

from kvplan.catalog import load_model
from kvplan.core.settings import CacheGroup
from kvplan.engine.architecture import Architecture, architecture, config_of
from kvplan.engine.weights import Weights, load_weights
from kvplan.memory.groups import cache_groups
from kvplan.memory.kv_dtype import kv_format

VOCAB = 211
_SIZES: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    # Ten times the usual: attention must matter to the logits, or its faults would not show.
    "initializer_range": 0.2,
    "torch_dtype": "float32",
}
_LLAMA3_ROPE = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
    "rope_theta": 500000.0,
}
WINDOW = 24
_MADE = {
    "llama": ("LlamaConfig", {"head_dim": 16, "rope_parameters": _LLAMA3_ROPE, "tie_word_embeddings": True}),
    "llama-biased": ("LlamaConfig", {"head_dim": 8, "attention_bias": True, "mlp_bias": True}),
    "qwen2": ("Qwen2Config", {}),
    "qwen3": ("Qwen3Config", {"head_dim": 16}),
    "mistral": ("MistralConfig", {"head_dim": 16, "sliding_window": WINDOW}),
    "hybrid": (
        "Qwen3Config",
        {
            "head_dim": 16,
            "use_sliding_window": True,
            "sliding_window": WINDOW,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        },
    ),
}
KINDS = tuple(_MADE)


@dataclass(frozen=True, eq=False)
class Pair:
    """``theirs``: transformers' model. ``shape`` and ``weights``: ours. ``groups``: how its layers cache;
    ``members``: which layers are in each."""

    theirs: Any
    folder: Path
    shape: Architecture
    weights: Weights
    groups: tuple[CacheGroup, ...]
    members: tuple[tuple[int, ...], ...]

    @torch.inference_mode()
    def logits(self, tokens: torch.Tensor) -> torch.Tensor:
        """[tokens, vocab] for int64 [tokens]."""
        logits: torch.Tensor = self.theirs(tokens[None]).logits[0]
        return logits


def make_pair(kind: str, folder: Path) -> Pair:
    name, extra = _MADE[kind]
    torch.manual_seed(7)
    config = getattr(transformers, name)(**{**_SIZES, **extra})
    theirs = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="sdpa").eval()
    with torch.no_grad():  # drawn as ones and zeros, which would hide a norm or a bias that is left out
        for parameter_name, parameter in theirs.named_parameters():
            if parameter_name.endswith("bias") or "norm" in parameter_name:
                parameter += 0.3 * torch.randn_like(parameter)
    theirs.save_pretrained(folder)
    model = load_model(folder)
    shape = architecture(model, config_of(folder))
    planned = cache_groups(model, kv_format("auto", "float32"))
    groups = tuple(CacheGroup(group.attention, group.window) for group in planned)
    members = tuple(tuple(member.index for member in group.members) for group in planned)
    return Pair(theirs, folder, shape, load_weights(shape, folder, torch.device("cpu")), groups, members)
