"""What would work where a plan does not, and how little memory a stated load needs."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from kvplan.errors import InfeasibleError, InputError
from kvplan.memory.groups import blocks_per_request
from kvplan.memory.parallel import tensor_parallel_problem
from kvplan.memory.plan import MemoryPlan, replan
from kvplan.memory.pool import fraction_for

_GIB = 2**30
_MOST_GPUS = 64


@dataclass(frozen=True)
class Advice:
    """The nearest settings that start, each alone; None where none does."""

    tensor_parallel_size: int | None
    max_model_len: int | None
    gpu_memory_utilization: float | None
    num_gpus: int | None
    """GPUs in all where tensor parallelism alone does not reach (tensor x pipeline)."""
    pipeline_parallel_size: int | None

    def sentence(self) -> str:
        """One line for a person."""
        ways = []
        if self.tensor_parallel_size is not None:
            ways.append(f"tensor_parallel_size {self.tensor_parallel_size}")
        elif self.num_gpus is not None:
            ways.append(f"{self.num_gpus} GPUs (pipeline_parallel_size {self.pipeline_parallel_size})")
        if self.max_model_len:
            ways.append(f"max_model_len {self.max_model_len}")
        if self.gpu_memory_utilization is not None:
            ways.append(f"gpu_memory_utilization {self.gpu_memory_utilization:g}")
        if not ways:
            return f"nothing within {_MOST_GPUS} of these GPUs would start it; use a larger GPU or a smaller checkpoint"
        return "what would start: " + ", or ".join(ways)


def advise(plan: MemoryPlan) -> Advice:
    """The smallest change of each kind that starts this plan's server.

    The tensor-parallel size also divides heads, vocabulary and widths; the length is that of this plan's
    pool; the utilization is rounded up to a hundredth.
    """
    size = smallest_tensor_parallel(plan)
    if any(problem.kind == "tensor_parallel" for problem in plan.problems):
        return Advice(size, None, None, None, None)
    pipeline = None if size is not None else _smallest_pipeline(plan)
    length = plan.longest_max_model_len
    return Advice(
        size,
        length if 0 < length < plan.max_model_len else None,
        utilization_that_starts(plan),
        None if pipeline is None else plan.tensor_parallel_size * pipeline,
        pipeline,
    )


def require_feasible(plan: MemoryPlan) -> MemoryPlan:
    """``plan`` itself, if the engine would start.

    Raises:
        InfeasibleError: it would not; the message says why, the hint which settings would.
    """
    if plan.feasible:
        return plan
    raise InfeasibleError(plan.problems[0].message, hint=advise(plan).sentence())


def smallest_tensor_parallel(plan: MemoryPlan) -> int | None:
    """The smallest tensor-parallel size that is possible for the model and starts; larger than this plan's, unless
    this plan's cannot be split so at all."""
    impossible = any(problem.kind == "tensor_parallel" for problem in plan.problems)
    for size in range(1 if impossible else plan.tensor_parallel_size + 1, _MOST_GPUS + 1):
        if tensor_parallel_problem(plan.model, size) is None and replan(plan, tensor_parallel_size=size).feasible:
            return size
    return None


def _smallest_pipeline(plan: MemoryPlan) -> int | None:
    for stages in range(plan.pipeline_parallel_size + 1, plan.model.num_hidden_layers + 1):
        if stages * plan.tensor_parallel_size > 2 * _MOST_GPUS:
            return None
        if replan(plan, pipeline_parallel_size=stages).feasible:
            return stages
    return None


def utilization_that_starts(plan: MemoryPlan) -> float | None:
    """The smallest fraction, in hundredths, at which one request of max_model_len fits; None if 1.0 is too
    little."""
    blocks = plan.blocks_per_request + (1 if plan.has_null_block else 0)
    most = max(
        fraction_for(
            plan.defaults,
            total=plan.total_bytes,
            needed_pool=blocks * rank.bytes_per_block,
            weights=rank.weights_bytes,
            non_torch=rank.non_torch_bytes,
            activation=rank.activation_bytes,
            cuda_graphs=rank.cuda_graphs_bytes,
        )
        for rank in plan.ranks
    )
    fraction = ceil(most * 100) / 100
    return fraction if fraction <= 1 else None


@dataclass(frozen=True)
class JustEnough:
    """The pool for a stated load: what to set so that the rest of the GPU stays free.

    ``num_gpu_blocks`` counts the null block; ``kv_cache_memory_bytes`` is one GPU's; ``fits``: it is no more
    than what the plan leaves for the cache.
    """

    requests: int
    length: int
    blocks_per_request: int
    num_gpu_blocks: int
    kv_cache_memory_bytes: int
    gpu_memory_utilization: float
    fits: bool


def just_enough(plan: MemoryPlan, requests: int, length: int) -> JustEnough:
    """Blocks and bytes for ``requests`` concurrent sequences of ``length`` tokens each.

    Raises:
        InputError: a number below 1, or a length beyond max_model_len.
    """
    if requests < 1:
        raise InputError("must be at least 1", field="for_requests", value=requests)
    if not 1 <= length <= plan.max_model_len:
        raise InputError(f"must lie between 1 and max_model_len {plan.max_model_len}", field="at_length", value=length)
    each = blocks_per_request(plan.cache_groups, length, plan.in_flight_tokens)
    blocks = requests * each + (1 if plan.has_null_block else 0)
    needed = blocks * plan.bytes_per_block
    fraction = fraction_for(
        plan.defaults,
        total=plan.total_bytes,
        needed_pool=needed,
        weights=plan.weights_bytes,
        non_torch=plan.non_torch_bytes,
        activation=plan.activation_bytes,
        cuda_graphs=plan.cuda_graphs_bytes,
    )
    return JustEnough(requests, length, each, blocks, needed, fraction, needed <= max(0, plan.available_bytes))
