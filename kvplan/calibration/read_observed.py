"""Reading the results of load generators and servers; each format as its writer has it (formats/FORMATS.md)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from kvplan.calibration.observed import Floats, Observed
from kvplan.calibration.scrapes import from_scrapes
from kvplan.calibration.tables import read_table
from kvplan.errors import InputError

KNOWN = (
    "LLMServingSim's folder (requests.jsonl, timeseries.csv, meta.json), vLLM's `bench serve --save-detailed` JSON, "
    "SGLang's bench_serving JSONL with --output-details, GuideLLM's benchmarks.json, /metrics scrapes (.prom)"
)
ENGINE_KEYS = {
    "tensor_parallel_size": "parallel.tensor_parallel_size",
    "pipeline_parallel_size": "parallel.pipeline_parallel_size",
    "max_num_seqs": "scheduler.max_num_seqs",
    "max_num_batched_tokens": "scheduler.max_num_batched_tokens",
    "max_model_len": "scheduler.max_model_len",
    "kv_cache_dtype": "cache.kv_cache_dtype",
}


def read_observed(path: str | Path) -> Observed:
    """The run in a folder or file.

    Raises:
        InputError: nothing there that is understood; a file that is damaged, with its line.
    """
    path = Path(path)
    if path.is_dir():
        if (path / "requests.jsonl").exists():
            return _llmservingsim(path)
        scrapes = sorted(path.glob("*.prom"))
        if scrapes:
            return from_scrapes(scrapes)
        raise InputError("no observed run in this folder", field="--observed", source=str(path), hint=KNOWN)
    if not path.exists():
        raise InputError("no such file or folder", field="--observed", source=str(path))
    if path.suffix == ".prom":
        return from_scrapes([path])
    documents = _documents(path)
    first = documents[0]
    if "benchmarks" in first:
        return _guidellm(first, path)
    if "ttfts" in first or "mean_ttft_ms" in first:
        return _bench(documents[-1], path)
    raise InputError("not a format that is understood", field="--observed", source=str(path), hint=KNOWN)


def _documents(path: Path) -> list[dict[str, Any]]:
    """The JSON objects of a file: one, or one a line (appended runs)."""
    text = path.read_text(encoding="utf-8")
    try:
        whole = json.loads(text)
        found = whole if isinstance(whole, list) else [whole]
    except ValueError:
        found = [_line(line, number, path) for number, line in enumerate(text.splitlines(), 1) if line.strip()]
    if not found or not all(isinstance(document, dict) for document in found):
        raise InputError("holds no JSON object", field="--observed", source=str(path))
    return found


def _line(text: str, number: int, path: Path) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise InputError(f"not JSON: {error}", field="--observed", source=str(path), line=number) from None


def _llmservingsim(folder: Path) -> Observed:
    lines = (folder / "requests.jsonl").read_text(encoding="utf-8").splitlines()
    rows = [_line(line, number, folder / "requests.jsonl") for number, line in enumerate(lines, 1) if line.strip()]
    if not rows:
        raise InputError("holds no request", field="--observed", source=str(folder / "requests.jsonl"))

    def column(name: str) -> Floats:
        values = [row.get(name) for row in rows]
        if any(not isinstance(value, int | float) for value in values):
            line = next(i for i, value in enumerate(values, 1) if not isinstance(value, int | float))
            raise InputError("missing or no number", field=name, source=str(folder / "requests.jsonl"), line=line)
        return np.array(values, float)

    queued, first, last = column("queued_ts"), column("first_token_ts"), column("last_token_ts")
    output = column("output_toks").astype(np.int64)
    series: dict[str, Floats] = {}
    if (folder / "timeseries.csv").exists():
        table = read_table(folder / "timeseries.csv", ("t", "running", "waiting", "kv_cache_pct"))
        series = {
            "t_s": table["t"].to_numpy(float),
            "running": table["running"].to_numpy(float),
            "waiting": table["waiting"].to_numpy(float),
            "kv_used": table["kv_cache_pct"].to_numpy(float) / 100.0,
        }
    meta = _documents(folder / "meta.json")[0] if (folder / "meta.json").exists() else {}
    with np.errstate(divide="ignore", invalid="ignore"):
        tpot = np.where(output > 1, (last - first) / (output - 1), np.nan)
    return Observed(
        source=str(folder),
        format="LLMServingSim",
        arrival_s=queued - queued.min(),
        prompt_tokens=column("input_toks").astype(np.int64),
        output_tokens=output,
        measured={"ttft_s": first - queued, "tpot_s": tpot, "e2e_s": last - queued},
        series=series,
        settings=_llmservingsim_settings(meta),
        notes=("a request arrives when the engine queues it (queued_ts)",),
    )


def _llmservingsim_settings(meta: Mapping[str, Any]) -> dict[str, Any]:
    """Scenario keys from the engine's arguments and from what it resolved them to."""
    settings: dict[str, Any] = {}
    if "model" in meta:
        settings["model"] = meta["model"]
    gpu = (meta.get("hardware") or {}).get("device_name")
    if gpu:
        settings["gpu"] = gpu
    for name, key in ENGINE_KEYS.items():
        value = (meta.get("engine_kwargs") or {}).get(name)
        if value is not None:
            settings[key] = value
    cache = meta.get("kv_cache") or {}
    for name in ("block_size", "gpu_memory_utilization", "enable_prefix_caching"):
        if cache.get(name) is not None:
            settings[f"cache.{name}"] = cache[name]
    if cache.get("num_gpu_blocks"):
        settings["cache.num_gpu_blocks_override"] = cache["num_gpu_blocks"]
    scheduler = (meta.get("resolved_config") or {}).get("scheduler_config") or {}
    for name in ("async_scheduling", "enable_chunked_prefill", "scheduler_reserve_full_isl"):
        if scheduler.get(name) is not None:
            settings[f"scheduler.{name}"] = scheduler[name]
    if "vllm_version" in meta:
        settings["engine"] = {"name": "vllm", "version": ".".join(str(meta["vllm_version"]).split(".")[:2])}
    return settings


def _bench(document: Mapping[str, Any], path: Path) -> Observed:
    """vLLM's and SGLang's benchmarks: lists by request, or, without --save-detailed, means and percentiles alone."""
    name = "SGLang bench_serving" if document.get("backend", "").startswith("sglang") else "vLLM bench serve"
    counters = {}
    if "duration" in document:
        counters["makespan_s"] = float(document["duration"])
    if "output_throughput" in document:
        counters["output_tokens_per_s"] = float(document["output_throughput"])
    if "input_lens" not in document or "ttfts" not in document:
        return Observed(str(path), name, summed=_bench_sums(document), counters=counters)
    errors = document.get("errors") or [""] * len(document["ttfts"])
    kept = [i for i, error in enumerate(errors) if not error and document["output_lens"][i] > 0]
    if not kept:
        raise InputError("every request of this run failed", field="--observed", source=str(path))
    pick = lambda key: np.array([document[key][i] for i in kept], float)  # noqa: E731
    ttft, output = pick("ttfts"), pick("output_lens").astype(np.int64)
    decode = np.array([sum(document["itls"][i]) for i in kept])
    starts = pick("start_times") if "start_times" in document else None
    order = np.argsort(starts, kind="stable") if starts is not None else np.arange(len(kept))
    with np.errstate(divide="ignore", invalid="ignore"):
        tpot = np.where(output > 1, decode / (output - 1), np.nan)
    failed = len(errors) - len(kept)
    return Observed(
        source=str(path),
        format=name,
        arrival_s=None if starts is None else (starts - starts.min())[order],
        prompt_tokens=pick("input_lens").astype(np.int64)[order],
        output_tokens=output[order],
        measured={"ttft_s": ttft[order], "tpot_s": tpot[order], "e2e_s": (ttft + decode)[order]},
        counters=counters,
        settings={"model": document["model_id"]} if document.get("model_id") else {},
        notes=(f"{failed} failed requests are left out",) if failed else (),
    )


def _bench_sums(document: Mapping[str, Any]) -> dict[str, Any]:
    sums: dict[str, Any] = {}
    for measure, name in (("ttft_s", "ttft"), ("tpot_s", "tpot"), ("e2e_s", "e2el"), ("e2e_s", "e2e_latency")):
        found = {
            ours: document[f"{theirs}_{name}_ms"] / 1e3
            for ours, theirs in (("mean", "mean"), ("p50", "median"), ("p90", "p90"), ("p99", "p99"))
            if isinstance(document.get(f"{theirs}_{name}_ms"), int | float)
        }
        if found:
            sums[measure] = found
    return sums


def _guidellm(document: Mapping[str, Any], path: Path) -> Observed:
    benchmarks = document["benchmarks"]
    rows = [row for benchmark in benchmarks for row in (benchmark.get("requests") or {}).get("successful") or []]
    if not rows:
        raise InputError("holds no successful request (samples stripped?)", field="--observed", source=str(path))
    if len(benchmarks) > 1:
        raise InputError(
            "holds several benchmarks, each a run of its own", field="--observed", source=str(path), hint="keep one"
        )
    rows.sort(key=lambda row: row["request_start_time"])

    def timing(row: Mapping[str, Any], name: str) -> float:
        return float((row.get("info") or {}).get("timings", {}).get(name) or np.nan)

    start = np.array([row["request_start_time"] for row in rows], float)
    end = np.array([row["request_end_time"] for row in rows], float)
    first = np.array([timing(row, "first_token_iteration") for row in rows])
    last = np.array([timing(row, "last_token_iteration") for row in rows])
    output = np.array([row["output_tokens"] for row in rows], np.int64)
    with np.errstate(divide="ignore", invalid="ignore"):
        tpot = np.where(output > 1, (last - first) / (output - 1), np.nan)
    return Observed(
        source=str(path),
        format="GuideLLM",
        arrival_s=start - start.min(),
        prompt_tokens=np.array([row["prompt_tokens"] for row in rows], np.int64),
        output_tokens=output,
        measured={"ttft_s": first - start, "tpot_s": tpot, "e2e_s": end - start},
    )
