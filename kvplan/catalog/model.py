"""Models by name, by ``config.json``, or by a mapping of its keys."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from kvplan.catalog.architecture import KvGroup, LayerKind, ModelConfig, Quantization, StateSpace
from kvplan.catalog.dtypes import canonical_dtype
from kvplan.catalog.hf_config import declared_group, from_hf_config
from kvplan.catalog.lookup import find, load_table
from kvplan.errors import InputError

__all__ = ["KvGroup", "LayerKind", "ModelConfig", "Quantization", "StateSpace", "load_model", "model_names"]

_NOMINAL_HEADS, _NOMINAL_HEAD_DIM = 1, 64


def model_names() -> tuple[str, ...]:
    """The catalogue's models, in its order."""
    return tuple(load_table("models.yaml"))


def load_model(ref: str | Path | Mapping[str, Any]) -> ModelConfig:
    """The model that ``ref`` means.

    Args:
        ref: a catalogue name or Hugging Face id; the path of a config.json or of the folder that holds one;
        or a
            mapping of config.json's keys, which may name its cache groups outright (``kv_groups``), or refine
            a catalogue model (``base: NAME`` and the keys that differ).

    Raises:
        InputError: unknown name (the nearest are listed), unreadable file, missing or contradictory keys.
    """
    if isinstance(ref, Mapping):
        return _from_mapping(ref)
    text = str(ref)
    if text.endswith(".json") or "/" in text or Path(text).is_dir():
        path = Path(text)
        if path.is_dir():
            path /= "config.json"
        if path.exists() or text.endswith(".json"):
            return _from_file(path)
    name, entry = find(load_table("models.yaml"), text, field="model")
    return from_hf_config(entry["config"], name=name, source=str(entry["source"]))


def _from_file(path: Path) -> ModelConfig:
    try:
        config = json.loads(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", field="model", source=str(path)) from None
    except json.JSONDecodeError as error:
        raise InputError(
            f"not JSON: {error.msg}", field="model", source=str(path), line=error.lineno, column=error.colno
        ) from None
    if not isinstance(config, Mapping):
        raise InputError("a config.json holds one object", field="model", source=str(path))
    name = str(config.get("_name_or_path") or "") or path.resolve().parent.name
    beside = path.with_name("hf_quant_config.json")
    if "quantization_config" not in config and beside.exists():  # how ModelOpt checkpoints say it
        config = {**config, "quantization_config": _modelopt(beside)}
    return from_hf_config(config, name=name, source=str(path))


def _modelopt(path: Path) -> dict[str, Any]:
    try:
        stated = json.loads(path.read_text(encoding="utf-8-sig"))["quantization"]
        return {"quant_method": "modelopt", "ignore": stated.get("exclude_modules"), **stated}
    except (OSError, ValueError, KeyError, TypeError):
        raise InputError("names no quantization", field="quantization", source=str(path)) from None


def _from_mapping(keys: Mapping[str, Any]) -> ModelConfig:
    config = dict(keys)
    groups = config.pop("kv_groups", None)
    name = str(config.pop("name", "") or "")
    if base := config.pop("base", None):
        base_name, entry = find(load_table("models.yaml"), str(base), field="model.base")
        config = {**entry["config"], **config}
        name = name or base_name
    if groups is None:
        return from_hf_config(config, name=name, source="given")
    return _with_groups(config, groups, name or "model")


def _with_groups(config: dict[str, Any], groups: Any, name: str) -> ModelConfig:
    """A model whose cache groups a person named; what else it is may be left out."""
    if not isinstance(groups, (list, tuple)) or not groups:
        raise InputError("a list of cache groups is needed", field="model.kv_groups", value=groups)
    notes: tuple[str, ...] = ()
    if not ("num_key_value_heads" in config and "head_dim" in config) and "hidden_size" not in config:
        if not all("num_key_value_heads" in group and "head_dim" in group for group in groups):
            notes = (
                f"the model names no heads: a slot is counted as {_NOMINAL_HEADS} KV head of {_NOMINAL_HEAD_DIM}, so "
                "bytes are nominal; blocks are exact where num_gpu_blocks_override sets them",
            )
        config.setdefault("num_key_value_heads", _NOMINAL_HEADS)
        config.setdefault("head_dim", _NOMINAL_HEAD_DIM)
    if "hidden_size" in config:
        model = from_hf_config({"num_hidden_layers": sum(int(g.get("layers", 1)) for g in groups), **config}, name=name)
        heads, size = model.num_key_value_heads, model.head_dim
        declared = tuple(declared_group(group, heads, size) for group in groups)
        return replace(model, declared_groups=declared, source="given")
    declared = tuple(
        declared_group(group, int(config["num_key_value_heads"]), int(config["head_dim"])) for group in groups
    )
    known = {
        "num_hidden_layers",
        "num_key_value_heads",
        "head_dim",
        "dtype",
        "torch_dtype",
        "max_position_embeddings",
    }
    if unknown := set(config) - known:
        raise InputError(
            "unknown key beside kv_groups",
            field="model",
            value=sorted(unknown)[0],
            hint="known: " + ", ".join(sorted(known)),
        )
    return ModelConfig(
        name=name,
        architecture="",
        model_type="",
        num_hidden_layers=sum(group.layers for group in declared),
        hidden_size=0,
        intermediate_size=0,
        num_attention_heads=0,
        num_key_value_heads=int(config["num_key_value_heads"]),
        head_dim=int(config["head_dim"]),
        vocab_size=0,
        max_position_embeddings=int(config.get("max_position_embeddings") or 0),
        dtype=canonical_dtype(config.get("dtype") or config.get("torch_dtype") or "bfloat16"),
        layers=(),
        declared_groups=declared,
        source="given",
        notes=notes,
    )
