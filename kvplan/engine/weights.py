"""A decoder's weights: drawn from a seed, or read from a checkpoint. Projections that share an input are one matrix."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from kvplan.engine.architecture import Architecture
from kvplan.engine.checkpoint import Checkpoint

STANDARD_DEVIATION = 0.02
"""Of drawn weights: transformers' initializer_range."""

DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}

Source = Callable[[str, tuple[int, ...]], torch.Tensor]
"""A tensor by its name in the checkpoint and its shape."""


@dataclass(frozen=True)
class LayerWeights:
    """One layer. H hidden, Q and K query and KV heads times head_dim, I intermediate.

    Args:
        qkv: [Q + 2 K, H]; qkv_bias [Q + 2 K] or None.
        output: [H, Q]; gate_up: [2 I, H]; down: [H, I]; biases or None.
        input_norm, post_norm: [H]. q_norm, k_norm: [head_dim] or None.
    """

    qkv: torch.Tensor
    output: torch.Tensor
    gate_up: torch.Tensor
    down: torch.Tensor
    input_norm: torch.Tensor
    post_norm: torch.Tensor
    qkv_bias: torch.Tensor | None = None
    output_bias: torch.Tensor | None = None
    gate_up_bias: torch.Tensor | None = None
    down_bias: torch.Tensor | None = None
    q_norm: torch.Tensor | None = None
    k_norm: torch.Tensor | None = None


@dataclass(frozen=True)
class Weights:
    """embedding [vocab, H]; head [vocab, H], the embedding itself where they are tied; norm [H]."""

    embedding: torch.Tensor
    layers: tuple[LayerWeights, ...]
    norm: torch.Tensor
    head: torch.Tensor


def random_weights(shape: Architecture, device: torch.device, seed: int = 0) -> Weights:
    """Weights drawn on ``device``. A tensor depends on the seed and its name alone (and on the kind of device)."""
    dtype = DTYPES[shape.dtype]

    def draw(name: str, size: tuple[int, ...]) -> torch.Tensor:
        if name.endswith("norm.weight"):
            return torch.ones(size, dtype=dtype, device=device)
        generator = torch.Generator(device).manual_seed(seed << 32 | zlib.crc32(name.encode()))
        tensor = torch.empty(size, dtype=dtype, device=device)
        return tensor.normal_(0.0, STANDARD_DEVIATION, generator=generator)

    return _assemble(shape, draw)


def load_weights(shape: Architecture, folder: str | Path, device: torch.device) -> Weights:
    """Weights out of a folder's safetensors files, in the architecture's dtype.

    Raises:
        InputError: no such files, a tensor is missing or of another shape; names it.
    """
    with Checkpoint(folder) as checkpoint:

        def read(name: str, size: tuple[int, ...]) -> torch.Tensor:
            return checkpoint.tensor(name, size).to(device=device, dtype=DTYPES[shape.dtype])

        return _assemble(shape, read)


def _assemble(shape: Architecture, get: Source) -> Weights:
    hidden, vocab = shape.hidden_size, shape.vocab_size
    embedding = get("model.embed_tokens.weight", (vocab, hidden))
    return Weights(
        embedding=embedding,
        layers=tuple(_layer(shape, get, f"model.layers.{i}.") for i in range(shape.num_hidden_layers)),
        norm=get("model.norm.weight", (hidden,)),
        head=embedding if shape.tie_word_embeddings else get("lm_head.weight", (vocab, hidden)),
    )


def _layer(shape: Architecture, get: Source, prefix: str) -> LayerWeights:
    hidden, width = shape.hidden_size, shape.intermediate_size
    query = shape.num_attention_heads * shape.head_dim
    kv = shape.num_key_value_heads * shape.head_dim
    attention, mlp = prefix + "self_attn.", prefix + "mlp."

    def joined(parent: str, parts: dict[str, int], biased: bool) -> tuple[torch.Tensor, torch.Tensor | None]:
        matrix = torch.cat([get(f"{parent}{part}.weight", (rows, hidden)) for part, rows in parts.items()])
        if not biased:
            return matrix, None
        return matrix, torch.cat([get(f"{parent}{part}.bias", (rows,)) for part, rows in parts.items()])

    qkv, qkv_bias = joined(attention, {"q_proj": query, "k_proj": kv, "v_proj": kv}, shape.attention_bias)
    gate_up, gate_up_bias = joined(mlp, {"gate_proj": width, "up_proj": width}, shape.mlp_bias)
    norms = {
        name: get(f"{attention}{name}.weight", (shape.head_dim,)) for name in ("q_norm", "k_norm") if shape.qk_norm
    }
    return LayerWeights(
        qkv=qkv,
        qkv_bias=qkv_bias,
        output=get(attention + "o_proj.weight", (hidden, query)),
        output_bias=get(attention + "o_proj.bias", (hidden,)) if shape.attention_output_bias else None,
        gate_up=gate_up,
        gate_up_bias=gate_up_bias,
        down=get(mlp + "down_proj.weight", (hidden, width)),
        down_bias=get(mlp + "down_proj.bias", (hidden,)) if shape.mlp_bias else None,
        input_norm=get(prefix + "input_layernorm.weight", (hidden,)),
        post_norm=get(prefix + "post_attention_layernorm.weight", (hidden,)),
        **norms,
    )
