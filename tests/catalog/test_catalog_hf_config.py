"""Reading config.json in the forms that model families write it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kvplan.catalog import load_model
from kvplan.errors import InputError
from kvplan.memory import kv_bytes_per_token

LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "num_hidden_layers": 4,
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "vocab_size": 1000,
    "max_position_embeddings": 4096,
}


def kinds(**changes: Any) -> list[tuple[str, int, int]]:
    model = load_model({**LLAMA, **changes})
    return [(group.attention, group.layers, group.window) for group in model.kv_groups]


def test_plain_attention() -> None:
    assert kinds() == [("full", 4, 0)]


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"model_type": "mistral", "sliding_window": 64}, [("sliding_window", 4, 64)]),
        ({"model_type": "mistral", "sliding_window": None}, [("full", 4, 0)]),
        ({"model_type": "gemma2", "sliding_window": 64}, [("full", 2, 0), ("sliding_window", 2, 64)]),
        (
            {"model_type": "gemma3_text", "sliding_window": 64, "num_hidden_layers": 7},
            [("full", 1, 0), ("sliding_window", 6, 64)],
        ),
        ({"sliding_window": 64, "sliding_window_pattern": 4}, [("full", 1, 0), ("sliding_window", 3, 64)]),
        ({"model_type": "qwen2", "sliding_window": 64, "use_sliding_window": False}, [("full", 4, 0)]),
        (
            {"model_type": "qwen2", "sliding_window": 64, "use_sliding_window": True, "max_window_layers": 3},
            [("full", 3, 0), ("sliding_window", 1, 64)],
        ),
        (
            {"layer_types": ["sliding_attention", "full_attention"] * 2, "sliding_window": 32},
            [("full", 2, 0), ("sliding_window", 2, 32)],
        ),
        ({"model_type": "llama4_text", "attention_chunk_size": 128}, [("full", 1, 0), ("chunked_local", 3, 128)]),
    ],
)
def test_windows_as_families_state_them(changes: dict[str, Any], expected: list[tuple[str, int, int]]) -> None:
    assert kinds(**changes) == expected


def test_one_of_four_layers_attends_in_a_hybrid_with_an_interval() -> None:
    """The faults of LMCache 3080 and continuum 4156: every layer was counted."""
    model = load_model("qwen3.5-27b")
    assert [(group.attention, group.layers) for group in model.kv_groups] == [("full", 16), ("state_space", 48)]
    assert kv_bytes_per_token(model) == 65_536


def test_head_dim_is_read_and_only_derived_where_it_divides() -> None:
    """LMCache 2248: GLM-4.5's head_dim is 128, hidden_size / heads is 53.3."""
    assert load_model("glm-4.5").head_dim == 128
    assert load_model({**LLAMA, "head_dim": 128}).head_dim == 128
    assert load_model(LLAMA).head_dim == 32
    with pytest.raises(InputError, match="head_dim"):
        load_model({**LLAMA, "hidden_size": 250})


def test_multi_query_and_multi_head() -> None:
    assert load_model({**LLAMA, "num_key_value_heads": None}).num_key_value_heads == 8
    falcon = {**LLAMA, "model_type": "falcon", "num_key_value_heads": None, "multi_query": True}
    assert load_model(falcon).num_key_value_heads == 1


def test_mla_is_seen_by_its_fields_and_not_by_a_name() -> None:
    """SimAI 268: only one model name was recognised."""
    mla = {**LLAMA, "model_type": "something", "kv_lora_rank": 512, "qk_rope_head_dim": 64, "qk_nope_head_dim": 128}
    model = load_model({**mla, "v_head_dim": 128, "q_lora_rank": None})
    assert [(group.attention, group.head_dim) for group in model.kv_groups] == [("mla", 576)]
    assert kv_bytes_per_token(model) == 4 * 576 * 2


def test_a_multimodal_config_nests_its_decoder() -> None:
    """llm-d-planner 205: a vision model with MLA was off by 87% because the nested keys were not read."""
    nested = {"architectures": ["X"], "text_config": {**LLAMA, "kv_lora_rank": 512, "qk_rope_head_dim": 64}}
    assert kv_bytes_per_token(load_model(nested)) == 4 * 576 * 2
    with_vision = {**nested, "vision_config": {"hidden_size": 64, "num_hidden_layers": 2, "intermediate_size": 128}}
    assert load_model(with_vision).other_parameters > 0


def test_layers_with_heads_of_their_own() -> None:
    """Rapid-MLX 1423: Gemma 4's global layers have 4 heads of 512, its local ones 16 of 256."""
    groups = {group.attention: group for group in load_model("gemma-4-31b").kv_groups}
    assert (groups["full"].num_key_value_heads, groups["full"].head_dim) == (4, 512)
    assert (groups["sliding_window"].num_key_value_heads, groups["sliding_window"].head_dim) == (16, 256)


def test_layers_that_share_anothers_cache_have_none() -> None:
    model = load_model({**LLAMA, "num_kv_shared_layers": 3})
    assert [group.layers for group in model.kv_groups] == [1]


@pytest.mark.parametrize("missing", ["num_hidden_layers", "hidden_size", "num_attention_heads", "vocab_size"])
def test_a_missing_key_is_named(missing: str) -> None:
    """hf-mem 47: name what is missing instead of failing somewhere later."""
    config = {key: value for key, value in LLAMA.items() if key != missing}
    with pytest.raises(InputError, match=missing):
        load_model(config)


@pytest.mark.parametrize("value", [0, -1, "many", 2.5])
def test_impossible_sizes_are_refused(value: Any) -> None:
    with pytest.raises(InputError, match="num_hidden_layers"):
        load_model({**LLAMA, "num_hidden_layers": value})


def test_a_cache_layout_that_is_not_modelled_is_refused() -> None:
    with pytest.raises(InputError, match="compressed sparse attention"):
        load_model({**LLAMA, "compress_ratios": [0, 4, 128]})


def test_a_config_file_and_its_folder_are_the_same_model(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("\ufeff" + json.dumps(LLAMA), encoding="utf-8")
    assert load_model(tmp_path) == load_model(tmp_path / "config.json")
    assert load_model(str(tmp_path / "config.json")).num_hidden_layers == 4


def test_a_file_that_is_no_json_is_placed(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text('{"num_hidden_layers": 4,\n oops}')
    with pytest.raises(InputError, match=r"config\.json:2:2"):
        load_model(path)
    with pytest.raises(InputError, match="cannot be read"):
        load_model(tmp_path / "none.json")


def test_modelopt_states_its_quantization_beside_the_config(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    stated = {"quantization": {"quant_algo": "NVFP4", "group_size": 16, "exclude_modules": ["lm_head"]}}
    (tmp_path / "hf_quant_config.json").write_text(json.dumps(stated))
    quantization = load_model(tmp_path).quantization
    assert quantization is not None
    assert (quantization.method, quantization.bits) == ("nvfp4", 4)


def test_a_mapping_may_refine_a_catalogue_model() -> None:
    model = load_model({"base": "llama-3.1-8b", "num_hidden_layers": 16})
    assert (model.num_hidden_layers, model.num_key_value_heads) == (16, 8)


def test_cache_groups_named_outright() -> None:
    groups = [{"attention": "full", "layers": 1}, {"attention": "sliding_window", "window": 64, "layers": 2}]
    model = load_model({"kv_groups": groups})
    assert [(g.attention, g.layers, g.window) for g in model.kv_groups] == [("full", 1, 0), ("sliding_window", 2, 64)]
    assert "nominal" in model.notes[0]
    stated = load_model({"kv_groups": groups, "num_key_value_heads": 8, "head_dim": 128})
    assert stated.notes == ()
    assert kv_bytes_per_token(stated) == 3 * 2 * 8 * 128 * 2


@pytest.mark.parametrize(
    "groups",
    [
        [],
        "full",
        [{"attention": "fulll", "layers": 1}],
        [{"attention": "full", "layers": 0}],
        [{"attention": "full", "layers": 1, "window": 64}],
        [{"attention": "sliding_window", "layers": 1}],
        [{"attention": "full", "layers": 1, "widow": 64}],
    ],
)
def test_groups_that_mean_nothing_are_refused(groups: Any) -> None:
    with pytest.raises(InputError, match="kv_groups"):
        load_model({"kv_groups": groups})
