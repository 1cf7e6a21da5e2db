"""What the decoder must compute: the catalogue's model, and what only its config.json says (rotary base, epsilon)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvplan.catalog import ModelConfig
from kvplan.catalog.lookup import find, load_table
from kvplan.errors import InputError

FAMILIES = ("llama", "mistral", "qwen2", "qwen3")
_DEFAULT_THETA = 10_000.0  # transformers' own default
_DEFAULT_EPS = 1e-6


@dataclass(frozen=True)
class Rope:
    """Rotary positions: plain, ``linear`` (positions divided by ``factor``) or ``llama3`` scaling.

    The last three are Llama 3's: wavelengths above ``original / low_freq_factor`` are stretched by ``factor``, those
    below ``original / high_freq_factor`` are left alone, and between them the two are blended.
    """

    theta: float = _DEFAULT_THETA
    kind: str = "default"
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_position_embeddings: int = 8192


@dataclass(frozen=True)
class Architecture:
    """A decoder of the Llama family. Sizes as in config.json; ``windows``: a layer's window, 0 for full attention."""

    num_hidden_layers: int
    hidden_size: int
    intermediate_size: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    vocab_size: int
    dtype: str
    windows: tuple[int, ...]
    rope: Rope = Rope()
    rms_norm_eps: float = _DEFAULT_EPS
    attention_bias: bool = False
    attention_output_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    tie_word_embeddings: bool = False

    @property
    def group_size(self) -> int:
        """Query heads of one KV head."""
        return self.num_attention_heads // self.num_key_value_heads

    @property
    def parameters(self) -> int:
        """Weights of its matrices; norms and biases, a hundred thousandth of them, are left out."""
        heads = 2 * self.num_attention_heads + 2 * self.num_key_value_heads
        layer = self.hidden_size * (heads * self.head_dim + 3 * self.intermediate_size)
        embeddings = self.vocab_size * self.hidden_size * (1 if self.tie_word_embeddings else 2)
        return self.num_hidden_layers * layer + embeddings


def config_of(reference: str | Path | Mapping[str, Any]) -> Mapping[str, Any]:
    """The config.json behind what `kvplan.catalog.load_model` was given; it has read it once without complaint."""
    if isinstance(reference, Mapping):
        base = reference.get("base")
        return {**config_of(str(base)), **reference} if base else reference
    path = Path(reference)
    if path.is_dir():
        path /= "config.json"
    if path.is_file():
        config: Mapping[str, Any] = json.loads(path.read_text(encoding="utf-8-sig"))
        return config
    return dict(find(load_table("models.yaml"), str(reference), field="model")[1]["config"])


def architecture(model: ModelConfig, config: Mapping[str, Any]) -> Architecture:
    """The decoder of ``model``; ``config``: its config.json, for what bytes do not depend on.

    Raises:
        InputError: the engine does not run this model; says which part it lacks.
    """
    _require_supported(model, config)
    return Architecture(
        num_hidden_layers=model.num_hidden_layers,
        hidden_size=model.hidden_size,
        intermediate_size=model.intermediate_size,
        num_attention_heads=model.num_attention_heads,
        num_key_value_heads=model.num_key_value_heads,
        head_dim=model.head_dim,
        vocab_size=model.vocab_size,
        dtype=model.dtype,
        windows=tuple(layer.window if layer.attention == "sliding_window" else 0 for layer in model.layers),
        rope=_rope(config),
        rms_norm_eps=float(config.get("rms_norm_eps") or _DEFAULT_EPS),
        attention_bias=model.attention_bias,
        attention_output_bias=model.attention_output_bias and model.model_type == "llama",
        mlp_bias=model.mlp_bias,
        qk_norm=model.qk_norm,
        tie_word_embeddings=model.tie_word_embeddings,
    )


def _require_supported(model: ModelConfig, config: Mapping[str, Any]) -> None:
    activation = str(config.get("hidden_act") or "silu")
    for broken, why in (
        (model.model_type not in FAMILIES, f"model type {model.model_type!r}"),
        (model.is_moe, "experts"),
        (model.is_mla, "latent attention"),
        (model.quantization is not None, "quantized weights"),
        (bool(model.declared_groups), "cache groups without a model"),
        (any(layer.attention not in ("full", "sliding_window") for layer in model.layers), "its attention"),
        (any(layer.shares_kv for layer in model.layers), "layers that share their cache"),
        (activation not in ("silu", "swish"), f"activation {activation!r}"),
    ):
        if broken:
            raise InputError(
                f"the engine does not run {why}",
                field="model",
                value=model.name,
                hint="it runs Llama-style decoders: " + ", ".join(FAMILIES),
            )


def _rope(config: Mapping[str, Any]) -> Rope:
    """From ``rope_parameters`` (transformers 5) or ``rope_theta`` and ``rope_scaling`` (before)."""
    scaling = config.get("rope_parameters") or config.get("rope_scaling") or {}
    theta = float(config.get("rope_theta") or scaling.get("rope_theta") or _DEFAULT_THETA)
    kind = str(scaling.get("rope_type") or scaling.get("type") or "default")
    partial = float(config.get("partial_rotary_factor") or scaling.get("partial_rotary_factor") or 1.0)
    if kind not in ("default", "linear", "llama3") or partial != 1.0:
        raise InputError(
            "the engine does not run this rotary scaling",
            field="model.rope_scaling",
            value=kind if partial == 1.0 else f"partial_rotary_factor {partial}",
            hint="it runs default, linear and llama3",
        )
    return Rope(
        theta=theta,
        kind=kind,
        factor=float(scaling.get("factor") or 1.0),
        low_freq_factor=float(scaling.get("low_freq_factor") or 1.0),
        high_freq_factor=float(scaling.get("high_freq_factor") or 4.0),
        original_max_position_embeddings=int(scaling.get("original_max_position_embeddings") or 8192),
    )
