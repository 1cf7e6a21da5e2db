"""What an engine logs at its start and while it runs: vLLM V0 and V1, SGLang."""

from __future__ import annotations

import re
from typing import Any

from kvplan.trace.facts import NoRequestsError
from kvplan.trace.source import Source

_INT = r"([\d,]+)"
_FLOAT = r"([\d.]+)"
# (fact, pattern): the newest line of each wins, as a log may hold several starts.
_PATTERNS: tuple[tuple[tuple[str, ...], re.Pattern[str]], ...] = (
    (("num_gpu_blocks",), re.compile(rf"# (?:GPU|CUDA|TPU|HPU|XPU|NPU|[a-z]+) blocks: {_INT}")),
    (("num_cpu_blocks",), re.compile(rf"# CPU blocks: {_INT}")),
    (("kv_cache_size_tokens",), re.compile(rf"GPU KV cache size: {_INT} tokens")),
    (("cpu_kv_cache_size_tokens",), re.compile(rf"CPU KV cache size: {_INT} tokens")),
    (
        ("max_model_len", "max_concurrency"),
        re.compile(rf"Maximum concurrency for {_INT} tokens per request: {_FLOAT}x"),
    ),
    (
        ("profiled_num_gpu_blocks", "num_gpu_blocks"),
        re.compile(rf"Overriding num_gpu_blocks={_INT} with num_gpu_blocks_override={_INT}"),
    ),
    (("max_total_num_tokens",), re.compile(rf"max_total_num_tokens={_INT}")),
    (("chunked_prefill_size",), re.compile(rf"chunked_prefill_size={_INT}")),
    (("max_prefill_tokens",), re.compile(rf"max_prefill_tokens={_INT}")),
    (("max_running_requests",), re.compile(rf"max_running_requests={_INT}")),
    (("context_len",), re.compile(rf"context_len={_INT}")),
    (("available_gpu_mem_gib",), re.compile(rf"available_gpu_mem={_FLOAT} GB")),
    (("prompt_throughput_tokens_per_s",), re.compile(rf"Avg prompt throughput: {_FLOAT} tokens/s")),
    (("generation_throughput_tokens_per_s",), re.compile(rf"Avg generation throughput: {_FLOAT} tokens/s")),
    (("running",), re.compile(rf"Running: {_INT} reqs")),
    (("waiting",), re.compile(rf"Waiting: {_INT} reqs")),
    (("preemptions",), re.compile(rf"Preemptions: {_INT}")),
    (("kv_cache_usage_percent",), re.compile(rf"GPU KV cache usage: {_FLOAT}%")),
    (("prefix_cache_hit_rate_percent",), re.compile(rf"Prefix cache hit rate: {_FLOAT}%")),
)
_PEAKS = ("running", "waiting", "kv_cache_usage_percent")


def engine_facts(line: str) -> dict[str, int | float]:
    """What one log line tells; empty for most lines."""
    found: dict[str, int | float] = {}
    for names, pattern in _PATTERNS:
        match = pattern.search(line)
        if match:
            for name, text in zip(names, match.groups(), strict=True):
                number = _number(text)
                if number is not None:
                    found[name] = number
    return found


def _number(text: str) -> int | float | None:
    plain = text.replace(",", "")[:40]
    try:
        return float(plain) if "." in plain else int(plain)
    except ValueError:
        return None


def looks_like_log(head: str) -> bool:
    """Whether a line in ``head`` is one that an engine logs."""
    return any(pattern.search(head) for _, pattern in _PATTERNS)


def read_engine_log(source: Source) -> NoRequestsError:
    """What the log tells, as the error that says it holds no request.

    The last value of each fact; of ``running``, ``waiting`` and the cache's usage also the peak.
    """
    facts: dict[str, Any] = {}
    for _, text in source.lines():
        for name, value in engine_facts(text).items():
            facts[name] = value
            if name in _PEAKS:
                peak = f"peak_{name}"
                facts[peak] = max(value, facts.get(peak, value))
    return NoRequestsError(
        "is an engine's log: it tells of the cache, not of requests",
        format="engine-log",
        facts=facts,
        source=source.name,
        hint="a trace needs arrival times and token counts: spans, /metrics or a benchmark's results",
    )
