"""A Hugging Face ``config.json``, nested or flat, read into a `ModelConfig`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kvplan.catalog.architecture import KvGroup, LayerKind, ModelConfig
from kvplan.catalog.dtypes import canonical_dtype
from kvplan.catalog.hf_layers import build_layers
from kvplan.catalog.hf_quantization import announced_kv_dtype, read_quantization
from kvplan.catalog.hf_rotary import rotary_tables
from kvplan.catalog.hf_vision import vision_parameters
from kvplan.errors import InputError

_NESTED = ("text_config", "llm_config", "language_config", "thinker_config")
_SPELLINGS = {
    "num_hidden_layers": ("n_layer", "num_layers", "n_layers"),
    "hidden_size": ("n_embd", "d_model", "dim"),
    "num_attention_heads": ("n_head", "n_heads", "num_heads"),
    "num_key_value_heads": ("num_kv_heads", "n_kv_heads", "multi_query_group_num"),
    "intermediate_size": ("ffn_dim", "n_inner", "ffn_hidden_size", "hidden_dim"),
    "max_position_embeddings": ("n_positions", "max_sequence_length", "seq_length", "model_max_length"),
    "dtype": ("torch_dtype",),
}
_EXPERTS = ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts")
_EXPERTS_PER_TOKEN = (
    "num_experts_per_tok",
    "num_experts_per_token",
    "experts_per_token",
    "top_k_experts",
    "moe_topk",
    "moe_k",
)
_TWO_MATRIX = (
    "opt",
    "falcon",
    "gpt2",
    "gpt_neox",
    "gpt_bigcode",
    "phi",
    "starcoder2",
    "nemotron",
    "bloom",
    "mpt",
)
_FOUR_NORMS = ("gemma2", "gemma3", "gemma3_text", "gemma4", "gemma4_text", "olmo2", "glm4")
_TIED_BY_DEFAULT = (
    "gemma",
    "gemma2",
    "gemma3",
    "gemma3_text",
    "gemma4",
    "gemma4_text",
    "opt",
    "falcon",
    "gpt2",
    "cohere",
)
_NEMOTRON_BLOCKS = {"mamba": "M", "attention": "*", "mlp": "-", "moe": "E"}
_QK_NORM = (
    "qwen3",
    "qwen3_moe",
    "qwen3_next",
    "qwen3_5",
    "qwen3_5_moe",
    "gemma3",
    "gemma3_text",
    "gemma4",
    "olmo2",
)


def from_hf_config(config: Mapping[str, Any], *, name: str = "", source: str = "") -> ModelConfig:
    """The shape that a config.json describes.

    Multimodal configs nest the text model (``text_config``); its vision tower is counted in
    ``other_parameters``.

    Raises:
        InputError: a key without which no byte can be counted is missing, or contradicts another.
    """
    text = text_config(config)
    model_type = str(text.get("model_type") or config.get("model_type") or "")
    family = model_type.removesuffix("_text")
    if text.get("compress_ratios"):
        raise InputError(
            "compressed sparse attention (DeepSeek-V4) is not modelled", field="compress_ratios", source=source or None
        )
    count, hidden, heads = (
        _size(text, key, source) for key in ("num_hidden_layers", "hidden_size", "num_attention_heads")
    )
    head_dim = _head_dim(text, hidden, heads, source)
    kv_heads = _kv_heads(text, heads, source)
    experts = next((int(text[key]) for key in _EXPERTS if text.get(key)), 0)
    width = int(
        text.get("intermediate_size") or _default_width(family, hidden) or text.get("moe_intermediate_size") or 0
    )
    expert_width = _expert_width(text, width) if experts else 0
    mla = bool(text.get("kv_lora_rank"))
    defaults = LayerKind(
        "mla" if mla else "full",
        heads,
        1 if mla else kv_heads,
        int(text["kv_lora_rank"]) + int(text.get("qk_rope_head_dim") or 0) if mla else head_dim,
        0 if mla else int(text.get("v_head_dim") or head_dim),
        intermediate_size=width,
        indexer_bytes=_indexer_bytes(text) if mla else 0,
    )
    layers = build_layers(text, defaults, {"intermediate_size": expert_width} if experts else {})
    dtype = canonical_dtype(text.get("dtype") or config.get("dtype") or config.get("torch_dtype") or "bfloat16")
    quantized = config.get("quantization_config") or text.get("quantization_config")
    return ModelConfig(
        name=name or str(config.get("_name_or_path") or family or "model"),
        architecture=str((config.get("architectures") or text.get("architectures") or [""])[0]),
        model_type=model_type,
        num_hidden_layers=count,
        hidden_size=hidden,
        intermediate_size=width,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        head_dim=head_dim,
        vocab_size=_size(text if "vocab_size" in text else config, "vocab_size", source),
        max_position_embeddings=int(text.get("max_position_embeddings") or 2048),
        dtype=dtype,
        layers=layers,
        tie_word_embeddings=_tied(config, text, family),
        attention_bias=_attention_bias(text, family),
        attention_output_bias=bool(text.get("attention_bias")) or family in ("opt", "gpt2"),
        mlp_bias=bool(text.get("mlp_bias")) or family in ("opt", "gpt2", "starcoder2"),
        gated_mlp=not (family in _TWO_MATRIX or str(text.get("mlp_hidden_act") or text.get("hidden_act")) == "relu2"),
        qk_norm=family in _QK_NORM or bool(text.get("use_qk_norm")),
        norms_per_layer=4 if family in _FOUR_NORMS else 1 if family == "falcon" else 2,
        norm_bias=family in ("opt", "falcon", "gpt2", "starcoder2", "phi"),
        gated_attention=bool(text.get("attn_output_gate")) or family == "qwen3_next",
        attention_sinks=family == "gpt_oss",
        learned_positions=_learned_positions(text, family),
        rotary_tables=rotary_tables(text, family, head_dim, mla),
        num_experts=experts,
        num_experts_per_tok=next((int(text[key]) for key in _EXPERTS_PER_TOKEN if text.get(key)), 0) if experts else 0,
        moe_intermediate_size=expert_width,
        expert_hidden_size=int(text.get("moe_latent_size") or text.get("routed_expert_hidden_size") or 0),
        shared_expert_intermediate_size=_shared_width(text, family, width, expert_width) if experts else 0,
        shared_expert_gate=family in ("qwen2_moe", "qwen3_next", "qwen3_5_moe"),
        expert_bias=family == "gpt_oss",
        q_lora_rank=int(text.get("q_lora_rank") or 0) if mla else 0,
        kv_lora_rank=int(text.get("kv_lora_rank") or 0),
        qk_nope_head_dim=int(text.get("qk_nope_head_dim") or 0),
        qk_rope_head_dim=int(text.get("qk_rope_head_dim") or 0),
        v_head_dim=int(text.get("v_head_dim") or head_dim),
        index_heads=int(text.get("index_n_heads") or 0) if mla else 0,
        index_head_dim=int(text.get("index_head_dim") or 0) if mla else 0,
        quantization=read_quantization(quantized),
        kv_cache_dtype=announced_kv_dtype(quantized),
        other_parameters=vision_parameters(config, hidden),
        declared_groups=(),
        source=source,
        notes=(),
    )


def text_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """The decoder's own keys, spelt as Llama spells them; nested configs are opened.

    Raises:
        InputError: nothing in it says how many layers there are.
    """
    inner: Mapping[str, Any] = config
    for key in _NESTED:
        nested = inner.get(key)
        if isinstance(nested, Mapping):
            inner = {**{k: v for k, v in config.items() if k not in _NESTED}, **nested}
    text = dict(inner)
    for name, others in _SPELLINGS.items():
        if text.get(name) is None:
            for other in others:
                if text.get(other) is not None:
                    text[name] = text[other]
                    break
    blocks = text.get("layers_block_type")
    if blocks and set(blocks) <= set(_NEMOTRON_BLOCKS):
        text["hybrid_override_pattern"] = "".join(_NEMOTRON_BLOCKS[block] for block in blocks)
    if text.get("num_hidden_layers") is None and (pattern := text.get("hybrid_override_pattern")):
        text["num_hidden_layers"] = len([letter for letter in pattern if letter in "M*-E"])
    if text.get("num_hidden_layers") is None and text.get("layer_types"):
        text["num_hidden_layers"] = len(text["layer_types"])
    return text


def _indexer_bytes(text: Mapping[str, Any]) -> int:
    """The key of the sparse-attention indexer: fp8 values and one float32 scale for 128 of them."""
    size = int(text.get("index_head_dim") or 0)
    return size + -(-size // 128) * 4 if text.get("index_n_heads") else 0


def _size(config: Mapping[str, Any], key: str, source: str) -> int:
    value = config.get(key)
    if value is None:
        raise InputError(
            "missing from the model's config",
            field=key,
            source=source or None,
            hint="it is needed to count bytes",
        )
    try:
        number = int(value)
    except (TypeError, ValueError):
        number = 0
    if number <= 0 or number != float(value):
        raise InputError("must be a positive whole number", field=key, value=value, source=source or None)
    return number


def _head_dim(text: Mapping[str, Any], hidden: int, heads: int, source: str) -> int:
    if text.get("head_dim"):
        return _size(text, "head_dim", source)
    if text.get("kv_lora_rank"):
        return int(text.get("qk_nope_head_dim") or 0) + int(text.get("qk_rope_head_dim") or 0)
    if hidden % heads:
        raise InputError(
            f"hidden_size {hidden} is no multiple of {heads} heads",
            field="head_dim",
            source=source or None,
            hint="state head_dim; it cannot be derived",
        )
    return hidden // heads


def _kv_heads(text: Mapping[str, Any], heads: int, source: str) -> int:
    if text.get("num_key_value_heads"):
        return _size(text, "num_key_value_heads", source)
    if text.get("multi_query") and not text.get("new_decoder_architecture"):
        return 1
    return heads


def _default_width(family: str, hidden: int) -> int:
    return 4 * hidden if family in ("falcon", "gpt2", "gpt_bigcode", "bloom", "mpt") else 0


def _expert_width(text: Mapping[str, Any], width: int) -> int:
    return int(text.get("moe_intermediate_size") or text.get("expert_ffn_hidden_size") or width)


def _shared_width(text: Mapping[str, Any], family: str, width: int, expert_width: int) -> int:
    if stated := text.get("shared_expert_intermediate_size") or text.get("shared_intermediate_size"):
        return int(stated)
    shared = int(text.get("n_shared_experts") or text.get("num_shared_experts") or 0)
    each = int(text.get("moe_shared_expert_intermediate_size") or text.get("share_expert_dim") or expert_width)
    if shared:
        return shared * each
    if family == "llama4":
        return expert_width
    return width if text.get("enable_moe_block") else 0  # Gemma 4 keeps its dense block beside the experts


def _tied(config: Mapping[str, Any], text: Mapping[str, Any], family: str) -> bool:
    for source in (config, text):
        if source.get("tie_word_embeddings") is not None:
            return bool(source["tie_word_embeddings"])
    return family in _TIED_BY_DEFAULT


def _attention_bias(text: Mapping[str, Any], family: str) -> bool:
    if text.get("attention_bias") is not None and family not in ("qwen2", "qwen2_moe"):
        return bool(text["attention_bias"])
    return family in ("qwen2", "qwen2_moe", "qwen2_vl", "qwen2_5_vl", "opt", "gpt2", "qwen")


def _learned_positions(text: Mapping[str, Any], family: str) -> int:
    positions = int(text.get("max_position_embeddings") or 0)
    return positions + 2 if family == "opt" else positions if family == "gpt2" else 0


def declared_group(entry: Mapping[str, Any], kv_heads: int, head_dim: int) -> KvGroup:
    """One entry of ``kv_groups:``.

    Raises:
        InputError: an unknown key or attention, or a window where there is none.
    """
    known = {"attention", "layers", "window", "num_key_value_heads", "head_dim", "value_head_dim"}
    if unknown := set(entry) - known:
        raise InputError(
            "unknown key of a cache group",
            field="kv_groups",
            value=sorted(unknown)[0],
            hint=", ".join(sorted(known)),
        )
    attention = entry.get("attention", "full")
    if attention not in ("full", "sliding_window", "chunked_local", "mla"):
        raise InputError(
            "unknown attention",
            field="kv_groups.attention",
            value=attention,
            hint="full, sliding_window, chunked_local, mla",
        )
    window = int(entry.get("window") or 0)
    if (window > 0) != (attention in ("sliding_window", "chunked_local")):
        raise InputError(f"{attention} layers and window do not go together", field="kv_groups.window", value=window)
    layers = entry.get("layers", 1)
    if isinstance(layers, bool) or not isinstance(layers, int) or layers < 1:
        raise InputError("must be a positive whole number", field="kv_groups.layers", value=layers)
    heads = int(entry.get("num_key_value_heads") or kv_heads)
    size = int(entry.get("head_dim") or head_dim)
    value_size = 0 if attention == "mla" else int(entry.get("value_head_dim") or size)
    return KvGroup(attention, layers, window, heads, size, value_size)
