"""Exact weights from the headers of safetensors files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kvplan.catalog import ModelConfig, load_model
from kvplan.errors import InputError
from kvplan.memory import weights_bytes
from kvplan.memory.checkpoint import checkpoint_bytes, read_header
from kvplan.memory.weights import rotary_table_bytes

TINY = load_model(
    {
        "model_type": "llama",
        "num_hidden_layers": 2,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": 256,
        "max_position_embeddings": 128,
        "tie_word_embeddings": False,
    }
)


def tensors(model: ModelConfig) -> dict[str, tuple[int, ...]]:
    hidden, width, kv = model.hidden_size, model.intermediate_size, model.num_key_value_heads * model.head_dim
    found: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (model.vocab_size, hidden)}
    for layer in range(model.num_hidden_layers):
        start = f"model.layers.{layer}"
        found |= {
            f"{start}.self_attn.q_proj.weight": (hidden, hidden),
            f"{start}.self_attn.k_proj.weight": (kv, hidden),
            f"{start}.self_attn.v_proj.weight": (kv, hidden),
            f"{start}.self_attn.o_proj.weight": (hidden, hidden),
            f"{start}.mlp.gate_proj.weight": (width, hidden),
            f"{start}.mlp.up_proj.weight": (width, hidden),
            f"{start}.mlp.down_proj.weight": (hidden, width),
            f"{start}.input_layernorm.weight": (hidden,),
            f"{start}.post_attention_layernorm.weight": (hidden,),
        }
    return found | {"model.norm.weight": (hidden,), "lm_head.weight": (model.vocab_size, hidden)}


def write(path: Path, shapes: dict[str, tuple[int, ...]]) -> None:
    """A file with a true header and no data behind it: only the header is read."""
    header, offset = {}, 0
    for name, shape in shapes.items():
        size = 2
        for side in shape:
            size *= side
        header[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [offset, offset + size]}
        offset += size
    text = json.dumps({"__metadata__": {"format": "pt"}, **header}).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text)


@pytest.mark.parametrize(("tp", "pp"), [(1, 1), (2, 1), (4, 1), (1, 2), (2, 2)])
def test_a_checkpoint_and_the_config_agree_on_every_rank(tmp_path: Path, tp: int, pp: int) -> None:
    write(tmp_path / "model.safetensors", tensors(TINY))
    for rank in range(pp):
        assert checkpoint_bytes(tmp_path, TINY, tp, pp, rank) == weights_bytes(TINY, tp, pp, rank)


def test_shards_and_their_index(tmp_path: Path) -> None:
    shapes = tensors(TINY)
    names = list(shapes)
    write(tmp_path / "a.safetensors", {name: shapes[name] for name in names[:9]})
    write(tmp_path / "b.safetensors", {name: shapes[name] for name in names[9:]})
    index = {
        "metadata": {"total_size": 123_456},
        "weight_map": {name: ("a" if place < 9 else "b") + ".safetensors" for place, name in enumerate(names)},
    }
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    whole = checkpoint_bytes(tmp_path, TINY)
    assert whole == checkpoint_bytes(tmp_path / "model.safetensors.index.json", TINY) == weights_bytes(TINY)
    (tmp_path / "b.safetensors").unlink()  # without its shards the index knows the whole size
    assert checkpoint_bytes(tmp_path / "model.safetensors.index.json", TINY) == 123_456 + rotary_table_bytes(TINY)


def test_layers_that_predict_further_tokens_are_not_loaded(tmp_path: Path) -> None:
    shapes = tensors(TINY)
    write(tmp_path / "model.safetensors", shapes | {"model.layers.2.mlp.up_proj.weight": (4096, 64)})
    assert checkpoint_bytes(tmp_path, TINY) == weights_bytes(TINY)


@pytest.mark.parametrize(
    "data", [b"", b"\x01", (2**40).to_bytes(8, "little"), (50).to_bytes(8, "little") + b"{}", b"\x02\0\0\0\0\0\0\0[]"]
)
def test_what_is_no_header_is_refused(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(data)
    with pytest.raises(InputError, match="header"):
        list(read_header(path))


def test_an_empty_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="and no index"):
        checkpoint_bytes(tmp_path, TINY)
