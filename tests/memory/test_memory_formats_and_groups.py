"""Bytes of cache formats, and how layers share blocks."""

from __future__ import annotations

import pytest

from kvplan.catalog import load_model
from kvplan.errors import InputError
from kvplan.memory import blocks_per_request, bytes_per_block, cache_groups, kv_bytes_per_token
from kvplan.memory.kv_dtype import kv_format


@pytest.mark.parametrize(
    ("dtype", "head_bytes"),
    [  # one side of a head of 128
        ("auto", 256),
        ("float32", 512),
        ("bf16", 256),
        ("fp8", 128),
        ("fp8_e5m2", 128),
        ("fp8_per_token_head", 132),
        ("int8", 132),
        ("int4", 68),
        ("nvfp4", 72),
        ("q8_0", 136),
        ("q4_0", 72),
    ],
)
def test_formats_carry_their_scales(dtype: str, head_bytes: int) -> None:
    assert kv_format(dtype, "bfloat16").side_bytes(128) == head_bytes
    assert kv_bytes_per_token(load_model("llama-3.1-8b"), dtype) == 32 * 8 * 2 * head_bytes


def test_engines_differ_in_int8() -> None:
    assert kv_format("int8", "float16", "trtllm").side_bytes(128) == 128
    assert kv_format("int4", "float16", "lmdeploy").side_bytes(128) == 68


@pytest.mark.parametrize(
    ("dtype", "bytes_a_layer"), [("auto", 1152), ("fp8", 576), ("fp8_ds_mla", 656), ("nvfp4_ds_mla", 352)]
)
def test_latent_caches(dtype: str, bytes_a_layer: int) -> None:
    assert kv_bytes_per_token(load_model("deepseek-v3"), dtype) == 61 * bytes_a_layer


def test_sparse_attention_keeps_an_indexers_key_and_packs_fp8() -> None:
    """DeepSeek-V3.2: 656 bytes a token and 132 for the indexer."""
    model = load_model({"base": "deepseek-v3", "index_n_heads": 64, "index_head_dim": 128})
    assert kv_bytes_per_token(model, "fp8") == 61 * (656 + 132)
    assert kv_bytes_per_token(model) == 61 * (1152 + 132)


def test_formats_that_do_not_fit_are_refused() -> None:
    with pytest.raises(InputError, match="unknown KV cache type"):
        kv_format("fp9", "bfloat16")
    with pytest.raises(InputError, match="MLA models only"):
        kv_bytes_per_token(load_model("llama-3.1-8b"), "fp8_ds_mla")
    with pytest.raises(InputError, match="whole number of bytes"):
        kv_format("nvfp4", "bfloat16").side_bytes(72)


def groups_of(name: str, **options: int | bool) -> list[tuple[str, int, int]]:
    groups = cache_groups(load_model(name), kv_format("auto", "bfloat16"), **options)  # type: ignore[arg-type]
    return [(group.attention, group.layers, group.block_size) for group in groups]


def test_one_kind_is_one_group() -> None:
    assert groups_of("llama-3.1-8b") == [("full", 32, 16)]
    assert groups_of("mistral-7b") == [("sliding_window", 32, 16)]


def test_kinds_are_dealt_into_groups_of_the_smallest() -> None:
    assert groups_of("gemma-3-27b") == [
        ("full", 10, 16),
        *[("sliding_window", 9, 16)] * 4,
        *[("sliding_window", 8, 16)] * 2,
    ]
    assert groups_of("llama-4-scout") == [("full", 12, 16), *[("chunked_local", 12, 16)] * 3]


def test_kinds_of_nearly_equal_size_share_the_larger() -> None:
    """13 full and 12 window layers make two groups, not three: padding one layer is cheaper (vLLM's 1.5)."""
    base = {"base": "gpt-oss-20b", "num_hidden_layers": 25, "layer_types": ["full_attention", "sliding_attention"] * 13}
    model = load_model(base)
    groups = cache_groups(model, kv_format("auto", "bfloat16"))
    assert [group.layers for group in groups] == [13, 12]
    assert bytes_per_block(groups) == 13 * groups[0].page_bytes


def test_a_smaller_page_holds_more_tokens() -> None:
    """Gemma 4: 4 heads of 512 against 16 of 256: half the bytes a token, so twice the tokens a block."""
    assert groups_of("gemma-4-31b") == [("full", 10, 32), *[("sliding_window", 10, 16)] * 5]


def test_a_state_decides_the_block_size() -> None:
    """vllm 40691: Qwen3.5-27B runs with blocks of 784 tokens, a state a page."""
    assert groups_of("qwen3.5-27b") == [("full", 16, 784), *[("state_space", 16, 784)] * 3]
    groups = cache_groups(load_model("qwen3.5-27b"), kv_format("auto", "bfloat16"))
    assert blocks_per_request(groups, 32768, 16384) == 42 + 3
    cached = cache_groups(load_model("qwen3.5-27b"), kv_format("auto", "bfloat16"), prefix_caching_of_states=True)
    assert blocks_per_request(cached, 32768, 16384) == 42 + 6


def test_without_the_hybrid_manager_windows_are_full_length() -> None:
    """vllm 39254."""
    assert groups_of("gemma-3-27b", hybrid=False) == [("full", 62, 16)]


@pytest.mark.parametrize(("length", "blocks"), [(1, 2), (128, 9), (8192, 513), (131_072, 521)])
def test_a_window_is_admitted_with_what_is_in_flight(length: int, blocks: int) -> None:
    """ceil(min(window - 1 + in flight, length) / 16) + 1, window 128 and 8,192 tokens in flight."""
    window = cache_groups(load_model("gpt-oss-20b"), kv_format("auto", "bfloat16"))[1]
    assert window.blocks_per_request(length, 8192) == blocks


def test_groups_named_outright_stay_as_they_are() -> None:
    groups = [{"attention": "full", "layers": 1}, *[{"attention": "sliding_window", "window": 64, "layers": 1}] * 2]
    found = cache_groups(load_model({"kv_groups": groups}), kv_format("auto", "bfloat16"), block_size=16)
    assert [(group.attention, group.window, group.layers) for group in found] == [
        ("full", 0, 1),
        ("sliding_window", 64, 1),
        ("sliding_window", 64, 1),
    ]
