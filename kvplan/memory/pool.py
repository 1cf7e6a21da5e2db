"""From the terms to the pool: four engines mean four things by the same fraction."""

from __future__ import annotations

from kvplan.memory.defaults import EngineDefaults


def pool_bytes(
    defaults: EngineDefaults,
    *,
    total: int,
    requested: int,
    fraction: float,
    weights: int,
    non_torch: int,
    activation: int,
    cuda_graphs: int,
) -> int:
    """Bytes left for the KV cache on one rank; negative where the rest does not fit.

    vLLM: total x f, minus everything else (graphs only since 0.21). SGLang: what was free before loading,
    times f, minus the weights; graphs and activations live in the rest. TensorRT-LLM: what everything else
    leaves, times f.
    LMDeploy: what is free once the weights are loaded, times f.
    """
    if defaults.engine == "sglang":
        return int((total - non_torch) * fraction) - weights
    if defaults.engine == "trtllm":
        left = total - weights - non_torch - activation - cuda_graphs
        return int(left * fraction) if left > 0 else left
    if defaults.engine == "lmdeploy":
        left = total - weights - non_torch
        return int(left * fraction) if left > 0 else left
    charged = cuda_graphs if defaults.graphs_charged else 0
    return requested - weights - non_torch - activation - charged


def count_blocks(defaults: EngineDefaults, pool: int, bytes_per_block: int) -> int:
    """Blocks of a pool: rounded down, except by TensorRT-LLM, which rounds up."""
    if pool <= 0 or bytes_per_block <= 0:
        return 0
    if defaults.engine == "trtllm":
        return -(-pool // bytes_per_block)
    return pool // bytes_per_block


def fraction_for(
    defaults: EngineDefaults,
    *,
    total: int,
    needed_pool: int,
    weights: int,
    non_torch: int,
    activation: int,
    cuda_graphs: int,
) -> float:
    """The fraction at which the pool is just ``needed_pool`` bytes; above 1 where no fraction reaches it."""
    if defaults.engine == "sglang":
        return (needed_pool + weights) / (total - non_torch)
    if defaults.engine in ("trtllm", "lmdeploy"):
        others = weights + non_torch + (activation + cuda_graphs if defaults.engine == "trtllm" else 0)
        return needed_pool / (total - others) if total > others else 2.0
    charged = cuda_graphs if defaults.graphs_charged else 0
    return (needed_pool + weights + non_torch + activation + charged) / total
