"""Step times from a profile: the measured tables, brought into the form of `kvplan.timing.step_times`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from kvplan.catalog.dtypes import dtype_bytes
from kvplan.errors import InputError
from kvplan.timing.attention_tables import attention_grids
from kvplan.timing.coefficients import Named, _coefficient
from kvplan.timing.forms import decode_by_block_size, in_form
from kvplan.timing.profile import BlockForm, Operation, Profile, RankProfile
from kvplan.timing.roofline import all_reduce_seconds
from kvplan.timing.step_times import Grid, StepTimes, Term
from kvplan.timing.tail import tail_grids

if TYPE_CHECKING:
    from kvplan.catalog.architecture import ModelConfig
    from kvplan.catalog.gpu import Gpu

Rows = NDArray[np.float64]
Points = NDArray[np.float64]


@dataclass(frozen=True)
class ProfileCoefficients(Named):
    """What layer-by-layer kernel times do not hold."""

    host_step_s: float = _coefficient(0.0, "s a step", "host time: none of it is in kernel times")
    layer_s: float = _coefficient(0.0, "s a layer", "gaps between kernels: none inside a CUDA graph")
    graph_overlap: float = _coefficient(
        1.0,
        "of a kernel's fixed time",
        "start and drain of a kernel that was timed alone (the least time of any kernel of the profile), "
        "which replay from a CUDA graph hides; only where the profile was measured in eager mode",
    )
    graph_tokens: float = _coefficient(512.0, "tokens", "largest step replayed from a graph: vLLM's")
    host_row_s: float = _coefficient(0.0, "s a sequence", "host time a sequence")
    all_reduce_s: float = _coefficient(
        5e-6, "s an all-reduce", "vLLM's own between two GPUs: 4.4 to 5.7 µs (aiconfigurator's tables); only under TP"
    )
    link_efficiency: float = _coefficient(
        0.55, "of the link's peak", "the same at 16 MB: 0.46 over NVLink, 0.55 over PCIe; only under TP"
    )
    copy_efficiency: float = _coefficient(0.70, "of HBM peak", "block copies, where the profile has none")
    swap_efficiency: float = _coefficient(0.80, "of the host link's peak", "swaps, where the profile has none")


def from_profile(
    profile: Profile,
    model: ModelConfig,
    *,
    gpu: Gpu | None = None,
    tensor_parallel_size: int = 1,
    async_scheduling: bool = False,
    layout: str = "",
    form: BlockForm | None = None,
    coefficients: Mapping[str, float] | None = None,
) -> StepTimes:
    """Step times of ``model`` from the times of its layers in ``profile``.

    Args:
        gpu: for what is seldom measured (all-reduce, copies, swaps); without it these cost nothing but
        latency.
        async_scheduling: host time, where any is given, is hidden behind the device's.
        layout: of the KV cache, and ``form``: its blocks and dtype; as the profile was measured where not given.
        coefficients: overrides of `ProfileCoefficients` by name.

    Raises:
        InputError: no measurements at this TP, or a table that has holes where no neighbour can fill them.
    """
    c = ProfileCoefficients().with_overrides(coefficients)
    assert isinstance(c, ProfileCoefficients)
    rank = profile.rank(tensor_parallel_size)
    layers = model.num_hidden_layers
    warnings: list[str] = []
    if profile.model and _last(profile.model) != _last(model.name):
        warnings.append(f"timing: the profile was measured with {profile.model}, the model is {model.name}")
    theirs = str(profile.source.get("layout") or layout)
    if layout and layout != theirs:
        warnings.append(f"timing: the profile has a {theirs} KV cache: this {layout} one is priced as such")
        form = None if form is None or profile.form is None else replace(form, block_size=profile.form.block_size)
    by_block_size = decode_by_block_size(profile, rank, None if form is None else form.kv_cache_dtype)
    by_block_size[:, 3] *= layers * profile.step_factor
    rank, unmeasured = in_form(profile, rank, form)
    warnings += unmeasured

    linear_ops = [op for op in rank.operations if op.axis == "tokens"]
    points = [op.at for op in linear_ops] + ([np.unique(rank.experts[:, 0])] if len(rank.experts) else [])
    tokens = np.unique(np.concatenate(points))
    moe_layers = sum(layer.feed_forward == "moe" for layer in model.layers)
    hidden_s = c.graph_overlap * _smallest_kernel(rank) if profile.launch == "eager" else 0.0
    hidden = np.where(tokens <= c.graph_tokens, hidden_s, 0.0)
    linear = np.full_like(tokens, layers * c.layer_s)
    for op in linear_ops:
        linear += _times(op, model) * np.maximum(np.interp(tokens, op.at, op.seconds) - hidden, 0.0)
    if len(rank.experts):
        linear += moe_layers * expert_seconds(rank.experts, tokens, model)
    elif moe_layers and all(op.layers != "moe" for op in rank.operations):
        raise InputError("the profile has no experts, the model has", field="timing.profile", source=profile.name)
    reduced = any(op.name == "all_reduce" for op in rank.operations)
    if gpu is not None and tensor_parallel_size > 1 and not reduced:
        link = (gpu.nvlink_bytes_per_s or gpu.link_bytes_per_s) * c.link_efficiency
        state_bytes = model.hidden_size * dtype_bytes(model.dtype)
        linear += 2 * layers * all_reduce_seconds(tokens, state_bytes, tensor_parallel_size, link, c.all_reduce_s)

    head_ops = [op for op in rank.operations if op.axis == "samples"]
    samples = np.unique(np.concatenate([op.at for op in head_ops])) if head_ops else np.array([1.0])
    head = sum((_times(op, model) * np.interp(samples, op.at, op.seconds) for op in head_ops), np.zeros_like(samples))

    prefill, decode, mixed, filled = attention_grids(rank, layers)
    if filled:
        warnings.append(f"timing: {filled} points of the attention table were not measured and are extended")
    # Decode alone is one graph, attention included; beside a prefill attention runs between two graphs.
    decode = Grid(decode.axes, np.maximum(decode.values - layers * hidden_s, 0.0), decode.name)
    decode_tail, mixed_tail = tail_grids(rank.skew, prefill, decode, mixed, layers)
    copy_s, swap_s = _moving(rank, gpu, c)
    where = profile.name
    hosted = zip(("host_step_s", "host_row_s"), host_seconds(rank), strict=True)
    measured = {name: found for name, found in hosted if found and name not in (coefficients or {})}
    c = replace(c, **measured)
    times = StepTimes(
        kind="measured",
        terms=(
            Term("linear_points", float(len(tokens)), "token counts", where),
            Term("attention_points", float(len(rank.attention)), "measured", where),
            Term("skew_points", float(len(rank.skew)), "measured", where),
            Term("smallest_kernel_s", _smallest_kernel(rank), "s", where),
            Term("step_factor", profile.step_factor, "of the sum of a step's parts", where),
            *(replace(term, source=where) if term.name in measured else term for term in c.terms()),
        ),
        host_step_s=c.host_step_s,
        host_row_s=c.host_row_s,
        overlapped=async_scheduling,
        copy_s_per_byte=copy_s,
        swap_s_per_byte=swap_s,
        linear=Grid((tokens,), linear, "linear"),
        head=Grid((samples,), head, "head"),
        prefill=prefill,
        decode=decode,
        mixed=mixed,
        decode_tail=decode_tail,
        mixed_tail=mixed_tail,
        decode_by_block_size=by_block_size,
        errors={
            f"{operation} (leave one out)": float(found["median"])
            for operation, found in profile.errors.get(str(tensor_parallel_size), {}).items()
            if found.get("points")
        },
        warnings=tuple(warnings),
    )
    return times if profile.step_factor == 1.0 else _scaled(times, profile.step_factor)


def _scaled(times: StepTimes, factor: float) -> StepTimes:
    """Every part of a step takes so much longer; what moves blocks does not."""

    def scaled(grid: Grid | None) -> Grid | None:
        return None if grid is None else replace(grid, values=grid.values * factor)

    return replace(
        times,
        host_step_s=times.host_step_s * factor,
        host_row_s=times.host_row_s * factor,
        linear=scaled(times.linear),
        head=scaled(times.head),
        prefill=scaled(times.prefill),
        decode=scaled(times.decode),
        mixed=scaled(times.mixed),
        decode_tail=scaled(times.decode_tail),
        mixed_tail=scaled(times.mixed_tail),
    )


def _smallest_kernel(rank: RankProfile) -> float:
    """The least time of any kernel of a layer: what starting and draining one costs."""
    return min((float(op.seconds.min()) for op in rank.operations if op.per == "layer"), default=0.0)


def _last(name: str) -> str:
    return name.rsplit("/", 1)[-1].lower().removesuffix("-instruct")


def _times(op: Operation, model: ModelConfig) -> int:
    """How often an operation runs in a step."""
    if op.per == "step":
        return op.count
    if op.layers == "all":
        return op.count * model.num_hidden_layers
    return op.count * sum(layer.feed_forward == op.layers for layer in model.layers)


def expert_seconds(experts: Rows, tokens: Points, model: ModelConfig) -> Points:
    """Seconds of one layer's experts by tokens, at the expected number of distinct experts they choose."""
    chosen, total = model.num_experts_per_tok, model.num_experts
    touched = total * (1.0 - (1.0 - chosen / total) ** tokens)
    at = np.unique(experts[:, 0])
    curves = []
    for count in at:
        rows = experts[experts[:, 0] == count]
        rows = rows[np.argsort(rows[:, 1])]
        curves.append(np.interp(touched, rows[:, 1], rows[:, 2]))
    table = np.stack(curves)  # [measured token counts, tokens asked]
    return np.array([np.interp(n, at, table[:, i]) for i, n in enumerate(tokens)])


def host_seconds(rank: RankProfile) -> tuple[float, float]:
    """(a step, a row): the line through the host's measured time, neither part below 0; zeros without any."""
    hosts = [op for op in rank.operations if op.axis == "rows"]
    if not hosts:
        return 0.0, 0.0
    at, seconds = hosts[0].at, np.zeros(len(hosts[0].at))
    for op in hosts:
        seconds += op.count * np.interp(at, op.at, op.seconds)
    row, step = np.polyfit(at, seconds, 1) if len(at) > 1 else (0.0, float(seconds[0]))
    if step < 0.0:
        return 0.0, float((at * seconds).sum() / (at * at).sum())
    return (float(step), float(row)) if row >= 0.0 else (float(seconds.mean()), 0.0)


def _moving(rank: RankProfile, gpu: Gpu | None, c: ProfileCoefficients) -> tuple[float, float]:
    """Seconds a byte of block copies and of swaps: measured, else the data sheet's."""
    measured = {op.name: float(op.seconds[-1] / op.at[-1]) for op in rank.operations if op.axis == "bytes"}
    copy_s = 2.0 / (gpu.hbm_bytes_per_s * c.copy_efficiency) if gpu is not None else 0.0
    swap_s = 1.0 / (gpu.link_bytes_per_s * c.swap_efficiency) if gpu is not None else 0.0
    swaps = [measured[name] for name in ("swap_out", "swap_in") if name in measured]
    return measured.get("block_copy", copy_s), (sum(swaps) / len(swaps) if swaps else swap_s)
