"""Bytes: weights, activations, cache; and the block count an engine would print."""

from kvplan.memory.defaults import EngineDefaults, engine_defaults
from kvplan.memory.groups import CacheGroup, blocks_per_request, bytes_per_block, cache_groups
from kvplan.memory.overrides import MemoryOverrides, load_overrides, save_overrides
from kvplan.memory.parameters import active_params, total_params
from kvplan.memory.plan import MemoryPlan, RankMemory, Term, kv_bytes_per_token, plan_memory
from kvplan.memory.weights import weights_bytes

__all__ = [
    "CacheGroup",
    "EngineDefaults",
    "MemoryOverrides",
    "MemoryPlan",
    "RankMemory",
    "Term",
    "active_params",
    "blocks_per_request",
    "bytes_per_block",
    "cache_groups",
    "engine_defaults",
    "kv_bytes_per_token",
    "load_overrides",
    "plan_memory",
    "save_overrides",
    "total_params",
    "weights_bytes",
]
