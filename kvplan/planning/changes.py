"""The changes a diagnosis tries: what each is called, what it overrides, what it leaves as it was."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

Overrides = dict[str, Any]

QUALITY = "Quality may suffer, by model and task. That is not simulated: measure it before you rely on it."


@dataclass(frozen=True)
class Change:
    """One counterfactual.

    ``relaxes`` names the constraint it loosens: allocation, prefixes, bytes, memory, sequences, tokens,
    batching, compute, bandwidth. A ``what_if`` cannot be bought or pasted; it only tells what binds.
    """

    key: str
    relaxes: str
    label: str
    overrides: Overrides = field(hash=False)
    what: str
    unchanged: str
    flags: str = ""
    risk: str = ""
    what_if: bool = False
    needs: str = ""
    """Key of the change it builds on: tried for a cause only once that one is made."""


RELAXATION = 8
"""How far a what-if loosens a limit: the pool, the sequences, the token budget."""

SIZED_BY_MEMORY = ("max_model_len", "max_num_seqs", "max_num_batched_tokens")
"""Settings whose defaults depend on the GPU's memory: a what-if about memory must hold them."""

QUANTIZED = (("fp8", "FP8"), ("int8_per_token_head", "INT8"), ("int4_per_token_head", "4-bit"))


@dataclass(frozen=True)
class Deployed:
    """What a run was: the scenario as given and, flat, its ``settings`` with every default filled in."""

    scenario: Mapping[str, Any]
    settings: Mapping[str, Any]
    pool_bytes: int
    blocks: int
    total_bytes: int

    @property
    def pool_in_blocks(self) -> bool:
        return (self.scenario.get("cache") or {}).get("num_gpu_blocks_override") is not None

    @property
    def pool_given(self) -> bool:
        cache = self.scenario.get("cache") or {}
        return self.pool_in_blocks or cache.get("kv_cache_memory_bytes") is not None

    def same_bytes(self) -> Overrides:
        """A pool given in blocks stays the same bytes when the bytes of a block change."""
        if not self.pool_in_blocks:
            return {}
        return {"num_gpu_blocks_override": None, "kv_cache_memory_bytes": self.pool_bytes}


def changes_for(scenario: Mapping[str, Any], run: Mapping[str, Any]) -> list[Change]:
    """What can be tried on a deployment.

    Args:
        scenario: ``summary["scenario"]``.
        run: its entry of ``summary["runs"]``.
    """
    plan = run["memory"]["plan"]
    deployed = Deployed(
        scenario,
        run["settings"],
        plan["kv_cache_bytes"],
        run["memory"]["plan"]["num_gpu_blocks"],
        plan["total_bytes"],
    )
    return [
        *_allocation(deployed),
        *_prefixes(deployed),
        *_quantization(deployed),
        *_limits(deployed),
        *_memory(deployed),
        *_step(deployed),
    ]


def _allocation(deployed: Deployed) -> list[Change]:
    settings = deployed.settings
    if settings["layout"] == "contiguous":
        return [
            Change(
                "paged",
                "allocation",
                "Paged blocks, not contiguous extents",
                {"cache": {"layout": "paged", "enable_prefix_caching": False}},
                "Gives a sequence blocks as it grows, so nothing is reserved or lost in holes.",
                "the bytes of a token, or the time of a step.",
                "any engine with a paged KV cache (vLLM, SGLang, TensorRT-LLM)",
            )
        ]
    size = settings["block_size"]
    other = 16 if size > 16 else 32
    return [
        Change(
            "block_size",
            "allocation",
            f"Block size {other}",
            {"cache": {"block_size": other, **deployed.same_bytes()}},
            "Small blocks leave less of a sequence's last one empty; large ones mean shorter block tables.",
            "the bytes of a token.",
            f"--block-size {other}",
        )
    ]


def _prefixes(deployed: Deployed) -> list[Change]:
    if deployed.settings["enable_prefix_caching"]:
        return []
    paged = deployed.settings["layout"] == "paged"
    return [
        Change(
            "prefix_caching",
            "prefixes",
            "Prefix caching" if paged else "Prefix caching on paged blocks",
            {"cache": {"layout": "paged", "enable_prefix_caching": True}},
            "Keeps and computes a prefix that several requests begin with once.",
            "anything for prompts that share no beginning, or for generated tokens.",
            "--enable-prefix-caching",
            needs="" if paged else "paged",
        )
    ]


def _quantization(deployed: Deployed) -> list[Change]:
    now = deployed.settings["kv_cache_dtype"]
    if now not in ("auto", "bfloat16", "float16", "float32"):
        return []
    found = []
    for dtype, name in QUANTIZED:
        overrides: Overrides = {"cache": {"kv_cache_dtype": dtype, **deployed.same_bytes()}}
        found.append(
            Change(
                dtype,
                "bytes",
                f"{name} KV cache",
                overrides,
                "Stores a token's K and V in fewer bytes: the pool holds more tokens, a step reads less.",
                "holes and reservations, which stay the same share of the pool; the weights.",
                f"--kv-cache-dtype {dtype}",
                QUALITY,
            )
        )
    return found


def _limits(deployed: Deployed) -> list[Change]:
    settings = deployed.settings
    found = []
    if (deployed.scenario.get("scheduler") or {}).get("batching") == "static":
        found.append(
            Change(
                "continuous",
                "batching",
                "Continuous batching",
                {"scheduler": {"batching": "continuous"}},
                "Lets a request join as soon as another ends, not when the longest of its batch does.",
                "what fits in memory at once.",
                "any engine with continuous batching (vLLM, SGLang, TensorRT-LLM)",
            )
        )
    seqs, tokens = settings["max_num_seqs"], settings["max_num_batched_tokens"]
    return [
        *found,
        Change(
            "max_num_seqs",
            "sequences",
            f"max_num_seqs {4 * seqs}",
            {"scheduler": {"max_num_seqs": 4 * seqs}},
            "Lets more sequences run at once where memory allows.",
            "memory: what does not fit still waits.",
            f"--max-num-seqs {4 * seqs}",
        ),
        Change(
            "max_num_batched_tokens",
            "tokens",
            f"max_num_batched_tokens {4 * tokens}",
            {"scheduler": {"max_num_batched_tokens": 4 * tokens}},
            "Lets a step compute more prompt tokens, so prompts are through in fewer steps.",
            "how many tokens fit in memory; decoding waits longer beside larger prefills.",
            f"--max-num-batched-tokens {4 * tokens}",
        ),
    ]


def _memory(deployed: Deployed) -> list[Change]:
    found = []
    utilization = deployed.settings["gpu_memory_utilization"]
    if utilization < 0.945 and not deployed.pool_given:
        found.append(
            Change(
                "gpu_memory_utilization",
                "memory",
                "gpu_memory_utilization 0.95",
                {"cache": {"gpu_memory_utilization": 0.95}},
                "Gives the pool memory that was left to others.",
                "the bytes of a token; and leaves less for what else runs on the GPU.",
                "--gpu-memory-utilization 0.95",
                "Less headroom for spikes.",
            )
        )
    ranks = 2 * deployed.settings["tensor_parallel_size"]
    found.append(
        Change(
            "gpus",
            "memory",
            "One GPU more" if ranks == 2 else f"{ranks} GPUs for {ranks // 2}",
            {"parallel": {"tensor_parallel_size": ranks}, "cache": deployed.same_bytes()},
            "Splits weights, heads and KV over twice the GPUs; each reads half as much a step.",
            "holes and reservations; a layer now waits for an all-reduce.",
            f"--tensor-parallel-size {ranks}",
        )
    )
    blocks = deployed.blocks * RELAXATION
    found.append(
        Change(
            "unlimited_pool",
            "memory",
            f"{RELAXATION} times the pool",
            {
                "gpu": {**_gpu(deployed), "memory_bytes": deployed.total_bytes + RELAXATION * deployed.pool_bytes},
                "cache": {"num_gpu_blocks_override": blocks, "kv_cache_memory_bytes": None},
                "scheduler": {key: deployed.settings[key] for key in SIZED_BY_MEMORY},
            },
            "As if memory were no object: how much memory costs this trace.",
            "the sequence limit, the token budget, or the time of a step.",
            what_if=True,
        )
    )
    return found


def _step(deployed: Deployed) -> list[Change]:
    timing = deployed.scenario.get("timing")
    if not (timing == "roofline" or (isinstance(timing, Mapping) and timing.get("roofline") is not None)):
        return []
    from kvplan.catalog.gpu import load_gpu

    gpu = load_gpu(deployed.scenario["gpu"])
    base = _gpu(deployed)
    return [
        Change(
            "compute",
            "compute",
            "Twice the compute",
            {"gpu": {**base, "bf16_flops": 2 * gpu.bf16_flops, "fp8_flops": 2 * gpu.fp8_flops}},
            "As if the GPU computed twice as fast.",
            "memory, or what it reads a second.",
            what_if=True,
        ),
        Change(
            "bandwidth",
            "bandwidth",
            "Twice the memory bandwidth",
            {"gpu": {**base, "hbm_bytes_per_s": 2 * gpu.hbm_bytes_per_s}},
            "As if the GPU read its memory twice as fast.",
            "how much fits into it.",
            what_if=True,
        ),
    ]


def _gpu(deployed: Deployed) -> dict[str, Any]:
    """The deployment's GPU as a mapping, to change a fact of."""
    given = deployed.scenario["gpu"]
    if isinstance(given, Mapping):
        return {key: value for key, value in given.items() if key != "memory_gib"} | _memory_bytes(given)
    return {"base": given, "name": given}


def _memory_bytes(given: Mapping[str, Any]) -> dict[str, int]:
    gib = given.get("memory_gib")
    return {} if gib is None else {"memory_bytes": round(float(gib) * 2**30)}
