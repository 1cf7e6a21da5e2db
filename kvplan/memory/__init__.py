"""Bytes: weights, activations, cache; and the block count an engine would print."""

from kvplan.memory.advice import Advice, JustEnough, advise, just_enough, require_feasible
from kvplan.memory.defaults import EngineDefaults, engine_defaults
from kvplan.memory.groups import CacheGroup, blocks_per_request, bytes_per_block, cache_groups
from kvplan.memory.overrides import MemoryOverrides, load_overrides, save_overrides
from kvplan.memory.parameters import active_params, total_params
from kvplan.memory.plan import MemoryPlan, kv_bytes_per_token, plan_memory, replan
from kvplan.memory.problems import Problem
from kvplan.memory.ranks import RankMemory, Term
from kvplan.memory.weights import weights_bytes

__all__ = [
    "Advice",
    "CacheGroup",
    "EngineDefaults",
    "JustEnough",
    "MemoryOverrides",
    "MemoryPlan",
    "Problem",
    "RankMemory",
    "Term",
    "active_params",
    "advise",
    "blocks_per_request",
    "bytes_per_block",
    "cache_groups",
    "engine_defaults",
    "just_enough",
    "kv_bytes_per_token",
    "load_overrides",
    "plan_memory",
    "replan",
    "require_feasible",
    "save_overrides",
    "total_params",
    "weights_bytes",
]
