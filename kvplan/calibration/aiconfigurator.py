"""Reading the kernel times that ship with ``aiconfigurator-core``: measured on data-centre GPUs, by shape.

The package (an extra of kvplan) holds tables of GEMMs, attention, experts and all-reduces for several
engines. Here they become the profile of one model: each of its matrices is looked up by its shape, between
the measured shapes linearly. Two things are not in the tables: a prefill chunk on a cache (priced by its
share of the query-key pairs of the whole prompt) and the small elementwise kernels (bytes over bandwidth
plus a fixed time, both as the package states them for the system).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from kvplan.calibration.aiconfigurator_tables import Tables
from kvplan.errors import InputError
from kvplan.timing.profile import EXPERTS, Operation, Profile, RankProfile
from kvplan.timing.work import Work, attention_elements, layer_work

if TYPE_CHECKING:
    from kvplan.catalog.architecture import LayerKind, ModelConfig

Points = NDArray[np.float64]
Parts = tuple[str, ...]

ELEMENTWISE_KERNELS = 4
"""A layer: two norms with their residual adds, rotary with the cache write, the activation."""
ROUTING = "power_law_1.2"
"""How unevenly tokens choose experts; the tables also have ``balanced`` and ``power_law_1.01``."""
GEMM_TYPES = {"fp8": "fp8", "nvfp4": "nvfp4", "int8": "int8"}
MOE_TYPES = {"fp8": "fp8", "nvfp4": "nvfp4", "mxfp4": "w4a16_mxfp4"}
TOKENS = np.unique(np.concatenate([np.arange(1.0, 17.0), np.round(16 * 1.25 ** np.arange(1, 32))]))


def import_aiconfigurator(
    system: str,
    model: ModelConfig,
    *,
    tensor_parallel_sizes: Sequence[int] = (1,),
    framework: str = "vllm",
    kv_cache_dtype: str = "auto",
) -> Profile:
    """The profile of ``model`` on ``system`` (``h200_sxm``, …) from the newest tables of ``framework``.

    Raises:
        InputError: the package is not installed; no such system or framework; a shape or type that no table
        holds.
    """
    tables = Tables(system, framework)
    ranks = {tp: _rank(tables, model, tp, kv_cache_dtype) for tp in tensor_parallel_sizes}
    return Profile(
        name=f"{system} {model.name}",
        ranks=ranks,
        model=model.name,
        launch="graph",
        machine={"gpu": tables.device, "system": system},
        versions={framework: tables.version, "aiconfigurator-core": tables.package_version},
        source={
            "format": "aiconfigurator",
            "licence": "Apache-2.0",
            "routing": ROUTING if model.is_moe else "",
        },
        notes=(
            "a prefill chunk on a cache is priced by its share of the whole prompt's query-key pairs",
            "elementwise kernels are estimated, not measured",
        ),
    )


def _rank(tables: Tables, model: ModelConfig, tp: int, kv_cache_dtype: str) -> RankProfile:
    plain = "bfloat16"
    quantization = model.quantization
    linear = plain if quantization is None else GEMM_TYPES.get(quantization.method, plain)
    excluded: Parts = () if quantization is None else tuple(quantization.excluded)
    gemms = {dtype: tables.gemm(dtype) for dtype in {plain, linear}}

    def matrix(name: str, part: str, n: float, k: float, **rest: Any) -> Operation:
        chosen = gemms[plain if part in excluded else linear]
        return Operation(name, chosen.m, chosen.curve(n, k), **rest)

    layer = _only_kind(model)
    hidden = model.hidden_size
    width = layer.num_attention_heads * layer.head_dim / tp
    operations = [
        matrix("qkv_proj", "attention", attention_elements(model, layer, tp) / hidden - width, hidden),
        matrix("o_proj", "attention", hidden, width),
        matrix("lm_head", "lm_head", model.vocab_size / tp, hidden, per="step", axis="samples"),
        _elementwise(tables, model, layer, tp),
    ]
    inner = layer.intermediate_size / tp
    if layer.feed_forward == "dense":
        operations += [
            matrix("gate_up_proj", "dense_mlp", (2 if model.gated_mlp else 1) * inner, hidden, layers="dense"),
            matrix("down_proj", "dense_mlp", hidden, inner, layers="dense"),
        ]
    else:
        operations += [
            matrix("router", "router", model.num_experts, hidden, layers="moe"),
            _experts(tables, model, tp),
        ]
    if tp > 1:
        operations.append(_all_reduce(tables, hidden, tp))
    return RankProfile(tuple(operations), _attention(tables, model, tp, kv_cache_dtype), np.zeros((0, len(EXPERTS))))


def _only_kind(model: ModelConfig) -> LayerKind:
    """The layer that all layers are but for their window.

    Raises:
        InputError: layers that differ otherwise, or an attention that these tables are not read for.
    """
    shapes = {
        (
            k.attention in ("full", "sliding_window"),
            k.num_attention_heads,
            k.num_key_value_heads,
            k.head_dim,
            k.feed_forward,
            k.intermediate_size,
        )
        for k in model.layers
    }
    if len(shapes) != 1 or not next(iter(shapes))[0]:
        raise InputError(
            "only models whose layers are alike but for a sliding window can be read from these tables",
            field="model",
            value=model.name,
            hint="timing: roofline takes any model",
        )
    return model.layers[0]


def _elementwise(tables: Tables, model: ModelConfig, layer: LayerKind, tp: int) -> Operation:
    moved = sum(part.activation_bytes_per_token for part in layer_work(model, layer, tp) if isinstance(part, Work))
    seconds = ELEMENTWISE_KERNELS * tables.facts["kernel_s"] + TOKENS * moved / tables.facts["bytes_per_s"]
    return Operation("elementwise (estimated)", TOKENS, seconds)


def _experts(tables: Tables, model: ModelConfig, tp: int) -> Operation:
    method = "" if model.quantization is None else model.quantization.method
    rows = tables.read(
        "moe",
        "moe_perf",
        num_experts=model.num_experts,
        topk=model.num_experts_per_tok,
        hidden_size=model.hidden_size,
        inter_size=model.moe_intermediate_size,
        moe_tp_size=tp,
        moe_ep_size=1,
        moe_dtype=MOE_TYPES.get(method, "bfloat16"),
        distribution=ROUTING,
    )
    best = rows.groupby("num_tokens")["latency"].min()
    return Operation("experts", best.index.to_numpy(float), best.to_numpy(float) * 1e-3, layers="moe")


def _all_reduce(tables: Tables, hidden: int, tp: int) -> Operation:
    """Two a layer; ``message_size`` counts elements, of which a token has ``hidden``."""
    rows = tables.read("comm", "custom_allreduce_perf", num_gpus=tp, allreduce_dtype="bfloat16")
    rows = rows[rows["kernel_source"].str.endswith("graph")] if "kernel_source" in rows else rows
    best = rows.groupby("message_size")["latency"].min()
    best = best[best.index >= hidden]
    return Operation("all_reduce", best.index.to_numpy(float) / hidden, best.to_numpy(float) * 1e-3, count=2)


def _attention(tables: Tables, model: ModelConfig, tp: int, kv_cache_dtype: str) -> Points:
    """Rows of `profile.ATTENTION` for the mean layer: layers of each window count by their number."""
    kv = "fp8" if kv_cache_dtype.startswith("fp8") else "bfloat16"
    prefill: Any = 0.0
    decode: Any = 0.0
    for layer, count in Counter(model.layers).items():
        shape: dict[str, Any] = {
            "num_heads": layer.num_attention_heads // tp,
            "num_key_value_heads": max(1, layer.num_key_value_heads // tp),
            "head_dim": layer.head_dim,
            "window_size": layer.window,
            "kv_cache_dtype": kv,
        }
        share = count / len(model.layers)
        prompts = tables.read("attention", "context_attention_perf", **shape)
        prefill = prefill + share * prompts[prompts["batch_size"] == 1].groupby("isl")["latency"].min()
        batches = tables.read("attention", "generation_attention_perf", **shape)
        batches = batches.assign(context=batches["isl"] + batches["step"])
        decode = decode + share * batches.groupby(["batch_size", "context"])["latency"].min()
    alone = _decode_rows(decode.dropna())
    return np.vstack([_prefill_rows(prefill.dropna(), alone[alone[:, 2] == 1.0]), alone])


def _decode_rows(times: Any) -> Points:
    keys = times.index.to_frame().to_numpy(float)
    zeros = np.zeros(len(times))
    return np.column_stack([zeros, zeros, keys[:, 0], keys[:, 1], times.to_numpy(float) * 1e-3])


def _prefill_rows(times: Any, one_decode: Points) -> Points:
    """A chunk after ``prior`` tokens takes its share of the query-key pairs of a prompt of both, but no less than
    without the prior, nor than one decode row that attends as much."""
    at, seconds = times.index.to_numpy(float), times.to_numpy(float) * 1e-3
    rows = []
    for chunk in at:
        for prior in (0.0, *at[at >= 512]):
            whole = chunk + prior
            share = (chunk * prior + chunk * (chunk + 1) / 2) / (whole * (whole + 1) / 2)
            walk = np.interp(whole, one_decode[:, 3], one_decode[:, 4]) if prior else 0.0
            least = max(float(np.interp(chunk, at, seconds)), float(walk))
            rows.append([chunk, prior, 0.0, 0.0, max(_beyond(whole, at, seconds) * share, least)])
    return np.array(rows)


def _beyond(x: float, at: Points, seconds: Points) -> float:
    """Interpolated; above the longest prompt in proportion to its square."""
    return float(np.interp(x, at, seconds)) * max(x / at[-1], 1.0) ** 2
