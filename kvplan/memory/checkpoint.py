"""The exact bytes of a checkpoint, from the tables of contents of its ``*.safetensors`` files.

A file begins with the length of its header (8 bytes, little endian) and the header: a JSON object from each
tensor's name to its type, shape and place. Nothing else of the file is read.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from kvplan.catalog import ModelConfig
from kvplan.errors import InputError
from kvplan.memory.parallel import heads_per_rank, stage_layers
from kvplan.memory.weights import rotary_table_bytes, weights_bytes

_HEADER_LIMIT = 100 * 2**20
_BITS = {"F64": 64, "I64": 64, "U64": 64, "F32": 32, "I32": 32, "U32": 32, "F16": 16, "BF16": 16, "I16": 16, "U16": 16}
_LAYER = re.compile(r"(?:^|\.)(?:layers|h|blocks)\.(\d+)\.")
_FIRST = ("embed_tokens", "wte", "word_embeddings", "embed_positions", "wpe", "vision", "visual", "multi_modal")
_LAST = ("lm_head", "model.norm", "ln_f", "final_layer")
_KV = ("k_proj", "v_proj")
_WHOLE = ("norm", "router", "mlp.gate.", "kv_a_proj", "q_a_proj", "gate.weight", "e_score", "rotary", "indexer")


@dataclass(frozen=True)
class Tensor:
    """One tensor of a checkpoint."""

    name: str
    shape: tuple[int, ...]
    size: int

    @property
    def layer(self) -> int | None:
        match = _LAYER.search(self.name)
        return None if match is None or self.name.startswith(("vision", "visual")) else int(match[1])


def checkpoint_bytes(
    path: str | Path, model: ModelConfig, tensor_parallel_size: int = 1, pipeline_parallel_size: int = 1, rank: int = 0
) -> int:
    """Bytes of the weights on one rank: the checkpoint's tensors, split as an engine splits them, and the rotary table.

    Args:
        path: a ``.safetensors`` file, a ``*.safetensors.index.json``, or the folder that holds them.

    An index alone knows only the whole size: it is exact on one GPU, and divided as the config's weights are on more.

    Raises:
        InputError: nothing readable there, or a header that is not one.
    """
    files, total = _files(Path(path))
    if not files:
        whole = weights_bytes(model) - rotary_table_bytes(model)
        part = weights_bytes(model, tensor_parallel_size, pipeline_parallel_size, rank) - rotary_table_bytes(model)
        return round(total * part / whole) + rotary_table_bytes(model)
    stages = stage_layers(model.num_hidden_layers, pipeline_parallel_size)
    held = sum(
        _share(tensor, model, tensor_parallel_size)
        for file in files
        for tensor in read_header(file)
        if _on_stage(tensor, stages[rank], rank, len(stages), model)
    )
    return round(held) + rotary_table_bytes(model)


def read_header(path: Path) -> Iterator[Tensor]:
    """The tensors of one ``.safetensors`` file.

    Raises:
        InputError: not such a file, or cut short.
    """
    try:
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            if not 2 <= length <= _HEADER_LIMIT:
                raise InputError("no safetensors header", source=str(path), value=length)
            text = file.read(length)
            header = json.loads(text)
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", source=str(path)) from None
    except ValueError:
        raise InputError("the safetensors header is cut short or not JSON", source=str(path)) from None
    if len(text) < length or not isinstance(header, dict):
        raise InputError("the safetensors header is cut short or no mapping", source=str(path))
    for name, entry in header.items():
        if name != "__metadata__":
            yield _tensor(name, entry, path)


def _tensor(name: str, entry: Any, path: Path) -> Tensor:
    try:
        shape = tuple(int(size) for size in entry["shape"])
        start, end = entry["data_offsets"]
        bits = _BITS.get(entry["dtype"], 8)
    except (TypeError, KeyError, ValueError):
        raise InputError("a tensor without dtype, shape and data_offsets", field=name, source=str(path)) from None
    size = int(end) - int(start)
    if bits > 8 and size != prod(shape) * bits // 8:
        raise InputError("a tensor's bytes do not match its shape", field=name, source=str(path), value=size)
    return Tensor(name, shape, size)


def _files(path: Path) -> tuple[list[Path], int]:
    """Shards whose headers can be read, or none and the size that an index states."""
    if path.is_dir():
        shards = sorted(path.glob("*.safetensors"))
        if shards:
            return shards, 0
        indexes = sorted(path.glob("*.safetensors.index.json"))
        if not indexes:
            raise InputError("holds no *.safetensors and no index", field="safetensors", source=str(path))
        path = indexes[0]
    if path.suffix != ".json":
        return [path], 0
    try:
        index = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", source=str(path)) from None
    except ValueError:
        raise InputError("not JSON", source=str(path)) from None
    if not isinstance(index, Mapping) or not isinstance(index.get("weight_map"), Mapping):
        raise InputError("no safetensors index: weight_map is missing", source=str(path))
    shards = sorted({path.parent / str(name) for name in index["weight_map"].values()})
    if all(shard.exists() for shard in shards):
        return shards, 0
    total = (index.get("metadata") or {}).get("total_size")
    if not isinstance(total, (int, float)):
        raise InputError("the index states no total_size and its shards are not here", source=str(path))
    return [], int(total)


def _on_stage(tensor: Tensor, stage: range, rank: int, stages: int, model: ModelConfig) -> bool:
    layer = tensor.layer
    if layer is not None:  # layers beyond the decoder predict several tokens; engines do not load them
        return layer in stage
    if any(word in tensor.name for word in _LAST):
        return rank == stages - 1 and not ("lm_head" in tensor.name and model.tie_word_embeddings)
    tied = model.tie_word_embeddings and rank == stages - 1
    return rank == 0 or (tied and any(word in tensor.name for word in _FIRST[:3]))


def _share(tensor: Tensor, model: ModelConfig, tp: int) -> float:
    if len(tensor.shape) < 2 or any(word in tensor.name for word in _WHOLE) or tp == 1:
        one_dimensional = len(tensor.shape) < 2 and not tensor.name.endswith("_proj.bias")
        return tensor.size if tp == 1 or one_dimensional or len(tensor.shape) >= 2 else tensor.size / tp
    if any(word in tensor.name for word in _KV) and model.num_key_value_heads:
        return tensor.size * heads_per_rank(model.num_key_value_heads, tp) / model.num_key_value_heads
    return tensor.size / tp
