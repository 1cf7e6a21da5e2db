"""What one rank reads and computes in a step, from a model's shape alone."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from kvplan.catalog.dtypes import dtype_bytes

if TYPE_CHECKING:
    from kvplan.catalog.architecture import LayerKind, ModelConfig


@dataclass(frozen=True)
class Work:
    """Of a group of matrices that every token of a step passes through, on one rank.

    Args:
        weight_bytes: read once a step, however many tokens.
        flops_per_token: multiply-adds counted twice.
        activation_bytes_per_token: read and written around them.
        fp8: whether the products run at the fp8 rate.
    """

    weight_bytes: float = 0.0
    flops_per_token: float = 0.0
    activation_bytes_per_token: float = 0.0
    fp8: bool = False


@dataclass(frozen=True)
class Experts:
    """The routed experts of one layer on one rank: only those that a token chose are read."""

    num_experts: int
    chosen: int
    bytes_per_expert: float
    flops_per_token: float
    fp8: bool

    def touched(self, tokens: NDArray[np.float64]) -> NDArray[np.float64]:
        """Expected distinct experts when each token chooses its own uniformly: E·(1 − (1 − k/E)^tokens)."""
        return self.num_experts * (1.0 - (1.0 - self.chosen / self.num_experts) ** tokens)


def matrix(model: ModelConfig, part: str, elements: float) -> Work:
    """A weight matrix of ``elements``; ``part`` is one of quantization.excluded's words."""
    bits = 8 * dtype_bytes(model.dtype)
    fp8 = False
    if model.quantization is not None and part not in model.quantization.excluded:
        bits = model.quantization.bits
        fp8 = model.quantization.method in ("fp8", "int8")
    return Work(elements * bits / 8, 2.0 * elements, 0.0, fp8)


def attention_elements(model: ModelConfig, layer: LayerKind, tp: int) -> float:
    """Elements of the projections around attention, on one of ``tp`` ranks."""
    hidden = model.hidden_size
    heads = layer.num_attention_heads / tp
    if layer.attention == "mla":
        head = model.qk_nope_head_dim + model.qk_rope_head_dim
        if model.q_lora_rank:
            queries = hidden * model.q_lora_rank + model.q_lora_rank * heads * head
        else:
            queries = hidden * heads * head
        latent = hidden * (model.kv_lora_rank + model.qk_rope_head_dim)
        expand = model.kv_lora_rank * heads * (model.qk_nope_head_dim + model.v_head_dim)
        return queries + latent + expand + heads * model.v_head_dim * hidden
    if layer.attention == "state_space":
        state = layer.state
        assert state is not None
        return hidden * (state.input_columns + state.inner_size) / tp
    if layer.attention == "none":
        return 0.0
    value_head = layer.value_head_dim or layer.head_dim
    kv_heads = max(1.0, layer.num_key_value_heads / tp)
    queries = heads * layer.head_dim * (2 if model.gated_attention else 1)
    return hidden * (queries + kv_heads * (layer.head_dim + value_head) + heads * value_head)


def layer_work(model: ModelConfig, layer: LayerKind, tp: int) -> Iterator[Work | Experts]:
    """The matrices of one decoder layer on one rank."""
    hidden = model.hidden_size
    element = dtype_bytes(model.dtype)
    matrices = 3 if model.gated_mlp else 2
    projections = attention_elements(model, layer, tp)
    width = projections / hidden
    # Norms and residual adds are not divided by TP: two reads and two writes of the hidden state each.
    yield Work(activation_bytes_per_token=element * (4 * model.norms_per_layer * hidden + 2 * width))
    yield matrix(model, "attention", projections)
    if layer.feed_forward == "dense":
        inner = layer.intermediate_size / tp
        yield matrix(model, "dense_mlp", matrices * hidden * inner)
        yield Work(activation_bytes_per_token=element * matrices * inner)
    elif layer.feed_forward == "moe":
        inner = model.moe_intermediate_size / tp
        expert = matrix(model, "experts", matrices * hidden * inner)
        yield Experts(
            model.num_experts,
            model.num_experts_per_tok,
            expert.weight_bytes,
            expert.flops_per_token * model.num_experts_per_tok,
            expert.fp8,
        )
        yield matrix(model, "router", hidden * model.num_experts)
        # Each chosen expert gets its own copy of the hidden state and gives its own back.
        chosen = model.num_experts_per_tok
        yield Work(activation_bytes_per_token=element * chosen * (2 * hidden + matrices * inner))
        if model.shared_expert_intermediate_size:
            shared = matrices * hidden * model.shared_expert_intermediate_size / tp
            yield matrix(model, "shared_expert", shared)


def head_work(model: ModelConfig, tp: int) -> Work:
    """The output projection, which only the sampled positions pass through."""
    return matrix(model, "lm_head", model.hidden_size * model.vocab_size / tp)
