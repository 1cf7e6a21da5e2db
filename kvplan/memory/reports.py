"""A structured report (JSON) of what a server logged, as people collect them, read into `ServerFacts`.

One mapping a report: ``model``, ``gpu``, ``tp``, ``pp``, ``kv_dtype``, ``max_model_len``,
``gpu_memory_utilization``, ``block_size``, free text in ``other_flags``, and the figures in ``reported``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from kvplan.catalog import Gpu, ModelConfig, load_gpu, load_model
from kvplan.catalog.quantize import quantization_in_name
from kvplan.errors import InputError
from kvplan.memory.reconcile import Reconciliation, reconcile
from kvplan.memory.server_facts import ServerFacts

# A report's key to a field of ServerFacts. MiB fields end in _mib and are divided.
_FIELDS = {
    "total_gpu_gib": "total_gib",
    "total_gib": "total_gib",
    "total_mib": "total_gib",
    "budget_mib": "requested_gib",
    "requested_gib": "requested_gib",
    "initial_usage_gib": "initial_usage_gib",
    "initial_mib": "initial_usage_gib",
    "weights_gib": "weights_gib",
    "weights_gb": "weights_gib",
    "activation_gib": "activation_gib",
    "peak_mib": "activation_gib",
    "peak_torch_gib": "peak_torch_gib",
    "non_torch_gib": "non_torch_gib",
    "non_kv_gib": "non_kv_gib",
    "cudagraph_gib": "cuda_graphs_gib",
    "graph_gib": "cuda_graphs_gib",
    "graph_gb": "cuda_graphs_gib",
    "available_kv_gib": "available_kv_gib",
    "kv_cache_gib": "available_kv_gib",
    "kv_gib": "available_kv_gib",
    "kv_gb": "available_kv_gib",
    "kv_mib": "available_kv_gib",
    "size_gb": "available_kv_gib",
    "tokens": "kv_tokens",
    "params": "parameters",
    "load_gib": "weights_gib",
    "k_gb": "k_gib",
    "v_gb": "v_gib",
    "gpu_blocks": "num_gpu_blocks",
    "num_gpu_blocks": "num_gpu_blocks",
    "cpu_blocks": "num_cpu_blocks",
    "kv_tokens": "kv_tokens",
    "max_batch_total_tokens": "kv_tokens",
    "max_concurrency": "max_concurrency",
    "needed_kv_gib": "needed_kv_gib",
    "estimated_max_len": "estimated_max_len",
    "override_blocks": "num_gpu_blocks_override",
}
_WORDS_OF_GPUS = re.compile(r"\s*\(.*?\)|\d+x\s+|class$|single|NVIDIA", re.IGNORECASE)


@dataclass(frozen=True)
class ReportCheck:
    """A report's verdict; ``reason`` says what stood in the way where nothing could be checked."""

    report_id: str
    reconciliation: Reconciliation
    reason: str = ""

    @property
    def verdict(self) -> str:
        return self.reconciliation.verdict


def check_report(report: Mapping[str, Any]) -> ReportCheck:
    """Reconcile one report with the model and GPU that it names, as far as they are known.

    Raises:
        InputError: not a mapping with ``reported`` figures.
    """
    if not isinstance(report.get("reported"), Mapping):
        raise InputError("a report holds a mapping `reported`", field="reported", value=report.get("reported"))
    facts = facts_of(report)
    model, gpu = model_named(report.get("model")), gpu_named(report.get("gpu"))
    result = reconcile(facts, model, gpu)
    for variant in _variants(report):
        other = reconcile(facts_of(variant), model_named(variant.get("model")), gpu)
        result = _joined(result, other)
    return ReportCheck(str(report.get("id", "")), result, _reason(report, model, result))


def facts_of(report: Mapping[str, Any]) -> ServerFacts:
    """The figures and flags of a report; what it states in free text included."""
    reported = report["reported"]
    values: dict[str, Any] = {}
    for key, field in _FIELDS.items():
        if isinstance(reported.get(key), (int, float)):
            values[field] = reported[key] / 1024 if key.endswith("_mib") else reported[key]
    if values.get("num_gpu_blocks_override") and values.get("num_gpu_blocks"):
        values["blocks_before_override"] = values.pop("num_gpu_blocks")
    text = f"{report.get('other_flags') or ''} {report.get('id', '')}"
    flags = {
        "model": report.get("model"),
        "dtype": _first_word(report.get("dtype"), ("float32", "float16", "bfloat16")),
        "kv_cache_dtype": _kv_dtype(report.get("kv_dtype")),
        "tensor_parallel_size": report.get("tp"),
        "pipeline_parallel_size": report.get("pp"),
        "max_model_len": report.get("max_model_len"),
        "gpu_memory_utilization": report.get("gpu_memory_utilization"),
        "block_size": report.get("block_size"),
        "engine": _engine(report),
        "version": _version(text),
        "pp_layer_partition": _numbers(re.search(r"LAYER_PARTITION=([\d,]+)", text)),
        **{name: _number(re.search(rf"{name}[= ](\d+)", text)) for name in ("max_num_batched_tokens", "max_num_seqs")},
        "num_speculative_tokens": _number(re.search(r"num_speculative_tokens=(\d+)", text)),
    }
    if "margin" in text and (match := re.search(r"margin (\d+) MiB", text)):
        values["margin_gib"] = int(match[1]) / 1024
    if "total_gib" not in values and (match := re.search(r"\(([\d.]+) GiB\)", str(report.get("gpu")))):
        values["total_gib"] = float(match[1])
    known: dict[str, Any] = {name: value for name, value in flags.items() if value is not None}
    return ServerFacts(**values, **known)


def _variants(report: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """A report that varies one thing, as the reports it stands for.

    The key says what varied: ``blocks_64`` (block size), ``tokens_fp8`` (cache type), ``weights_pp4`` and
    ``weights_tp2`` (split), ``gpu_blocks_before``, and ``llama3_gpu_blocks`` where the model is "A vs B".
    """
    reported = report["reported"]
    for key, value in reported.items():
        if key in _FIELDS or not isinstance(value, (int, float)):
            continue
        pool = {name: reported[name] for name in ("kv_gib", "kv_mib", "available_kv_gib") if name in reported}
        if match := re.fullmatch(r"blocks_(\d+)", key):
            yield {**report, "block_size": int(match[1]), "reported": {**pool, "gpu_blocks": value}}
        elif match := re.fullmatch(r"tokens_(bf16|fp16|fp8|int8|fp32)", key):
            dtype = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}.get(match[1], match[1])
            yield {**report, "kv_dtype": dtype, "reported": {**pool, "kv_tokens": value}}
        elif match := re.fullmatch(r"weights_(tp|pp)(\d+)", key):
            yield {**report, match[1]: int(match[2]), "reported": {"weights_gib": value}}
        elif match := re.fullmatch(r"(\w+?)_?gpu_blocks_?(\w*)|(vllm)_blocks", "_" + key if key[0] == "g" else key):
            prefix = (match[1] or "").strip("_")
            cpu = reported.get(f"{prefix}_cpu_blocks")
            figures = {"gpu_blocks": value, **({"cpu_blocks": cpu} if cpu else {})}
            yield {**report, "model": _one_of(report.get("model"), prefix), "reported": figures}


def _one_of(text: Any, prefix: str) -> Any:
    """Of "A vs B", the one whose name holds ``prefix``."""
    for name in str(text or "").split(" vs "):
        if prefix and prefix in re.sub(r"[^a-z0-9]", "", name.lower()):
            return name
    return text


def _joined(one: Reconciliation, other: Reconciliation) -> Reconciliation:
    """Both results as one; the graver verdict stands."""
    order = ("nothing to check", "agrees", "differs", "cannot balance")
    worst = max((one.verdict, other.verdict), key=order.index)
    findings = tuple(dict.fromkeys((*one.findings, *other.findings)))
    return replace(one, checks=one.checks + other.checks, findings=findings, verdict=worst)


def model_named(text: Any) -> ModelConfig | None:
    """The catalogue's model that a free text begins with, or None.

    Suffixes that the catalogue lacks (``-AWQ``, ``-FP8``, ``-Instruct``) are dropped; those that name a quantization
    are applied.
    """
    if not text:
        return None
    words = re.sub(r"\(.*", "", str(text)).replace(",", " ").split()
    for count in range(len(words), 0, -1):
        name = "-".join(words[:count]).rsplit("/", 1)[-1].removesuffix("-class")
        parts = name.split("-")
        for kept in range(len(parts), 1, -1):
            try:
                model = load_model("-".join(parts[:kept]))
            except InputError:
                continue
            scheme = quantization_in_name("-".join(parts[kept:]))
            return replace(model, quantization=scheme) if scheme else model
    return None


def gpu_named(text: Any) -> Gpu | None:
    """The catalogue's GPU in a free text such as ``"2x H100 80GB (79.18 GiB)"``, or None."""
    if not text:
        return None
    name = _WORDS_OF_GPUS.sub("", str(text)).strip()
    words = name.split()
    for count in range(len(words), 0, -1):
        try:
            return load_gpu("-".join(words[:count]))
        except InputError:
            continue
    return None


def _reason(report: Mapping[str, Any], model: ModelConfig | None, result: Reconciliation) -> str:
    if result.checks:
        return ""
    figures = [name for name in report["reported"] if name in _FIELDS]
    if not report["reported"]:
        return "the report has no figures"
    if model is None and report.get("model"):
        return f"the catalogue does not know {report['model']!r}, and the figures do not constrain one another"
    if model is None:
        return "the report names no model, and the figures do not constrain one another"
    if not figures:
        return "its figures are of other kinds: " + ", ".join(report["reported"])
    return "too few figures to check one by another: " + ", ".join(figures)


def _engine(report: Mapping[str, Any]) -> str:
    text = f"{report.get('repo', '')} {report.get('id', '')} {report.get('other_flags') or ''}".lower()
    if "sglang" in str(report.get("id", "")).lower() or "sglang" in str(report.get("other_flags") or "").lower():
        return "sglang"
    for mark, engine in (("tensorrt-llm", "trtllm"), ("lmdeploy", "lmdeploy"), ("sgl-project", "sglang")):
        if mark in text:
            return engine
    return "vllm"


def _version(text: str) -> str | None:
    if re.search(r"\bV0\b", text):
        return "0.6"
    match = re.search(r"\bv(?:LLM )?\s?(?:about )?v?(0\.\d+(?:\.\d+)?)", text, re.IGNORECASE)
    return match[1] if match else None


def _kv_dtype(text: Any) -> str | None:
    if not text:
        return None
    word = re.split(r"[\s(/]", str(text).strip())[0]
    return {"f16": "float16", "bf16": "bfloat16", "fp16": "float16"}.get(word, word)


def _first_word(text: Any, allowed: tuple[str, ...]) -> str | None:
    return text if text in allowed else None


def _number(match: re.Match[str] | None) -> int | None:
    return int(match[1]) if match else None


def _numbers(match: re.Match[str] | None) -> tuple[int, ...] | None:
    return tuple(int(part) for part in match[1].split(",")) if match else None
