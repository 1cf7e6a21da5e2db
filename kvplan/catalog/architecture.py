"""What a decoder is made of: the facts that memory and time follow from, layer by layer."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal

Attention = Literal["full", "sliding_window", "chunked_local", "mla", "state_space", "none"]
FeedForward = Literal["dense", "moe", "none"]


@dataclass(frozen=True)
class StateSpace:
    """The constant state a linear-attention or Mamba layer keeps for each sequence, unsharded.

    ``conv_channels`` channels of ``conv_kernel - 1`` past inputs, and ``heads`` matrices of
    ``head_dim`` x ``state_dim``. ``input_columns`` is the width of its input projections,
    ``inner_size`` of what its output projection reads.
    """

    heads: int
    head_dim: int
    state_dim: int
    conv_channels: int
    conv_kernel: int
    inner_size: int
    input_columns: int
    state_dtype: str = "float32"


@dataclass(frozen=True)
class LayerKind:
    """One decoder layer: how it caches and what its feed-forward part holds.

    ``num_key_value_heads`` and ``head_dim`` are the layer's own (Gemma 4's global layers differ from its
    local ones); ``value_head_dim`` differs from ``head_dim`` in few models. ``shares_kv``: reads another
    layer's cache and keeps none. ``shares_kv_weights``: K and V come from one projection (the cache holds
    both).
    """

    attention: Attention = "full"
    num_attention_heads: int = 0
    num_key_value_heads: int = 0
    head_dim: int = 0
    value_head_dim: int = 0
    window: int = 0
    """Tokens a sliding-window or chunked-local layer attends to; 0 otherwise."""
    feed_forward: FeedForward = "dense"
    intermediate_size: int = 0
    shares_kv: bool = False
    shares_kv_weights: bool = False
    state: StateSpace | None = None
    indexer_bytes: int = 0
    """Bytes a token that a sparse-attention indexer caches beside K and V (DeepSeek-V3.2)."""

    @property
    def caches(self) -> bool:
        """Whether the layer owns memory in the KV pool."""
        return self.attention != "none" and not self.shares_kv


@dataclass(frozen=True)
class KvGroup:
    """Layers that cache alike: the kinds of a model, before an engine splits them into its own groups."""

    attention: Attention
    layers: int
    window: int = 0
    num_key_value_heads: int = 0
    head_dim: int = 0
    value_head_dim: int = 0
    state: StateSpace | None = None
    indexer_bytes: int = 0


@dataclass(frozen=True)
class Quantization:
    """How the linear layers' weights are stored.

    ``method``: fp8, int8, gptq, awq, mxfp4, nvfp4, compressed-tensors forms are mapped to these.
    ``group_size``: weights that share one scale along the input; 0 is one scale an output channel, -1 one a
    tensor. ``block``: (rows, columns) of a two-dimensional scale block, or None. ``excluded``: which parts
    stay in the model's dtype: any of attention, lm_head, embedding, router, shared_expert, dense_mlp, vision.
    """

    method: str
    bits: int
    group_size: int = 0
    block: tuple[int, int] | None = None
    zero_points: bool = False
    excluded: frozenset[str] = frozenset({"lm_head", "embedding", "router", "vision"})


@dataclass(frozen=True)
class ModelConfig:
    """A model's shape, in the words of Hugging Face's config.json where it has one.

    Sizes are of the whole model; what one rank of a parallel engine holds is `kvplan.memory`'s business.
    Built by `kvplan.catalog.load_model`.
    """

    name: str
    architecture: str
    model_type: str
    num_hidden_layers: int
    hidden_size: int
    intermediate_size: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    vocab_size: int
    max_position_embeddings: int
    dtype: str
    layers: tuple[LayerKind, ...]
    tie_word_embeddings: bool = False
    attention_bias: bool = False
    """Q, K and V projections carry a bias."""
    attention_output_bias: bool = False
    mlp_bias: bool = False
    gated_mlp: bool = True
    """Three matrices (gate, up, down) instead of two."""
    qk_norm: bool = False
    norms_per_layer: int = 2
    norm_bias: bool = False
    gated_attention: bool = False
    """The query projection also makes an output gate (Qwen3-Next and later)."""
    attention_sinks: bool = False
    learned_positions: int = 0
    """Rows of a learned position table (OPT, GPT-2), 0 where positions are rotary."""
    rotary_tables: tuple[tuple[int, int], ...] = ()
    """(rows, width) of each cosine/sine table an engine keeps on the device."""
    num_experts: int = 0
    num_experts_per_tok: int = 0
    moe_intermediate_size: int = 0
    expert_hidden_size: int = 0
    """Width that tokens are projected to before the routed experts (latent experts); 0 where they see hidden_size."""
    shared_expert_intermediate_size: int = 0
    """Width of the feed-forward part that every token takes beside the routed experts, all shared experts
    summed."""
    shared_expert_gate: bool = False
    expert_bias: bool = False
    q_lora_rank: int = 0
    kv_lora_rank: int = 0
    qk_nope_head_dim: int = 0
    qk_rope_head_dim: int = 0
    v_head_dim: int = 0
    index_heads: int = 0
    """Heads of the sparse-attention indexer (DeepSeek-V3.2), 0 where attention is dense."""
    index_head_dim: int = 0
    quantization: Quantization | None = None
    kv_cache_dtype: str = "auto"
    """What the checkpoint asks the cache to be (``kv_cache_scheme``); engines take it where the flag says auto."""
    other_parameters: int = 0
    """Parameters beside the decoder that are loaded with it: vision tower, projector."""
    declared_groups: tuple[KvGroup, ...] = ()
    """The cache groups a person named outright (``kv_groups:``); empty where the layers decide."""
    source: str = ""
    notes: tuple[str, ...] = field(default=())
    """What was assumed because the config does not say; shown to the person."""

    @property
    def is_moe(self) -> bool:
        return self.num_experts > 0

    @property
    def is_mla(self) -> bool:
        return self.kv_lora_rank > 0

    @property
    def kv_groups(self) -> tuple[KvGroup, ...]:
        """The kinds of cache this model needs, full attention first, else in order of first appearance."""
        if self.declared_groups:
            return self.declared_groups
        counts: dict[KvGroup, int] = {}
        for layer in self.layers:
            if layer.caches:
                key = kv_group_of(layer)
                counts[key] = counts.get(key, 0) + 1
        groups = [replace(kind, layers=count) for kind, count in counts.items()]
        return tuple(sorted(groups, key=lambda group: group.attention not in ("full", "mla")))


def kv_group_of(layer: LayerKind) -> KvGroup:
    """The cache kind of one layer, as a group of that one layer."""
    if layer.attention == "state_space":
        return KvGroup("state_space", 1, state=layer.state)
    return KvGroup(
        layer.attention,
        1,
        window=layer.window,
        num_key_value_heads=layer.num_key_value_heads,
        head_dim=layer.head_dim,
        value_head_dim=layer.value_head_dim,
        indexer_bytes=layer.indexer_bytes,
    )
