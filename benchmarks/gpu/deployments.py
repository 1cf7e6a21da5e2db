"""Llama 3.1 8B as the engine parts of a session run it; a tiny model in a dry run."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.gpu.measure import Bench

if TYPE_CHECKING:
    from kvplan.engine.engine import EngineOptions
    from kvplan.engine.weights import Weights
    from kvplan.scenario import Scenario

POOL_TOKENS = 98_304
"""12 GiB of bf16 KV beside 15 GiB of weights: fits a card of 40 GB."""
TINY: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 32, "intermediate_size": 48,
    "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "vocab_size": 97,
    "max_position_embeddings": 512, "torch_dtype": "float32",
}  # fmt: skip


@dataclass(frozen=True)
class Case:
    """One deployment of the session."""

    layout: str
    kv_cache_dtype: str
    block_size: int

    @property
    def name(self) -> str:
        return f"{self.layout}-{self.kv_cache_dtype}-{self.block_size}"

    def profile(self, bench: Bench) -> Path:
        """Where the session keeps its profile."""
        return bench.path.parent / f"profile-{self.name}.json"

    def leaves(self, bench: Bench) -> dict[str, Any]:
        """Of its scenario, by dotted key."""
        tokens = 512 if bench.dry_run else POOL_TOKENS
        return {
            "model": TINY if bench.dry_run else "llama-3.1-8b",
            "cache.layout": self.layout,
            "cache.kv_cache_dtype": self.kv_cache_dtype,
            "cache.block_size": self.block_size,
            "cache.num_gpu_blocks_override": tokens // self.block_size + 1,
            "scheduler.max_model_len": 64 if bench.dry_run else 8192,
            "scheduler.max_num_seqs": 4 if bench.dry_run else 64,
            "scheduler.max_num_batched_tokens": 32 if bench.dry_run else 2048,
        }


def cases(bench: Bench) -> Iterator[Case]:
    """What is missed most first: both KV types and both layouts at vLLM's block size, then the other block sizes."""
    yield Case("paged", "auto", 16)
    yield Case("paged", "fp8", 16)
    yield Case("contiguous", "auto", 16)
    if not bench.dry_run:
        for block_size in (8, 32, 64, 128):
            for dtype in ("auto", "fp8"):
                yield Case("paged", dtype, block_size)


class Deployer:
    """Scenarios and options for the device; the model's weights once for all cases."""

    def __init__(self, bench: Bench) -> None:
        from kvplan.engine.engine import EngineOptions

        self.bench = bench
        self.options: EngineOptions = EngineOptions(str(bench.device), "torch" if bench.dry_run else "auto")
        self._weights: Weights | None = None

    def scenario(self, case: Case) -> Scenario:
        from kvplan.calibration.deployment import calibrated_scenario

        return calibrated_scenario(case.leaves(self.bench), self.bench.device)

    def weights(self, scenario: Scenario) -> Weights:
        from kvplan.engine.run import deploy
        from kvplan.engine.weights import random_weights

        if self._weights is None:
            self._weights = random_weights(deploy(scenario)[1], self.bench.device)
        return self._weights
