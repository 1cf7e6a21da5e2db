"""From the GPU's total to a block: where each byte of the device goes before a request is served."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from kvplan.report.runs import Run
from kvplan.report.shown import at, is_number, shown

TERMS = (
    ("total_bytes", "GPU memory, as the driver reports it", "+"),
    ("unrequested_bytes", "left to others (1 − gpu_memory_utilization)", "−"),
    ("weights_bytes", "weights", "−"),
    ("non_torch_bytes", "outside PyTorch: CUDA context, NCCL", "−"),
    ("activation_bytes", "activations at their peak", "−"),
    ("cuda_graphs_bytes", "CUDA graphs", "−"),
    ("kv_cache_bytes", "KV pool", "="),
)


@dataclass(frozen=True)
class Line:
    sign: str
    words: str
    shown: Markup
    share: float
    """Of the GPU's total, for the bar; 0 where unknown."""
    key: str


def plan_of(run: Run) -> tuple[Mapping[str, Any], str]:
    """The memory plan a run recorded, and where it stands in the summary; empty where it recorded none."""
    for place in ("memory.plan", "memory.ledger", "memory_plan"):
        plan = run.get(place)
        if isinstance(plan, Mapping):
            return plan, run.path(place)
    return {}, ""


def ledger(run: Run) -> list[Line]:
    """The terms that are known, in the order of the subtraction; empty where the run recorded no plan."""
    plan, place = plan_of(run)
    total = plan.get("total_bytes")
    lines = []
    for key, words, sign in TERMS:
        value, path = plan.get(key), f"{place}.{key}"
        if key == "unrequested_bytes" and is_number(total) and is_number(plan.get("requested_bytes")):
            value, path = total - plan["requested_bytes"], f"{place}.total_bytes - {place}.requested_bytes"
        if is_number(value):
            share = value / total if is_number(total) and total else 0.0
            lines.append(Line(sign, words, shown(value, path, "bytes"), share, key))
    return lines


def block_facts(run: Run) -> list[tuple[str, Markup]]:
    """From the pool down to one token."""
    plan, place = plan_of(run)
    facts = [("KV pool", shown(run.get("memory.pool_gib"), run.path("memory.pool_gib"), "gib"))]
    for key, words, kind in (
        ("bytes_per_block", "one block", "bytes"),
        ("block_size", "tokens a block", "count"),
        ("kv_cache_size_tokens", "tokens the pool holds", "count"),
    ):
        if is_number(plan.get(key)):
            facts.append((words, shown(plan[key], f"{place}.{key}", kind)))
    blocks, per_token = run.get("memory.num_gpu_blocks"), run.get("memory.kv_bytes_per_token")
    facts.append(("blocks, the null block included", shown(blocks, run.path("memory.num_gpu_blocks"), "count")))
    facts.append(("KV bytes a token, per GPU", shown(per_token, run.path("memory.kv_bytes_per_token"), "bytes")))
    at_length = at(run.values, "concurrency.max_at_max_model_len")
    facts.append(
        (
            "sequences of max_model_len that fit",
            shown(at_length, run.path("concurrency.max_at_max_model_len"), "number"),
        )
    )
    return facts
