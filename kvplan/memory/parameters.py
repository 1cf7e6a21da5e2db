"""Every matrix of a model: how many parameters it has, how an engine splits it, whether it is quantized.

The one list from which parameter counts, weight bytes and FLOPs follow.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from kvplan.catalog import LayerKind, ModelConfig
from kvplan.memory.parallel import padded_vocab

Part = Literal[
    "attention",
    "state_space",
    "dense_mlp",
    "experts",
    "shared_expert",
    "router",
    "embedding",
    "lm_head",
    "norm",
    "vision",
]
Split = Literal["tensor", "kv_heads", "none"]


@dataclass(frozen=True)
class Weight:
    """``count`` equal matrices of ``rows`` inputs by ``columns`` outputs (a vector has one row).

    ``split``: over all tensor-parallel ranks; like KV heads (never into less than one head); or on every
    rank. ``layer`` is the decoder layer, -1 for what stands before the first, and -2 for what follows the
    last. ``active`` is how many of ``count`` one token goes through.
    """

    name: str
    part: Part
    layer: int
    rows: int
    columns: int
    split: Split = "tensor"
    count: int = 1
    active: int = 1
    kv_heads: int = 0
    linear: bool = True
    """A matrix that a quantized checkpoint quantizes; vectors and tables are not."""

    @property
    def parameters(self) -> int:
        return self.count * self.rows * self.columns


FIRST, LAST = -1, -2


def weights(model: ModelConfig) -> Iterator[Weight]:
    """All weights that an engine loads: the decoder, its tables, the vision tower. No multi-token-prediction
    layer."""
    if not model.layers:
        return
    hidden = model.hidden_size
    vocab = padded_vocab(model.vocab_size)
    yield Weight("embedding", "embedding", FIRST, vocab, hidden, linear=False)
    if model.learned_positions:
        yield Weight("positions", "embedding", FIRST, model.learned_positions, hidden, "none", linear=False)
    if model.other_parameters:
        yield Weight("vision tower", "vision", FIRST, 1, model.other_parameters, linear=False)
    for index, layer in enumerate(model.layers):
        yield from _attention(model, layer, index)
        yield from _feed_forward(model, layer, index)
        norms = model.norms_per_layer * (2 if model.norm_bias else 1)
        yield Weight("norms", "norm", index, 1, hidden * norms, "none", linear=False)
    yield Weight("final norm", "norm", LAST, 1, hidden * (2 if model.norm_bias else 1), "none", linear=False)
    if not model.tie_word_embeddings:
        yield Weight("lm_head", "lm_head", LAST, hidden, vocab)


def total_params(model: ModelConfig) -> int:
    """Parameters of the checkpoint, the vocabulary not padded."""
    surplus = padded_vocab(model.vocab_size) - model.vocab_size
    tables = 1 if model.tie_word_embeddings else 2
    return sum(weight.parameters for weight in weights(model)) - surplus * model.hidden_size * (
        tables if model.layers else 0
    )


def active_params(model: ModelConfig) -> int:
    """Parameters that one token is multiplied with: routed experts counted as often as they are chosen.

    The embedding table is read, not multiplied, so it counts only where it is tied to the head.
    """
    active = 0
    for weight in weights(model):
        if weight.part == "vision" or (
            weight.part == "embedding" and not (model.tie_word_embeddings and weight.rows > 1)
        ):
            continue
        active += weight.parameters // weight.count * (weight.active if weight.part == "experts" else weight.count)
    return active


def _attention(model: ModelConfig, layer: LayerKind, index: int) -> Iterator[Weight]:
    if layer.attention == "none":
        return
    if layer.attention == "state_space":
        yield from _state_space(model, layer, index)
        return
    if layer.attention == "mla":
        yield from _mla(model, index)
        return
    hidden, heads, kv = model.hidden_size, layer.num_attention_heads, layer.num_key_value_heads
    queries = heads * layer.head_dim * (2 if model.gated_attention else 1)
    keys, values = kv * layer.head_dim, 0 if layer.shares_kv_weights else kv * layer.value_head_dim
    attended = heads * (layer.value_head_dim or layer.head_dim)
    yield Weight("q_proj", "attention", index, hidden, queries)
    if not layer.shares_kv:
        yield Weight("kv_proj", "attention", index, hidden, keys + values, "kv_heads", kv_heads=kv)
    yield Weight("o_proj", "attention", index, attended, hidden)
    if model.attention_bias:
        yield Weight("qkv bias", "attention", index, 1, queries, linear=False)
        yield Weight("kv bias", "attention", index, 1, keys + values, "kv_heads", kv_heads=kv, linear=False)
    if model.attention_output_bias:
        yield Weight("o bias", "attention", index, 1, hidden, "none", linear=False)
    if model.qk_norm:
        yield Weight("qk norms", "norm", index, 1, 2 * layer.head_dim, "none", linear=False)
    if model.attention_sinks:
        yield Weight("sinks", "attention", index, 1, heads, linear=False)


def _mla(model: ModelConfig, index: int) -> Iterator[Weight]:
    """Multi-head latent attention: the down projections stand on every rank."""
    hidden, heads = model.hidden_size, model.num_attention_heads
    query = heads * (model.qk_nope_head_dim + model.qk_rope_head_dim)
    if model.q_lora_rank:
        yield Weight("q_a_proj", "attention", index, hidden, model.q_lora_rank, "none")
        yield Weight("q_b_proj", "attention", index, model.q_lora_rank, query)
        yield Weight("q_a norm", "norm", index, 1, model.q_lora_rank, "none", linear=False)
    else:
        yield Weight("q_proj", "attention", index, hidden, query)
    yield Weight("kv_a_proj", "attention", index, hidden, model.kv_lora_rank + model.qk_rope_head_dim, "none")
    yield Weight("kv_a norm", "norm", index, 1, model.kv_lora_rank, "none", linear=False)
    yield Weight(
        "kv_b_proj",
        "attention",
        index,
        model.kv_lora_rank,
        heads * (model.qk_nope_head_dim + model.v_head_dim),
    )
    yield Weight("o_proj", "attention", index, heads * model.v_head_dim, hidden)
    if model.index_heads:
        yield Weight(
            "indexer q",
            "attention",
            index,
            model.q_lora_rank or hidden,
            model.index_heads * model.index_head_dim,
            "none",
        )
        yield Weight("indexer k", "attention", index, hidden, model.index_head_dim + model.index_heads, "none")


def _state_space(model: ModelConfig, layer: LayerKind, index: int) -> Iterator[Weight]:
    state, hidden = layer.state, model.hidden_size
    assert state is not None
    yield Weight("in_proj", "state_space", index, hidden, state.input_columns)
    yield Weight("out_proj", "state_space", index, state.inner_size, hidden)
    yield Weight("conv1d", "state_space", index, state.conv_kernel, state.conv_channels, linear=False)
    yield Weight("A, dt, D", "state_space", index, 1, 3 * state.heads, linear=False)


def _feed_forward(model: ModelConfig, layer: LayerKind, index: int) -> Iterator[Weight]:
    hidden, matrices = model.hidden_size, 2 if model.gated_mlp else 1
    if layer.feed_forward == "dense":
        width = layer.intermediate_size
        yield Weight("gate_up_proj", "dense_mlp", index, hidden, matrices * width)
        yield Weight("down_proj", "dense_mlp", index, width, hidden)
        if model.mlp_bias:
            yield Weight("up bias", "dense_mlp", index, 1, matrices * width, linear=False)
            yield Weight("down bias", "dense_mlp", index, 1, hidden, "none", linear=False)
    elif layer.feed_forward == "moe":
        width, experts, chosen = layer.intermediate_size, model.num_experts, model.num_experts_per_tok
        seen = model.expert_hidden_size or hidden
        if model.expert_hidden_size:
            yield Weight("latent projections", "router", index, hidden, 2 * seen, "none")
        yield Weight("router", "router", index, hidden, experts, "none")
        yield Weight("experts up", "experts", index, seen, matrices * width, count=experts, active=chosen)
        yield Weight("experts down", "experts", index, width, seen, count=experts, active=chosen)
        if model.expert_bias:
            yield Weight(
                "experts bias",
                "experts",
                index,
                1,
                matrices * width,
                count=experts,
                active=chosen,
                linear=False,
            )
            yield Weight("experts down bias", "experts", index, 1, hidden, "none", experts, chosen, linear=False)
        if shared := model.shared_expert_intermediate_size:
            yield Weight("shared up", "shared_expert", index, hidden, matrices * shared)
            yield Weight("shared down", "shared_expert", index, shared, hidden)
        if model.shared_expert_gate:
            yield Weight("shared gate", "router", index, hidden, 1, "none")
