"""Physically plausible results for the report's tests: a tiny token-slot replay in plain Python.

Not the simulator: a second, independent and deliberately simple one (one pool of slots, whole-prompt prefill,
first-fit extents or paged blocks, recompute preemption), so that the page is tested on numbers that add up
without the core being there. Every result has the columns and keys that DESIGN section 4 promises.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd

BINS = 256
PARTS = ("used", "reserved", "internal", "external", "cached", "free")


@dataclass
class Sequence:
    index: int
    prompt: int
    output: int
    done: int = 0
    """Tokens whose K and V are in the pool."""
    made: int = 0
    slots: list[int] = field(default_factory=list)
    """Paged: block numbers. Contiguous: [first slot, slots]."""


@dataclass
class Replay:
    """One run's frames."""

    name: str
    requests: pd.DataFrame
    timeline: pd.DataFrame
    memory_map: pd.DataFrame
    pool_slots: int
    block_size: int
    preemptions: int
    steps: int
    busy_s: float


def lengths(count: int, rate: float, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Arrivals (Poisson, ``rate`` a second), prompts and outputs (log-normal, chat-like)."""
    rng = np.random.default_rng(seed)
    arrival = np.cumsum(rng.exponential(1 / rate, count))
    prompt = np.clip(rng.lognormal(5.2, 0.9, count), 8, 1400).astype(int)
    output = np.clip(rng.lognormal(4.6, 0.7, count), 2, 600).astype(int)
    return arrival - arrival[0], prompt, output


class Pool:
    """Who owns which slot; ``block_size`` 0 means one first-fit extent of ``extent`` slots a request."""

    def __init__(self, slots: int, block_size: int, extent: int) -> None:
        self.slots, self.block, self.extent = slots, block_size, extent
        self.free_blocks = list(range(slots // block_size)) if block_size else []

    def holes(self, running: list[Sequence]) -> list[tuple[int, int]]:
        at, found = 0, []
        for first, size in sorted((s.slots[0], s.slots[1]) for s in running):
            if first > at:
                found.append((at, first - at))
            at = first + size
        return [*found, (at, self.slots - at)] if at < self.slots else found

    def admit(self, sequence: Sequence, running: list[Sequence]) -> bool:
        if self.block:
            need = -(-(sequence.prompt + sequence.made + 1) // self.block)
            if need > len(self.free_blocks):
                return False
            sequence.slots = [self.free_blocks.pop(0) for _ in range(need)]
            return True
        for first, size in self.holes(running):
            if size >= self.extent:
                sequence.slots = [first, self.extent]
                return True
        return False

    def grow(self, sequence: Sequence) -> bool:
        """Room for one token more."""
        if not self.block or sequence.done + 1 <= len(sequence.slots) * self.block:
            return True
        if not self.free_blocks:
            return False
        sequence.slots.append(self.free_blocks.pop(0))
        return True

    def release(self, sequence: Sequence) -> None:
        if self.block:
            self.free_blocks = sequence.slots[::-1] + self.free_blocks
        sequence.slots = []

    def split(self, running: list[Sequence], waiting: bool) -> dict[str, float]:
        used = sum(s.done for s in running)
        held = sum(len(s.slots) * self.block if self.block else s.slots[1] for s in running)
        coming = sum(min(s.prompt + s.output - 1 - s.done, self.held(s) - s.done) for s in running)
        free = self.slots - held
        largest = free if self.block else max((size for _, size in self.holes(running)), default=0)
        external = free if not self.block and waiting and free >= self.extent > largest else 0
        return {
            "used": used / self.slots,
            "reserved": coming / self.slots,
            "internal": (held - used - coming) / self.slots,
            "external": external / self.slots,
            "cached": 0.0,
            "free": (free - external) / self.slots,
            "largest_free_extent": largest / self.slots,
        }

    def held(self, sequence: Sequence) -> int:
        return len(sequence.slots) * self.block if self.block else sequence.slots[1]

    def picture(self, running: list[Sequence]) -> np.ndarray:
        """int64[BINS]: the request at each bin's first slot, -1 where free."""
        owner = np.full(self.slots, -1)
        for s in running:
            if self.block:
                for block in s.slots:
                    owner[block * self.block : (block + 1) * self.block] = s.index
            else:
                owner[s.slots[0] : s.slots[0] + s.slots[1]] = s.index
        return owner[(np.arange(BINS) * self.slots) // BINS]


def replay(
    name: str,
    arrival: np.ndarray,
    prompt: np.ndarray,
    output: np.ndarray,
    *,
    pool_slots: int = 16384,
    block_size: int = 16,
    extent: int = 2048,
    max_num_seqs: int = 64,
    bucket_s: float = 0.5,
) -> Replay:
    """Runs the trace to its end."""
    pool = Pool(pool_slots, block_size, extent)
    count = len(arrival)
    first_scheduled, first_token, finish = (np.full(count, np.nan) for _ in range(3))
    preempted = np.zeros(count, dtype=int)
    waiting: list[Sequence] = []
    running: list[Sequence] = []
    clock, at, steps, busy = 0.0, 0, 0, 0.0
    buckets: dict[int, dict[str, float]] = {}
    pictures: list[tuple[float, np.ndarray]] = []
    while at < count or waiting or running:
        while at < count and arrival[at] <= clock:
            waiting.append(Sequence(at, int(prompt[at]), int(output[at])))
            at += 1
        evicted = 0
        for s in list(running):
            while s in running and not pool.grow(s):
                victim = running.pop()
                pool.release(victim)
                victim.done = 0
                waiting.insert(0, victim)
                preempted[victim.index] += 1
                evicted += 1
        prefill = 0
        while waiting and not evicted and len(running) < max_num_seqs and pool.admit(waiting[0], running):
            s = waiting.pop(0)
            s.done = s.prompt + s.made - 1
            prefill += s.done
            if np.isnan(first_scheduled[s.index]):
                first_scheduled[s.index] = clock
            running.append(s)
        if not running:
            clock = float(arrival[at])
            continue
        seconds = 0.014 + 4e-5 * prefill + 6e-5 * len(running)
        split = pool.split(running, bool(waiting))
        row = buckets.setdefault(
            int(clock / bucket_s),
            dict.fromkeys(
                (
                    *PARTS,
                    "largest_free_extent",
                    "busy",
                    "steps",
                    "running",
                    "running_max",
                    "waiting",
                    "waiting_max",
                    "preemptions",
                    "output_tokens",
                    "prefill_tokens",
                    "allocated_max",
                ),
                0.0,
            ),
        )
        for key, value in split.items():
            row[key] += value * seconds
        row["busy"] += seconds
        row["steps"] += 1
        row["running"] += len(running) * seconds
        row["waiting"] += len(waiting) * seconds
        row["running_max"] = max(row["running_max"], len(running))
        row["waiting_max"] = max(row["waiting_max"], len(waiting))
        row["allocated_max"] = max(row["allocated_max"], split["used"] + split["reserved"] + split["internal"])
        row["preemptions"] += evicted
        row["output_tokens"] += len(running)
        row["prefill_tokens"] += prefill
        if not pictures or clock - pictures[-1][0] >= bucket_s:
            pictures.append((clock, pool.picture(running)))
        clock += seconds
        busy += seconds
        steps += 1
        for s in list(running):
            s.done += 1
            s.made += 1
            if np.isnan(first_token[s.index]):
                first_token[s.index] = clock
            if s.made == s.output:
                finish[s.index] = clock
                pool.release(s)
                running.remove(s)
    return Replay(
        name,
        _requests(name, arrival, prompt, output, first_scheduled, first_token, finish, preempted),
        _timeline(name, buckets, bucket_s),
        _map(name, pictures),
        pool_slots,
        block_size,
        int(preempted.sum()),
        steps,
        busy,
    )


def _requests(
    name: str,
    arrival: np.ndarray,
    prompt: np.ndarray,
    output: np.ndarray,
    scheduled: np.ndarray,
    first: np.ndarray,
    finish: np.ndarray,
    preempted: np.ndarray,
) -> pd.DataFrame:
    with np.errstate(invalid="ignore", divide="ignore"):
        tpot = np.where(output > 1, (finish - first) / (output - 1), np.nan)
    return pd.DataFrame(
        {
            "id": [f"r{index}" for index in range(len(arrival))],
            "arrival_s": arrival,
            "prompt_tokens": prompt,
            "output_tokens": output,
            "status": "finished",
            "reason": "",
            "first_scheduled_s": scheduled,
            "first_token_s": first,
            "finish_s": finish,
            "queue_s": scheduled - arrival,
            "ttft_s": first - arrival,
            "tpot_s": tpot,
            "e2e_s": finish - arrival,
            "preemptions": preempted,
            "cached_tokens": 0,
            "run": name,
        }
    )


def _timeline(name: str, buckets: dict[int, dict[str, float]], bucket_s: float) -> pd.DataFrame:
    rows = []
    for index, row in sorted(buckets.items()):
        mean = {key: row[key] / row["busy"] for key in (*PARTS, "largest_free_extent", "running", "waiting")}
        counts = {
            key: row[key]
            for key in (
                "steps",
                "running_max",
                "waiting_max",
                "preemptions",
                "output_tokens",
                "prefill_tokens",
                "allocated_max",
            )
        }
        rows.append(
            {
                "run": name,
                "t_s": index * bucket_s,
                "dt_s": bucket_s,
                "busy_s": row["busy"],
                **mean,
                **counts,
                "hit_tokens": 0,
            }
        )
    return pd.DataFrame(rows)


def _map(name: str, pictures: list[tuple[float, np.ndarray]]) -> pd.DataFrame:
    times = np.array([t for t, _ in pictures])
    return pd.DataFrame(
        {
            "run": name,
            "t_s": np.repeat(times, BINS),
            "address": np.tile(np.arange(BINS) / BINS, len(times)),
            "request": np.concatenate([owners for _, owners in pictures]),
        }
    )


def spread(values: pd.Series) -> dict[str, float | None]:
    """Mean and percentiles as the summary has them; None where nothing was measured."""
    known = values.dropna()
    if known.empty:
        return dict.fromkeys(("mean", "p50", "p90", "p95", "p99", "max"))
    return {
        "mean": float(known.mean()),
        **{f"p{q}": float(known.quantile(q / 100)) for q in (50, 90, 95, 99)},
        "max": float(known.max()),
    }


def run_summary(result: Replay, overrides: dict[str, Any]) -> dict[str, Any]:
    requests, timeline = result.requests, result.timeline
    weight = timeline["busy_s"] / timeline["busy_s"].sum()
    span = float(requests["finish_s"].max() - requests["arrival_s"].min())
    peak = timeline.loc[timeline["allocated_max"].idxmax()]
    per_token = 131072
    met = (requests["ttft_s"] <= 2.0) & ~(requests["tpot_s"] > 0.05)
    return {
        "name": result.name,
        "settings": {
            "layout": "paged" if result.block_size else "contiguous",
            "block_size": result.block_size or 16,
            "kv_cache_dtype": "auto",
            "enable_prefix_caching": False,
            "max_num_seqs": 64,
            **overrides,
        },
        "memory": {
            "pool_gib": result.pool_slots * per_token / 2**30,
            "num_gpu_blocks": result.pool_slots // max(result.block_size, 1) + 1,
            "kv_bytes_per_token": per_token,
            "mean": {part: float((timeline[part] * weight).sum()) for part in PARTS},
            "peak": {part: float(peak[part]) for part in PARTS},
            "largest_free_extent_gib": float((timeline["largest_free_extent"] * weight).sum())
            * result.pool_slots
            * per_token
            / 2**30,
            "shared_saved_fraction": 0.0,
            "cow_copies": 0,
        },
        "concurrency": {
            "mean": float((timeline["running"] * weight).sum()),
            "peak": int(timeline["running_max"].max()),
            "max_at_max_model_len": result.pool_slots / 2048,
        },
        "requests": {
            "total": len(requests),
            "finished": len(requests),
            "refused": 0,
            "refused_reasons": {},
            "preemptions": result.preemptions,
            "swaps": 0,
        },
        "latency": {
            **{key: spread(requests[key]) for key in ("queue_s", "ttft_s", "tpot_s", "e2e_s")},
            "itl_s": spread(requests["tpot_s"]),
            "normalized_s_per_token": spread(requests["e2e_s"] / requests["output_tokens"]),
        },
        "throughput": {
            "output_tokens_per_s": float(requests["output_tokens"].sum()) / span,
            "requests_per_s": len(requests) / span,
            "goodput_requests_per_s": float(met.sum()) / span,
        },
        "prefix_cache": {
            "query_tokens": int(requests["prompt_tokens"].sum()),
            "hit_tokens": 0,
            "hit_rate": 0.0,
        },
        "sim": {
            "steps": result.steps,
            "steps_skipped": 0,
            "wall_s": 0.5,
            "requests_per_wall_s": len(requests) / 0.5,
        },
    }


def results(
    count: int = 500, rate: float = 24.0, seed: int = 7, block_sizes: tuple[int, ...] = ()
) -> tuple[dict[str, Any], pd.DataFrame, pd.DataFrame, pd.DataFrame]:
    """(summary, requests, timeline, memory_map) of a paged base, a contiguous variant and a sweep."""
    arrival, prompt, output = lengths(count, rate, seed)
    plans: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
        ("base", {}, {}),
        ("contiguous", {"reservation": "max"}, {"block_size": 0}),
    ]
    plans += [(f"cache.block_size={size}", {}, {"block_size": size}) for size in block_sizes]
    done = [(replay(name, arrival, prompt, output, **options), overrides) for name, overrides, options in plans]
    frames = {
        kind: pd.concat([getattr(result, kind) for result, _ in done], ignore_index=True)
        for kind in ("requests", "timeline", "memory_map")
    }
    summary = {
        "schema_version": 1,
        "kvplan": "0.1.0",
        "scenario": {
            "model": "llama-3.1-8b",
            "gpu": "h100-sxm",
            "parallel": {"tensor_parallel_size": 1, "pipeline_parallel_size": 1, "data_parallel_size": 1},
            "cache": {
                "layout": "paged",
                "block_size": 16,
                "kv_cache_dtype": "auto",
                "gpu_memory_utilization": 0.92,
                "enable_prefix_caching": False,
            },
            "scheduler": {"max_model_len": 2048, "max_num_seqs": 64, "max_num_batched_tokens": 8192},
            "timing": "roofline",
            "engine": {"name": "vllm", "version": "0.33"},
            "slo": {"ttft_s": {"p99": 2.0}, "tpot_s": {"p95": 0.05}},
        },
        "runs": [run_summary(result, overrides) for result, overrides in done],
    }
    return summary, frames["requests"], frames["timeline"], frames["memory_map"]
