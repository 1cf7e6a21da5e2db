"""What `summary.json` says of one run. Definitions: DESIGN.md, section 3."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from kvplan.core.recorder import Record, gap_edges
from kvplan.metrics.percentiles import histogram_statistics, statistics
from kvplan.metrics.tables import SPLIT

if TYPE_CHECKING:
    import pandas as pd
    from numpy.typing import NDArray

    from kvplan.core.replica import Replica
    from kvplan.resolve import Deployment
    from kvplan.scenario import Scenario

GIB = 1 << 30

PLAN_TERMS = (
    "total_bytes",
    "requested_bytes",
    "weights_bytes",
    "non_torch_bytes",
    "activation_bytes",
    "cuda_graphs_bytes",
    "kv_cache_bytes",
    "bytes_per_block",
    "num_gpu_blocks",
)


def run_summary(
    name: str,
    scenario: Scenario,
    deployment: Deployment,
    replica: Replica,
    requests: pd.DataFrame,
    wall_s: float,
    warnings: list[str],
) -> dict[str, Any]:
    """One entry of ``runs``."""
    record = replica.record
    s = replica.core.scalars[0]
    finished = requests["status"] == "finished"
    latency = latencies(requests[finished], record)
    begin, end = _span(requests)
    span = end - begin
    met = slo_met(requests[finished], scenario.slo.model_dump(exclude_none=True))
    output_tokens = float((requests["output_tokens"] * requests["sequences"])[finished].sum())
    query, hit = int(s["query_tokens"]), int(s["hit_tokens"])
    return {
        "name": name,
        "settings": effective_settings(deployment),
        "memory": memory(deployment, replica),
        "concurrency": {
            "mean": _ratio(record.timeline["running"].sum(), record.timeline["busy_s"].sum()),
            "peak": int(record.timeline["running_max"].max()),
            "waiting_mean": _ratio(record.timeline["waiting"].sum(), record.timeline["busy_s"].sum()),
            "waiting_peak": int(record.timeline["waiting_max"].max()),
            "max_at_max_model_len": deployment.memory.max_concurrency,
        },
        "requests": {
            "total": len(requests),
            "finished": int(finished.sum()),
            "refused": int((requests["status"] == "refused").sum()),
            "unfinished": int((requests["status"] == "unfinished").sum()),
            "refused_reasons": _reasons(requests),
            "preemptions": int(s["preemptions"]),
            "swaps": int(s["swaps"]),
        },
        "latency": latency,
        "throughput": {
            "output_tokens_per_s": _ratio(output_tokens, span),
            "requests_per_s": _ratio(int(finished.sum()), span),
            "goodput_requests_per_s": _ratio(int(met.sum()), span),
        },
        "prefix_cache": {"query_tokens": query, "hit_tokens": hit, "hit_rate": _ratio(hit, query)},
        "timing": {
            "kind": deployment.timing.kind,
            "terms": [
                {"name": term.name, "value": term.value, "unit": term.unit, "source": term.source}
                for term in deployment.timing.terms
            ],
            "error": dict(deployment.timing.errors) or None,
            "decode_by_block_size": _by_block_size(deployment.timing.decode_by_block_size),
        },
        "span_s": span,
        "busy_s": float(record.timeline["busy_s"].sum()),
        "sim": {
            "steps": int(s["step"]),
            "steps_skipped": int(s["steps_skipped"]),
            "wall_s": wall_s,
            "requests_per_wall_s": _ratio(len(requests), wall_s),
        },
        "notes": [*deployment.notes, *warnings],
    }


def _by_block_size(points: NDArray[np.float64]) -> list[dict[str, float]] | None:
    """Measured decode attention of a step by block size; None where the profile holds one size only."""
    return [
        {"block_size": int(size), "decode_rows": int(rows), "decode_context": int(context), "seconds": seconds}
        for size, rows, context, seconds in points.tolist()
    ] or None


def memory(deployment: Deployment, replica: Replica) -> dict[str, Any]:
    """The pool and its split: time-weighted mean, and the moment when most was held."""
    plan, settings = deployment.memory, deployment.settings
    record = replica.record
    s = replica.core.scalars[0]
    total = settings.total_slots
    busy = float(record.timeline["busy_s"].sum())
    mean = {word: _ratio(float(record.timeline[word].sum()), busy * total) for word in SPLIT}
    peak = {word: _ratio(float(record.peak[word][0]), total) for word in SPLIT}
    ran = record.timeline["steps"] > 0
    largest = record.timeline["largest_free"][ran]
    slot_bytes = deployment.slot_bytes if settings.paged else plan.kv_bytes_per_token
    return {
        "pool_gib": total * slot_bytes / GIB,
        "num_gpu_blocks": plan.num_gpu_blocks if settings.paged else None,
        "block_size": plan.block_size,
        "kv_bytes_per_token": plan.kv_bytes_per_token,
        "kv_cache_size_tokens": plan.kv_cache_size_tokens,
        "mean": mean,
        "peak": peak,
        "peak_s": float(record.totals["peak_s"][0]),
        "largest_free_extent_gib": float(largest.mean()) * slot_bytes / GIB if len(largest) else 0.0,
        "shared_saved_fraction": _ratio(float(record.timeline["shared"].sum()), busy * total),
        "cow_copies": int(s["cow_copies"]),
        "grow_copies": int(s["grow_copies"]),
        "blocks_allocated": int(s["allocated_blocks"]),
        "plan": {term: int(getattr(plan, term)) for term in PLAN_TERMS},
    }


def latencies(finished: pd.DataFrame, record: Record) -> dict[str, Any]:
    """Of the requests that finished; the gaps between tokens from the recorder's histogram."""
    seconds = {word: statistics(finished[word].to_numpy(np.float64)) for word in ("queue_s", "ttft_s")}
    totals = record.totals[0]
    seconds["itl_s"] = histogram_statistics(
        record.gap_counts, gap_edges(), float(totals["gap_sum_s"]), float(totals["gap_max_s"])
    )
    for word in ("tpot_s", "e2e_s"):
        seconds[word] = statistics(finished[word].to_numpy(np.float64))
    normalized = finished["e2e_s"].to_numpy(np.float64) / finished["output_tokens"].to_numpy(np.float64)
    return {**seconds, "normalized_s_per_token": statistics(normalized)}


def slo_met(finished: pd.DataFrame, slo: dict[str, dict[str, float]]) -> np.ndarray:
    """Which requests kept the tightest bound of every promised metric. Without a promise all did.

    A bound on a percentile is a bound on each request here, as goodput counts requests one by one; bounds on
    ``itl_s`` are judged by the request's own mean gap.
    """
    met = np.ones(len(finished), bool)
    for metric, bounds in slo.items():
        if metric == "normalized_s_per_token":
            values = finished["e2e_s"].to_numpy() / finished["output_tokens"].to_numpy()
        else:
            values = finished["tpot_s" if metric == "itl_s" else metric].to_numpy()
        met &= ~(values > min(bounds.values()))  # NaN (one output token) breaks no bound
    return met


def effective_settings(deployment: Deployment) -> dict[str, Any]:
    """Every setting with the engine's defaults filled in, by vLLM's flag names."""
    settings, plan = deployment.settings, deployment.memory
    return {
        "layout": settings.layout,
        **({} if settings.paged else {"reservation": settings.reservation, "placement": settings.placement}),
        "block_size": settings.block_size,
        "kv_cache_dtype": plan.kv_cache_dtype,
        "enable_prefix_caching": settings.enable_prefix_caching,
        "gpu_memory_utilization": plan.gpu_memory_utilization,
        "max_model_len": settings.max_model_len,
        "max_num_seqs": settings.max_num_seqs,
        "max_num_batched_tokens": settings.max_num_batched_tokens,
        "enable_chunked_prefill": settings.enable_chunked_prefill,
        "async_scheduling": settings.async_scheduling,
        "tensor_parallel_size": plan.tensor_parallel_size,
        "pipeline_parallel_size": plan.pipeline_parallel_size,
    }


def _reasons(requests: pd.DataFrame) -> dict[str, int]:
    refused = requests.loc[requests["status"] == "refused", "reason"]
    return {str(reason): int(count) for reason, count in refused.value_counts().items() if count > 0}


def _span(requests: pd.DataFrame) -> tuple[float, float]:
    """From the first arrival to the last finish."""
    if not len(requests):
        return 0.0, 0.0
    begin = float(requests["arrival_s"].min())
    end = float(requests["finish_s"].max())
    return begin, end if np.isfinite(end) else begin


def _ratio(part: float, whole: float) -> float:
    return float(part) / float(whole) if whole else 0.0
