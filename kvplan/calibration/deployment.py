"""What is calibrated: a model on this machine, with the settings it will be served with."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from kvplan.calibration.validate import as_mapping, catalogued
from kvplan.engine.device_memory import device_memory
from kvplan.errors import InputError
from kvplan.scenario import Scenario

SMALLEST_POOL_BYTES, LARGEST_POOL_BYTES = 1 << 26, 1 << 31
POOL_SHARE = 0.25
"""Of the memory that a CPU's machine has free, for the pool, between those bounds, where the user gives no size."""
LONGEST_BY_DEFAULT = 8192
"""Tokens of a request, where the user gives no max_model_len: a model's own 131,072 would take an hour on a CPU."""


def calibrated_scenario(overrides: Mapping[str, Any], device: torch.device) -> Scenario:
    """A scenario of the given leaves, the machine filled in as its GPU.

    Raises:
        InputError: no model is named, or a leaf is refused.
    """
    leaves = dict(overrides)
    if leaves.get("model") is None:
        raise InputError("name the model to calibrate", field="--model", hint="a catalogue name or a config.json")
    leaves.setdefault("gpu", _machine(device))
    leaves.setdefault("requests", [{"arrival": 0.0, "prompt": 1, "output": 1}])
    given = {key: value for key, value in leaves.items() if value is not None}
    if device.type == "cpu" and not {"cache.num_gpu_blocks_override", "cache.kv_cache_memory_bytes"} & set(given):
        free = device_memory(device).free_bytes
        share = min(int(free * POOL_SHARE), LARGEST_POOL_BYTES)
        leaves["cache.kv_cache_memory_bytes"] = max(SMALLEST_POOL_BYTES, share)
    scenario = Scenario.build(as_mapping(leaves))
    if scenario.scheduler.max_model_len is not None:
        return scenario
    return Scenario.build(as_mapping({**leaves, "scheduler.max_model_len": _longest(scenario)}))


def _longest(scenario: Scenario) -> int:
    from kvplan.catalog import load_model

    own = load_model(scenario.model_source).max_position_embeddings
    return min(LONGEST_BY_DEFAULT, own) if own else LONGEST_BY_DEFAULT


def _machine(device: torch.device) -> Any:
    """The catalogue's name of a GPU; for a CPU, whose rates nothing here reads, its memory."""
    if device.type == "cuda":
        return catalogued(torch.cuda.get_device_name(device), "this machine")
    memory = max(device_memory(device).total_bytes, SMALLEST_POOL_BYTES)
    return {"name": "cpu", "memory_bytes": memory, "hbm_bytes_per_s": 1.0, "bf16_flops": 1.0}
