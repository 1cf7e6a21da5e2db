"""The sum on one rank: what each term is, where it comes from, what is left for the cache."""

from __future__ import annotations

from dataclasses import dataclass

from kvplan.catalog import ModelConfig
from kvplan.memory.activation import Estimate, activation_peak, cuda_graphs, non_torch
from kvplan.memory.defaults import EngineDefaults, parse_version
from kvplan.memory.flags import MemoryFlags, Settings
from kvplan.memory.groups import CacheGroup, bytes_per_block
from kvplan.memory.parallel import stage_layers
from kvplan.memory.pool import count_blocks, pool_bytes
from kvplan.memory.weights import weights_bytes

_LIKE_VLLM = (0, 33)  # whose estimates stand in for the other engines' activations


@dataclass(frozen=True)
class Term:
    """One line of the sum: bytes on one rank, and where the figure comes from."""

    name: str
    value: int
    origin: str


@dataclass(frozen=True)
class RankMemory:
    """The sum on one pipeline stage; its tensor-parallel ranks are alike.

    ``available_bytes`` is what is left for the cache, negative where the rest does not fit.
    ``num_gpu_blocks`` is what this stage alone could hold, the null block counted.
    """

    stage: int
    layers: int
    terms: tuple[Term, ...]
    available_bytes: int
    bytes_per_block: int
    kv_bytes_per_token: int
    num_gpu_blocks: int

    @property
    def weights_bytes(self) -> int:
        return self.term("weights")

    @property
    def non_torch_bytes(self) -> int:
        return self.term("non_torch")

    @property
    def activation_bytes(self) -> int:
        return self.term("activation")

    @property
    def cuda_graphs_bytes(self) -> int:
        return self.term("cuda_graphs")

    def term(self, name: str) -> int:
        """The bytes of one term by its name."""
        return next(term.value for term in self.terms if term.name == name)


def rank_memories(
    model: ModelConfig,
    flags: MemoryFlags,
    settings: Settings,
    defaults: EngineDefaults,
    groups: tuple[CacheGroup, ...],
    total: int,
    requested: int,
) -> tuple[RankMemory, ...]:
    """Every pipeline stage's sum, the tightest first."""
    stages = stage_layers(model.num_hidden_layers, flags.pipeline_parallel_size, flags.pp_layer_partition)
    ranks = [
        _rank(model, flags, settings, defaults, groups, total, requested, stage, layers)
        for stage, layers in enumerate(stages)
    ]
    return tuple(sorted(ranks, key=lambda rank: (rank.num_gpu_blocks, rank.available_bytes)))


def _rank(
    model: ModelConfig,
    flags: MemoryFlags,
    settings: Settings,
    defaults: EngineDefaults,
    groups: tuple[CacheGroup, ...],
    total: int,
    requested: int,
    stage: int,
    layers: range,
) -> RankMemory:
    terms = _terms(model, flags, settings, defaults, stage, layers)
    values = {term.name: term.value for term in terms}
    available = pool_bytes(
        defaults,
        total=total,
        requested=requested,
        fraction=settings.gpu_memory_utilization,
        weights=values["weights"],
        non_torch=values["non_torch"],
        activation=values["activation"],
        cuda_graphs=values["cuda_graphs"],
    )
    held = [group.on_stage(layers) for group in groups] if flags.pipeline_parallel_size > 1 else list(groups)
    block = bytes_per_block(held)
    pool = available if flags.kv_cache_memory_bytes is None else flags.kv_cache_memory_bytes
    return RankMemory(
        stage,
        len(layers),
        terms,
        available,
        block,
        sum(group.token_bytes for group in held),
        count_blocks(defaults, pool, block),
    )


def _terms(
    model: ModelConfig,
    flags: MemoryFlags,
    settings: Settings,
    defaults: EngineDefaults,
    stage: int,
    layers: range,
) -> tuple[Term, ...]:
    tp, pp, given = flags.tensor_parallel_size, flags.pipeline_parallel_size, flags.overrides
    version = parse_version(defaults.version) if defaults.engine == "vllm" else _LIKE_VLLM
    weights = Estimate(
        weights_bytes(model, tp, pp, stage, partition=flags.pp_layer_partition),
        "formula: the config's shapes",
    )
    peak = activation_peak(
        model,
        version,
        tensor_parallel_size=tp,
        pipeline_parallel_size=pp,
        stage=stage,
        max_num_batched_tokens=settings.max_num_batched_tokens,
        max_num_seqs=settings.max_num_seqs,
    )
    graphs = cuda_graphs(
        model,
        layers=len(layers),
        max_num_seqs=settings.max_num_seqs,
        max_num_batched_tokens=settings.max_num_batched_tokens,
        enforce_eager=flags.enforce_eager,
    )
    estimates = (
        ("weights", given.weights_bytes, weights),
        ("non_torch", given.non_torch_bytes, non_torch(version, tp, pp)),
        ("activation", given.activation_bytes, peak),
        ("cuda_graphs", given.cuda_graphs_bytes, graphs),
    )
    return tuple(
        Term(name, estimate.value, estimate.origin) if stated is None else Term(name, stated, given.origin)
        for name, stated, estimate in estimates
    )
