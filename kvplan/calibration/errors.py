"""How far interpolation lies from a measured point when that very point is left out."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kvplan.timing.attention_tables import attention_grids, attention_kinds, scattered, summed_apart
from kvplan.timing.forms import decode_by_block_size
from kvplan.timing.profile import Profile, RankProfile
from kvplan.timing.step_times import StepTimes
from kvplan.timing.tail import tail_grids

AXES = {
    "prefill": ("tokens", "prior"),
    "decode": ("rows", "context"),
    "mixed": ("tokens", "prior", "rows", "context"),
}


@dataclass(frozen=True)
class LeaveOneOut:
    """Signed relative errors of one table, summed up. ``points`` 0: too few to leave one out."""

    operation: str
    points: int
    median: float = 0.0
    """Of the absolute errors, as are p90 and worst."""
    p90: float = 0.0
    worst: float = 0.0
    bias: float = 0.0
    """The mean of the signed errors: what is left when many steps add up."""


def leave_one_out(rank: RankProfile) -> list[LeaveOneOut]:
    """One row for each operation and for each axis of the attention tables, and one for unequal contexts.

    A point on the edge of a table cannot be left out. On a grid whose points double, the neighbours used here
    lie twice as far apart as those that a prediction uses: the true error is smaller.
    """
    rows = [summed(op.name, _along(op.seconds, op.at, 0)) for op in rank.operations]
    for kind, points in attention_kinds(rank.attention).items():
        if len(points):
            axes, values = scattered(points)
            for k, axis in enumerate(AXES[kind]):
                rows.append(summed(f"attention {kind} by {axis}", _along(values, axes[k], k)))
    if len(rank.mixed):
        rows.append(summed("attention mixed, were it the sum", _as_the_sum(rank)))
    if len(rank.skew):
        rows.append(summed("attention unequal contexts", _unequal(rank)))
        rows.append(summed("  the same at the mean context", _at_the_mean(rank)))
    return rows


def as_json(profile: Profile) -> dict[str, dict[str, dict[str, float]]]:
    """For the profile file: by TP, by operation."""
    found: dict[str, dict[str, dict[str, float]]] = {}
    for tp, rank in profile.ranks.items():
        rows = leave_one_out(rank)
        if rank.forms:
            rows.append(summed("attention decode by block_size", _by_block_size(profile, rank)))
        found[str(tp)] = {row.operation.strip(): summed_as_json(row) for row in rows}
    return found


def summed_as_json(row: LeaveOneOut) -> dict[str, float]:
    """One row as the profile file has it."""
    figures = {name: round(getattr(row, name), 6) for name in ("median", "p90", "worst", "bias")}
    return {"points": row.points, **figures}


def summed(operation: str, errors: NDArray[np.float64]) -> LeaveOneOut:
    """Signed relative errors, summed up."""
    if not len(errors):
        return LeaveOneOut(operation, 0)
    size = np.abs(errors)
    median, p90 = np.percentile(size, [50, 90])
    return LeaveOneOut(operation, len(errors), float(median), float(p90), float(size.max()), float(errors.mean()))


def _along(values: NDArray[np.float64], at: NDArray[np.float64], axis: int) -> NDArray[np.float64]:
    """Relative errors of every inner point that its two measured neighbours along one axis predict."""
    lines = np.moveaxis(values, axis, 0)
    part = (at[1:-1] - at[:-2]) / (at[2:] - at[:-2])
    part = part.reshape(-1, *[1] * (lines.ndim - 1))
    predicted = lines[:-2] + part * (lines[2:] - lines[:-2])
    with np.errstate(divide="ignore", invalid="ignore"):  # the host's time may be none at all
        errors = np.asarray(predicted / lines[1:-1] - 1.0).ravel()
    return errors[np.isfinite(errors)]


def _as_the_sum(rank: RankProfile) -> NDArray[np.float64]:
    """What pricing mixed steps as a prefill and a decode apart would cost; the profile corrects it at these points."""
    prefill, decode, _, _ = attention_grids(rank, 1)
    apart = summed_apart(prefill, decode, rank.mixed)
    return np.asarray(apart / rank.mixed[:, -1] - 1.0)


def _unequal(rank: RankProfile) -> NDArray[np.float64]:
    """Of the batches of two lengths, as `step_seconds` prices them. Those that fitted the tail are among
    them."""
    from kvplan.core.step_time import STEP_LOAD, step_seconds

    prefill, decode, mixed, _ = attention_grids(rank, 1)
    decode_tail, mixed_tail = tail_grids(rank.skew, prefill, decode, mixed, 1)
    times = StepTimes(
        "measured",
        prefill=prefill,
        decode=decode,
        mixed=mixed,
        decode_tail=decode_tail,
        mixed_tail=mixed_tail,
    )
    tables = times.compiled()
    load = np.zeros(1, STEP_LOAD)
    errors = np.empty(len(rank.skew))
    for i, (chunk, prior, rows, long_rows, short, long, _, _, seconds) in enumerate(rank.skew):
        load["prefill_rows"] = chunk > 0
        load["prefill_tokens"] = chunk
        load["prefill_prior"] = prior
        load["decode_rows"] = rows
        load["decode_context"] = long_rows * long + (rows - long_rows) * short
        load["decode_context_squares"] = long_rows * long**2 + (rows - long_rows) * short**2
        load["decode_context_max"] = long
        errors[i] = step_seconds(tables, load) / seconds - 1.0
    return errors


def _by_block_size(profile: Profile, rank: RankProfile) -> NDArray[np.float64]:
    """Of each size between two others; the logarithm of the size is what is interpolated over."""
    rows = decode_by_block_size(profile, rank, None)
    if not len(rows):
        return np.zeros(0)
    axes, seconds = scattered(rows)
    return _along(seconds, np.log2(axes[0]), 0)


def _at_the_mean(rank: RankProfile) -> NDArray[np.float64]:
    """What ignoring the inequality would cost: the measured time at the mean context against the real one."""
    return np.asarray(rank.skew[:, 6] / rank.skew[:, 8] - 1.0)
