"""Which layer does what: a config.json's many ways to say it, as one tuple of `LayerKind`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from kvplan.catalog.architecture import Attention, FeedForward, LayerKind, StateSpace
from kvplan.errors import InputError

_LAYER_TYPES: dict[str, Attention] = {
    "full_attention": "full",
    "attention": "full",
    "sliding_attention": "sliding_window",
    "sliding_window": "sliding_window",
    "chunked_attention": "chunked_local",
    "linear_attention": "state_space",
    "mamba": "state_space",
    "mamba2": "state_space",
    "moe": "none",
    "mlp": "none",
    "deepseek_sparse_attention": "full",
}

# Families whose code alternates windows although the config has no `layer_types`: every n-th layer is full.
_FULL_EVERY = {"gemma2": 2, "gemma3_text": 6, "gemma3": 6, "gpt_oss": 2, "cohere2": 4}


def attention_kinds(config: Mapping[str, Any], layers: int) -> list[Attention]:
    """The attention of each layer, MLA not yet told apart from full attention.

    Raises:
        InputError: a per-layer list of the wrong length or with an unknown word.
    """
    model_type = config.get("model_type", "")
    if pattern := config.get("hybrid_override_pattern"):  # Nemotron-H: M Mamba, * attention, - MLP, E experts
        words: dict[str, Attention] = {"M": "state_space", "*": "full", "-": "none", "E": "none"}
        return [words[letter] for letter in pattern if letter in words]
    if types := config.get("layer_types") or config.get("layers_block_type"):
        return _checked([_named(word) for word in types], layers, "layer_types")
    if flags := config.get("hybrid_layer_pattern"):  # MiMo-V2: 1 is a window layer
        return _checked(["sliding_window" if flag else "full" for flag in flags], layers, "hybrid_layer_pattern")
    if flags := config.get("attn_type_list"):  # MiniMax: 0 is lightning attention
        return _checked(["full" if flag else "state_space" for flag in flags], layers, "attn_type_list")
    if linear := config.get("linear_attn_config"):  # Kimi Linear counts layers from 1
        full = set(linear.get("full_attn_layers", ()))
        return ["full" if index + 1 in full else "state_space" for index in range(layers)]
    if interval := config.get("full_attention_interval"):
        return ["full" if (index + 1) % interval == 0 else "state_space" for index in range(layers)]
    if config.get("attention_chunk_size") and model_type.startswith("llama4"):
        every = config.get("no_rope_layer_interval") or 4
        return ["full" if (index + 1) % every == 0 else "chunked_local" for index in range(layers)]
    if not config.get("sliding_window"):
        return ["full"] * layers
    every = config.get("sliding_window_pattern") or _FULL_EVERY.get(model_type)
    if every:
        return ["full" if (index + 1) % every == 0 else "sliding_window" for index in range(layers)]
    if "use_sliding_window" in config:  # Qwen: windows are off unless asked for, then only above max_window_layers
        if not config["use_sliding_window"]:
            return ["full"] * layers
        first = config.get("max_window_layers") or 0
        return ["sliding_window" if index >= first else "full" for index in range(layers)]
    return ["sliding_window"] * layers


def _named(word: str) -> Attention:
    try:
        return _LAYER_TYPES[word]
    except KeyError:
        raise InputError(
            "unknown layer type", field="layer_types", value=word, hint="one of " + ", ".join(_LAYER_TYPES)
        ) from None


def _checked(kinds: list[Attention], layers: int, field: str) -> list[Attention]:
    if len(kinds) < layers:
        raise InputError(f"names {len(kinds)} layers of {layers}", field=field)
    return kinds[:layers]


def moe_layers(config: Mapping[str, Any], layers: int) -> list[bool]:
    """Which layers route to experts, for a config that has experts."""
    if pattern := config.get("hybrid_override_pattern"):
        return [letter == "E" for letter in pattern if letter in "M*-E"]
    dense_first = config.get("first_k_dense_replace") or 0
    every = config.get("moe_layer_freq", 1)
    if isinstance(every, Sequence):
        return [bool(flag) for flag in every[:layers]]
    every = config.get("interleave_moe_layer_step") or config.get("decoder_sparse_step") or every or 1
    dense_only = set(config.get("mlp_only_layers") or ())
    moe = [index >= dense_first and (index + 1) % every == 0 and index not in dense_only for index in range(layers)]
    if config.get("interleave_moe_layer_step") is None and config.get("decoder_sparse_step") is None:
        moe = [index >= dense_first and index % every == 0 and index not in dense_only for index in range(layers)]
    return moe


def state_space(config: Mapping[str, Any]) -> StateSpace:
    """The state of one linear-attention or Mamba layer.

    Raises:
        InputError: the config names such layers without their sizes.
    """
    if "linear_num_value_heads" in config:  # gated delta net: Qwen3-Next, Qwen3.5
        key_heads, value_heads = config["linear_num_key_heads"], config["linear_num_value_heads"]
        key_size, value_size = config["linear_key_head_dim"], config["linear_value_head_dim"]
        keys, values = key_heads * key_size, value_heads * value_size
        return StateSpace(
            heads=value_heads,
            head_dim=value_size,
            state_dim=key_size,
            conv_channels=2 * keys + values,
            conv_kernel=config.get("linear_conv_kernel_dim", 4),
            inner_size=values,
            input_columns=2 * keys + 2 * values + 2 * value_heads,
            state_dtype=config.get("mamba_ssm_dtype", config.get("dtype", "bfloat16")),
        )
    if linear := config.get("linear_attn_config"):  # Kimi delta attention
        heads, size = linear["num_heads"], linear["head_dim"]
        return StateSpace(
            heads=heads,
            head_dim=size,
            state_dim=size,
            conv_channels=3 * heads * size,
            conv_kernel=linear.get("short_conv_kernel_size", 4),
            inner_size=heads * size,
            input_columns=3 * heads * size + 2 * heads + 2 * size,
        )
    heads = config.get("mamba_num_heads") or config.get("mamba_n_heads")
    size = config.get("mamba_head_dim") or config.get("mamba_d_head")
    state = config.get("ssm_state_size") or config.get("mamba_d_state")
    if heads and size and state:  # Mamba 2
        groups = config.get("n_groups") or config.get("mamba_n_groups") or 1
        inner = heads * size
        return StateSpace(
            heads=heads,
            head_dim=size,
            state_dim=state,
            conv_channels=inner + 2 * groups * state,
            conv_kernel=config.get("conv_kernel") or config.get("mamba_d_conv") or 4,
            inner_size=inner,
            input_columns=2 * inner + 2 * groups * state + heads,
            state_dtype=config.get("mamba_ssm_cache_dtype", "float32"),
        )
    raise InputError(
        "the config has state-space layers but not their sizes",
        field="linear_num_value_heads",
        hint="give linear_num_key_heads, linear_num_value_heads and their head dims, or Mamba's heads and state size",
    )


def build_layers(config: Mapping[str, Any], defaults: LayerKind, moe: Mapping[str, int]) -> tuple[LayerKind, ...]:
    """One `LayerKind` a layer. ``defaults`` are the model-wide heads; ``moe`` the expert sizes, empty if
    dense."""
    count = config["num_hidden_layers"]
    if blocks := config.get("block_configs"):  # Nemotron NAS: every block says it for itself
        return tuple(_nas_layer(block, defaults, config["hidden_size"]) for block in blocks)
    kinds = attention_kinds(config, count)
    routed = moe_layers(config, count) if moe else [False] * count
    pattern = [letter for letter in config.get("hybrid_override_pattern", "") if letter in "M*-E"]
    shared_from = count - (config.get("num_kv_shared_layers") or 0)
    state = state_space(config) if "state_space" in kinds else None
    dense_width = config.get("intermediate_size_mlp") or defaults.intermediate_size
    layers = []
    for index, kind in enumerate(kinds):
        feed: FeedForward = "moe" if routed[index] else "dense"
        if pattern and pattern[index] in "M*":
            feed = "none"
        layers.append(
            _layer(
                config,
                kind,
                defaults,
                feed_forward=feed,
                intermediate_size=moe["intermediate_size"] if feed == "moe" else dense_width,
                shares_kv=index >= shared_from,
                state=state,
            )
        )
    return tuple(layers)


def _layer(
    config: Mapping[str, Any],
    kind: Attention,
    defaults: LayerKind,
    *,
    feed_forward: FeedForward,
    intermediate_size: int,
    shares_kv: bool,
    state: StateSpace | None,
) -> LayerKind:
    heads, kv_heads = defaults.num_attention_heads, defaults.num_key_value_heads
    size, value_size = defaults.head_dim, defaults.value_head_dim
    window, one_projection = 0, False
    if kind == "state_space":
        return LayerKind(kind, feed_forward=feed_forward, intermediate_size=intermediate_size, state=state)
    if kind == "none":
        return LayerKind(kind, feed_forward=feed_forward, intermediate_size=intermediate_size)
    if kind == "sliding_window":
        window = config.get("sliding_window") or config.get("sliding_window_size") or 0
        heads = config.get("swa_num_attention_heads") or heads
        kv_heads = config.get("swa_num_key_value_heads") or kv_heads
        size = config.get("swa_head_dim") or size
        value_size = config.get("swa_v_head_dim") or (size if config.get("swa_head_dim") else value_size)
    elif kind == "chunked_local":
        window = config["attention_chunk_size"]
    elif defaults.attention == "mla":
        kind = "mla"
    else:  # full attention beside windows may have heads of its own (Gemma 4)
        kv_heads = config.get("num_global_key_value_heads") or kv_heads
        if global_size := config.get("global_head_dim"):
            size = value_size = global_size
        one_projection = bool(config.get("attention_k_eq_v"))
    return LayerKind(
        kind,
        heads,
        kv_heads,
        size,
        value_size,
        window,
        feed_forward,
        intermediate_size,
        shares_kv,
        one_projection,
        indexer_bytes=defaults.indexer_bytes if kind == "mla" else 0,
    )


def _nas_layer(block: Mapping[str, Any], defaults: LayerKind, hidden_size: int) -> LayerKind:
    attention, feed = block["attention"], block["ffn"]
    width = int(2 * feed["ffn_mult"] * hidden_size / 3) if feed.get("ffn_mult") else 0
    width = -(-width // 256) * 256
    kind: Attention = "none" if attention.get("no_op") or attention.get("replace_with_linear") else "full"
    heads = defaults.num_attention_heads
    kv_heads = heads // attention["n_heads_in_group"] if kind == "full" else 0
    return LayerKind(
        kind,
        heads if kind == "full" else 0,
        kv_heads,
        defaults.head_dim,
        defaults.head_dim,
        feed_forward="dense" if width else "none",
        intermediate_size=width,
    )
