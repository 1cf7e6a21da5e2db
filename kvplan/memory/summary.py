"""A plan as plain data: the figures a person or a program reads, in GiB and per GPU."""

from __future__ import annotations

from typing import Any

from kvplan.memory.advice import advise
from kvplan.memory.overrides import GIB
from kvplan.memory.plan import MemoryPlan
from kvplan.memory.ranks import RankMemory
from kvplan.memory.uncertainty import expected_error


def plan_summary(plan: MemoryPlan) -> dict[str, Any]:
    """``kvplan memory --json``: the tightest rank's figures, then every rank's, then what follows from them.

    GiB are 2^30 bytes of one GPU. ``kv_cache_gib`` is the pool (negative where the rest does not fit).
    """
    error = expected_error(plan)
    summary: dict[str, Any] = {
        "total_gib": plan.total_bytes / GIB,
        "requested_gib": plan.requested_bytes / GIB,
        **_rank(plan, plan.ranks[0]),
        "kv_cache_size_tokens": plan.kv_cache_size_tokens,
        "max_concurrency": plan.max_concurrency,
        "usable_blocks": plan.usable_blocks,
        "blocks_per_request": plan.blocks_per_request,
        "tokens_by_blocks": plan.tokens_by_blocks,
        "tokens_by_concurrency": plan.tokens_by_concurrency,
        "expected_error_gib": error.gib,
        "expected_error_basis": error.words,
        "feasible": plan.feasible,
        "problems": [problem.message for problem in plan.problems],
        "model": plan.model.name,
        "gpu": plan.gpu.name,
        "engine": plan.engine,
        "version": plan.version,
        "settings": {
            "tensor_parallel_size": plan.tensor_parallel_size,
            "pipeline_parallel_size": plan.pipeline_parallel_size,
            "block_size": plan.block_size,
            "kv_cache_dtype": plan.kv_cache_dtype,
            "gpu_memory_utilization": plan.gpu_memory_utilization,
            "max_model_len": plan.max_model_len,
            "max_num_seqs": plan.max_num_seqs,
            "max_num_batched_tokens": plan.max_num_batched_tokens,
        },
        "origins": {term.name: term.origin for term in plan.terms},
        "cache_groups": [
            {
                "attention": group.attention,
                "layers": group.layers,
                "window": group.window,
                "block_size": group.block_size,
                "page_bytes": group.page_bytes,
                "blocks_per_request": group.blocks_per_request(plan.max_model_len, plan.in_flight_tokens),
            }
            for group in plan.cache_groups
        ],
        "ranks": [_rank(plan, rank) | {"stage": rank.stage, "layers": rank.layers} for rank in plan.ranks],
        "notes": list(plan.notes),
    }
    summary["num_gpu_blocks"] = plan.num_gpu_blocks
    if plan.feasible or plan.flags.num_gpu_blocks_override or plan.flags.kv_cache_memory_bytes:
        summary["kv_cache_gib"] = plan.kv_cache_bytes / GIB
    if not plan.feasible:
        summary["would_start"] = vars(advise(plan))
    return summary


def _rank(plan: MemoryPlan, rank: RankMemory) -> dict[str, Any]:
    return {
        "weights_gib": rank.weights_bytes / GIB,
        "non_torch_gib": rank.non_torch_bytes / GIB,
        "activation_gib": rank.activation_bytes / GIB,
        "cuda_graphs_gib": rank.cuda_graphs_bytes / GIB,
        "kv_cache_gib": rank.available_bytes / GIB,
        "kv_bytes_per_token": rank.kv_bytes_per_token,
        "bytes_per_block": rank.bytes_per_block,
        "num_gpu_blocks": rank.num_gpu_blocks,
    }
