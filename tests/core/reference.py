"""The step logs of vLLM 0.33.0's own scheduler, and the replica that must repeat them."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np

from kvplan.core.replica import Replica, Workload
from kvplan.core.settings import CacheGroup, Settings

SHARED_OUTPUT = 1
"""The k-th generated token of every request is the same token in these logs."""


def read_log(path: Path) -> dict[str, Any]:
    with gzip.open(path) as file:
        return json.load(file)


def settings_of(config: dict[str, Any]) -> Settings:
    return Settings(
        block_size=config["block_size"],
        num_gpu_blocks=config["num_blocks"],
        enable_prefix_caching=config["enable_prefix_caching"],
        max_model_len=config["max_model_len"],
        max_num_seqs=config["max_num_seqs"],
        max_num_batched_tokens=config["max_num_batched_tokens"],
        enable_chunked_prefill=config["enable_chunked_prefill"],
        scheduling_policy=config["policy"],
        long_prefill_token_threshold=config.get("long_prefill_token_threshold", 0),
        watermark=config.get("watermark", 0.0),
        scheduler_reserve_full_isl=config["scheduler_reserve_full_isl"],
        async_scheduling=config["async_scheduling"],
        groups=groups_of(config["groups"]),
    )


def groups_of(text: str) -> tuple[CacheGroup, ...]:
    """``full:1,sw64:2`` is one group of full attention and two of a sliding window of 64 tokens."""
    groups: list[CacheGroup] = []
    for part in text.split(","):
        kind, _, count = part.partition(":")
        group = CacheGroup() if kind == "full" else CacheGroup("sliding_window", int(kind.removeprefix("sw")))
        groups += [group] * int(count)
    return tuple(groups)


def workload_of(
    requests: list[dict[str, Any]], segments: list[list[tuple[int, int, int]]] | None = None
) -> tuple[Workload, list[str]]:
    """The requests in columns, and their names. ``segments``: (source, start, tokens) of each, else its prefix."""
    if segments is None:
        sources: dict[str, int] = {}
        segments = [
            [
                (
                    SHARED_OUTPUT + 1 + sources.setdefault(r["prefix_id"], len(sources)),
                    0,
                    min(r["prefix_len"], r["prompt_len"]),
                )
            ]
            if r.get("prefix_id") is not None
            else []
            for r in requests
        ]
    order = sorted(range(len(requests)), key=lambda i: requests[i]["arrival_step"])
    ordered = [requests[i] for i in order]
    flat = np.array([piece for i in order for piece in segments[i]], np.int64).reshape(-1, 3)
    workload = Workload(
        arrival_s=np.array([r["arrival_step"] for r in ordered], np.float64),
        prompt_tokens=np.array([r["prompt_len"] for r in ordered]),
        output_tokens=np.array([r["output_len"] for r in ordered]),
        priority=np.array([r.get("priority", 0) for r in ordered], np.int32),
        segment_ptr=np.cumsum([0, *(len(segments[i]) for i in order)], dtype=np.int64),
        segment_source=np.ascontiguousarray(flat[:, 0]),
        segment_start=np.ascontiguousarray(flat[:, 1]),
        segment_tokens=np.ascontiguousarray(flat[:, 2]),
        output_source=np.full(len(ordered), SHARED_OUTPUT, np.int64),
    )
    return workload, [str(r["id"]) for r in ordered]


def repeat_step(replica: Replica, names: list[str], number: int) -> dict[str, Any]:
    """Plans and commits step `number`, which lasts one second, and says what a log line says."""
    core = replica.core
    before = core.scalars[0].copy()
    planned = replica.plan(float(number))
    s = core.scalars[0]
    entries = core.planned[:planned]
    line = {
        "step": number,
        "tokens": {names[e["request"]]: int(e["tokens"]) for e in entries},
        "n_sched": planned,
        "sched_tokens": int(s["planned_tokens"]),
        "new": [names[e["request"]] for e in entries if e["fresh"]],
        "running": int(s["num_running"]),
        "waiting": int(s["num_waiting"]),
        "free_blocks": int(s["free_blocks"]),
        "preempted": sorted(names[core.preempted[i]] for i in range(s["num_preempted"])),
        "hit_tokens": int(s["hit_tokens"] - before["hit_tokens"]),
        "query_tokens": int(s["query_tokens"] - before["query_tokens"]),
        "cached_at_admission": {
            names[e["request"]]: int(e["computed"]) for e in entries if e["fresh"] and e["computed"]
        },
        "blocks": {
            names[e["request"]]: core.tables[0, e["row"], : core.requests["blocks"][e["request"]]].tolist()
            for e in entries
        },
    }
    replica.commit(float(number) + 1)
    s = core.scalars[0]
    line["finished"] = [names[core.finished[i]] for i in range(s["num_finished"])]
    line["free_after"] = int(s["free_blocks"])
    return line


def first_difference(log: dict[str, Any], replica: Replica, names: list[str]) -> str | None:
    """Repeats a log; the first thing that differs, in words, or None."""
    for theirs in log["steps"]:
        ours = repeat_step(replica, names, theirs["step"])
        for key in ours.keys() & theirs.keys():
            expected = sorted(theirs[key]) if key in ("preempted", "new") else theirs[key]
            found = sorted(ours[key]) if key == "new" else ours[key]
            if found != expected:
                return f"step {theirs['step']}, {key}: vLLM has {expected}, kvplan {found}"
    if not replica.idle:
        return "vLLM is done, kvplan is not"
    return None
