"""Step times from a model's shape and a GPU's data sheet, when nobody has measured.

A step reads every weight once (of routed experts only those that its tokens chose), reads the K and V that
its rows attend, and computes; each part takes the longer of its bytes over bandwidth and its FLOPs over
peak, both times the share of the peak that engines reach. What remains (launches, host, all-reduce latency)
is a coefficient each.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from kvplan.catalog.dtypes import dtype_bytes
from kvplan.memory.kv_dtype import kv_format
from kvplan.timing.coefficients import RooflineCoefficients
from kvplan.timing.step_times import AttentionGroup, Grid, StepTimes, Term
from kvplan.timing.work import Experts, Work, head_work, layer_work

if TYPE_CHECKING:
    from kvplan.catalog.architecture import LayerKind, ModelConfig
    from kvplan.catalog.gpu import Gpu

TOKENS = np.unique(np.concatenate([np.arange(1.0, 65.0), np.round(64 * 1.06 ** np.arange(1, 145))]))
"""Where the linear part is tabulated: every count to 64, then steps of 6% to 290,000 tokens."""

TPOT_ERROR_DENSE = {"TPOT of dense models (135 served points on H100, H200, B200)": 0.065}
TPOT_ERROR_MOE = {"TPOT of expert models (129 served points on H100, H200, B200)": 0.155}
"""Median absolute errors with the default coefficients: benchmarks/results/endtoend_tpot.json; a test holds them."""


class _Rank:
    """One GPU's rates, with the shares of the peak applied."""

    def __init__(self, gpu: Gpu, c: RooflineCoefficients) -> None:
        self.weight_bytes_per_s = gpu.hbm_bytes_per_s * c.weight_read_efficiency
        self.expert_bytes_per_s = gpu.hbm_bytes_per_s * c.expert_read_efficiency
        self.expert_layer_s = c.expert_layer_s
        self.kv_bytes_per_s = gpu.hbm_bytes_per_s * c.kv_read_efficiency
        self.activation_bytes_per_s = gpu.hbm_bytes_per_s * c.activation_read_efficiency
        self.flops = gpu.bf16_flops * c.linear_flops_efficiency
        self.fp8_flops = (gpu.fp8_flops or gpu.bf16_flops) * c.linear_flops_efficiency
        self.attention_flops = gpu.bf16_flops * c.attention_flops_efficiency

    def seconds(self, part: Work | Experts, tokens: NDArray[np.float64]) -> NDArray[np.float64]:
        """Of one part of a layer, by tokens in the step."""
        flops = tokens * part.flops_per_token / (self.fp8_flops if part.fp8 else self.flops)
        if isinstance(part, Experts):
            read = part.touched(tokens) * part.bytes_per_expert / self.expert_bytes_per_s
            return self.expert_layer_s + np.maximum(read, flops)
        moved = tokens * part.activation_bytes_per_token / self.activation_bytes_per_s
        return np.maximum(part.weight_bytes / self.weight_bytes_per_s, flops) + moved


def all_reduce_seconds(
    tokens: NDArray[np.float64], hidden_bytes: float, tp: int, link_bytes_per_s: float, latency_s: float
) -> NDArray[np.float64]:
    """One all-reduce of a hidden state among ``tp`` ranks: a ring moves 2(tp − 1)/tp of it over each link."""
    if tp == 1:
        return np.zeros_like(tokens)
    return latency_s + tokens * hidden_bytes * 2.0 * (tp - 1) / tp / link_bytes_per_s


def attention_groups(
    model: ModelConfig, tp: int, kv_bytes: float, kv_bytes_per_s: float, attention_flops: float
) -> tuple[tuple[AttentionGroup, ...], float]:
    """The roofline of attention by cache group, and the seconds a row that constant states cost.

    A chunked-local layer is priced as a sliding window of its chunk, which is its most.
    """
    groups: list[AttentionGroup] = []
    row_s = 0.0
    for layer, count in Counter(model.layers).items():
        if layer.attention == "none":
            continue
        if layer.attention == "state_space":
            row_s += count * _state_bytes(layer, tp) / kv_bytes_per_s
            continue
        heads = layer.num_attention_heads / tp
        if layer.attention == "mla":
            latent = model.kv_lora_rank + model.qk_rope_head_dim
            cached = latent * kv_bytes
            decode_flops = 2.0 * heads * (latent + model.kv_lora_rank)
            prefill_flops = 2.0 * heads * (model.qk_nope_head_dim + model.qk_rope_head_dim + model.v_head_dim)
        else:
            width = layer.head_dim + (layer.value_head_dim or layer.head_dim)
            cached = max(1.0, layer.num_key_value_heads / tp) * width * kv_bytes
            decode_flops = prefill_flops = 2.0 * heads * width
        groups.append(
            AttentionGroup(
                window=layer.window,
                read_s=count * cached / kv_bytes_per_s,
                prefill_pair_s=count * prefill_flops / attention_flops,
                decode_pair_s=count * decode_flops / attention_flops,
            )
        )
    return _merged(groups), row_s


def _merged(groups: list[AttentionGroup]) -> tuple[AttentionGroup, ...]:
    """One group a window: layers under one window read the same tokens, so their times add up."""
    windows: dict[int, list[AttentionGroup]] = {}
    for group in groups:
        windows.setdefault(group.window, []).append(group)
    return tuple(
        AttentionGroup(
            window,
            sum(g.read_s for g in same),
            sum(g.prefill_pair_s for g in same),
            sum(g.decode_pair_s for g in same),
        )
        for window, same in windows.items()
    )


def _state_bytes(layer: LayerKind, tp: int) -> float:
    """Bytes of a linear-attention layer's state that a row reads and writes each step."""
    state = layer.state
    assert state is not None
    matrices = state.heads * state.head_dim * state.state_dim * dtype_bytes(state.state_dtype)
    return 2.0 * matrices / tp


def roofline(
    model: ModelConfig,
    gpu: Gpu,
    *,
    tensor_parallel_size: int = 1,
    pipeline_parallel_size: int = 1,
    kv_cache_dtype: str = "auto",
    async_scheduling: bool = False,
    coefficients: Mapping[str, float] | None = None,
) -> StepTimes:
    """Step times of ``model`` on ``gpu`` from first principles.

    A step passes through all pipeline stages, so the layers' times add up whatever
    ``pipeline_parallel_size``; the hand-over between stages comes on top.

    Args:
        async_scheduling: the host's time is hidden behind the device's.
        coefficients: overrides of `RooflineCoefficients` by name.

    Raises:
        InputError: an unknown or impossible coefficient.
    """
    c = RooflineCoefficients().with_overrides(coefficients)
    assert isinstance(c, RooflineCoefficients)
    tp = tensor_parallel_size
    rank = _Rank(gpu, c)
    hidden_bytes = model.hidden_size * dtype_bytes(model.dtype)
    link = (gpu.nvlink_bytes_per_s or gpu.link_bytes_per_s) * c.link_efficiency

    reduce_s = all_reduce_seconds(TOKENS, hidden_bytes, tp, link, c.all_reduce_s)
    linear = np.full_like(TOKENS, model.num_hidden_layers * c.layer_s)
    weight_bytes = 0.0
    flops_per_token = 0.0
    for layer, count in Counter(model.layers).items():
        for part in layer_work(model, layer, tp):
            linear += count * rank.seconds(part, TOKENS)
            flops_per_token += count * part.flops_per_token
            weight_bytes += count * (
                part.num_experts * part.bytes_per_expert if isinstance(part, Experts) else part.weight_bytes
            )
        # One after attention, one after the feed-forward part.
        linear += count * 2 * reduce_s
    if pipeline_parallel_size > 1:
        linear += (pipeline_parallel_size - 1) * (c.all_reduce_s + TOKENS * hidden_bytes / link)

    warnings: tuple[str, ...] = ()
    if not model.layers:
        warnings = ("timing: the model names its cache groups alone: a step is priced without weights and attention",)
    head = head_work(model, tp)
    kv_bytes = kv_format(kv_cache_dtype, model.dtype).element_bytes
    groups, row_s = attention_groups(model, tp, kv_bytes, rank.kv_bytes_per_s, rank.attention_flops)
    shape = "from the model's shape"
    return StepTimes(
        kind="roofline",
        terms=(
            Term("hbm_bytes_per_s", gpu.hbm_bytes_per_s, "B/s", gpu.source),
            Term("bf16_flops", gpu.bf16_flops, "FLOP/s", gpu.source),
            Term("layer_weight_bytes", weight_bytes, "B a rank, all experts", shape),
            Term("head_weight_bytes", head.weight_bytes, "B a rank", shape),
            Term("layer_flops_per_token", flops_per_token, "FLOP a rank", shape),
            Term("all_reduces", 2.0 * model.num_hidden_layers * (tp > 1), "a step", shape),
            *c.terms(),
        ),
        host_step_s=c.host_step_s,
        host_row_s=c.host_row_s,
        overlapped=async_scheduling,
        row_s=row_s,
        copy_s_per_byte=2.0 / rank.activation_bytes_per_s,
        swap_s_per_byte=1.0 / (gpu.link_bytes_per_s * c.swap_efficiency),
        groups=groups,
        linear=Grid((TOKENS,), linear, "linear"),
        head=Grid((TOKENS,), rank.seconds(head, TOKENS), "head"),
        errors=TPOT_ERROR_MOE if model.is_moe else TPOT_ERROR_DENSE,
        warnings=warnings,
    )
