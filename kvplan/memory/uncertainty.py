"""How far a predicted pool may lie from the real one, from how far each kind of term has been seen to lie."""

from __future__ import annotations

from dataclasses import dataclass

from kvplan.memory.overrides import GIB
from kvplan.memory.plan import MemoryPlan

# Largest difference seen between this package and vLLM's logs (H100, 0.11 to 0.19; tests/memory/test_predictions.py).
_WEIGHTS_SHARE = 0.005
_ACTIVATION_SHARE = 0.10
_NON_TORCH_GIB = 0.20
_NON_TORCH_PARALLEL_GIB = 0.60
_GRAPHS_SHARE = 0.50


@dataclass(frozen=True)
class ExpectedError:
    """``gib`` either way on the pool, and in words how well this case is covered by measurements."""

    gib: float
    words: str


def expected_error(plan: MemoryPlan) -> ExpectedError:
    """The errors of all terms that were estimated, added up as if they were independent. Given terms have none."""
    given = plan.flags.overrides
    if plan.flags.num_gpu_blocks_override is not None or plan.flags.kv_cache_memory_bytes is not None:
        return ExpectedError(0.0, "the pool is given")
    parts = []
    if given.weights_bytes is None:
        parts.append(_WEIGHTS_SHARE * plan.weights_bytes / GIB)
    if given.activation_bytes is None:
        parts.append(_ACTIVATION_SHARE * plan.activation_bytes / GIB)
    if given.non_torch_bytes is None:
        parts.append(_NON_TORCH_PARALLEL_GIB if plan.tensor_parallel_size > 1 else _NON_TORCH_GIB)
    if given.cuda_graphs_bytes is None and plan.defaults.graphs_charged:
        parts.append(_GRAPHS_SHARE * plan.cuda_graphs_bytes / GIB)
    return ExpectedError(sum(part * part for part in parts) ** 0.5, _coverage(plan))


def _coverage(plan: MemoryPlan) -> str:
    if plan.engine != "vllm":
        return "this engine's activations and buffers are taken from vLLM's: check against a log of yours"
    if not plan.gpu.name.startswith("h100"):
        return "measured on H100s only; another GPU's buffers may differ"
    if plan.defaults.graphs_charged:
        return "measured on H100s with vLLM 0.11 to 0.19; later releases' activations and graphs are extrapolated"
    return "measured on H100s with vLLM 0.11 to 0.19"
