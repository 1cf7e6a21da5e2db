"""A step-time model in words that a person can read, and its way into the compiled form."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from kvplan.errors import InputError

if TYPE_CHECKING:
    from kvplan.core.step_time import TimingTables


@dataclass(frozen=True)
class Term:
    """One number that a step time is made of, and where it comes from."""

    name: str
    value: float
    unit: str
    source: str


@dataclass(frozen=True, eq=False)
class Grid:
    """Values at every combination of the points of its axes; linear in between, exact at the points.

    Args:
        axes: 1, 2 or 4 float64 arrays, each ascending.
        values: float64 of the shape of the axes, finite, >= 0.

    Raises:
        InputError: an axis does not ascend, the shapes differ, or a value is no time.
    """

    axes: tuple[NDArray[np.float64], ...]
    values: NDArray[np.float64]
    name: str = "grid"

    def __post_init__(self) -> None:
        axes = tuple(np.ascontiguousarray(axis, np.float64) for axis in self.axes)
        values = np.ascontiguousarray(self.values, np.float64)
        object.__setattr__(self, "axes", axes)
        object.__setattr__(self, "values", values)
        for axis in axes:
            if not len(axis) or np.any(np.diff(axis) <= 0):
                raise InputError("the points of an axis must ascend", field=self.name, value=axis.tolist()[:8])
        if values.shape != tuple(len(axis) for axis in axes):
            raise InputError("the table does not fit its axes", field=self.name, value=values.shape)
        if not np.all(np.isfinite(values)) or np.any(values < 0):
            raise InputError("a time must be finite and not negative", field=self.name)


@dataclass(frozen=True)
class AttentionGroup:
    """The roofline of attention of the layers that cache alike.

    Args:
        window: tokens a query attends at most; 0 for all.
        read_s: seconds to read one token of context, all its layers, on one rank.
        prefill_pair_s, decode_pair_s: seconds of arithmetic a query-key pair.
        step_s: seconds a step, whatever it holds.
    """

    window: int
    read_s: float
    prefill_pair_s: float
    decode_pair_s: float
    step_s: float = 0.0


@dataclass(frozen=True, eq=False)
class StepTimes:
    """A step-time model: see `kvplan.core.step_time` for what each grid holds. Seconds of one whole step.

    ``terms`` name every number that went in, for people to read and to override.
    """

    kind: str
    """constant, roofline or measured."""
    terms: tuple[Term, ...] = ()
    host_step_s: float = 0.0
    host_row_s: float = 0.0
    overlapped: bool = False
    """The host works beside the device (asynchronous scheduling): a step takes the longer of the two."""
    row_s: float = 0.0
    """Of the device, a row: the constant state of linear-attention layers."""
    copy_s_per_byte: float = 0.0
    swap_s_per_byte: float = 0.0
    groups: tuple[AttentionGroup, ...] = ()
    linear: Grid | None = None
    head: Grid | None = None
    prefill: Grid | None = None
    decode: Grid | None = None
    mixed: Grid | None = None
    decode_tail: Grid | None = None
    mixed_tail: Grid | None = None
    decode_by_block_size: NDArray[np.float64] = field(default_factory=lambda: np.zeros((0, 4)))
    """[n, 4]: block size, decode rows, context of each, measured seconds of attention in a step; for people to compare
    block sizes, priced in ``decode`` already. Empty where nothing of the kind was measured."""
    errors: Mapping[str, float] = field(default_factory=dict)
    """How far such a model lies from measurements: a median absolute relative error by what was measured."""
    warnings: tuple[str, ...] = field(default=())
    """What a reader of the predictions should know, found while building."""

    def compiled(self) -> TimingTables:
        """The arrays that `step_seconds` reads: a fresh copy, with nothing noted outside."""
        from kvplan.core import step_time as core  # numba: half a second

        layout = np.zeros((core.GRIDS, 9), np.int64)
        pieces: list[NDArray[np.float64]] = []
        end = 0
        grids = (
            self.linear,
            self.head,
            self.prefill,
            self.decode,
            self.mixed,
            self.decode_tail,
            self.mixed_tail,
        )
        for row, grid in zip(layout, grids, strict=True):
            if grid is None:
                continue
            row[0] = end
            pieces.append(grid.values.ravel())
            end += grid.values.size
            for axis, points in enumerate(grid.axes):
                row[1 + axis] = len(points)
                row[5 + axis] = end
                pieces.append(points)
                end += len(points)
        return core.TimingTables(
            fixed=np.array(
                [
                    self.host_step_s,
                    self.host_row_s,
                    self.row_s,
                    self.copy_s_per_byte,
                    self.swap_s_per_byte,
                    float(self.overlapped),
                ]
            ),
            groups=np.array(
                [[float(getattr(group, f.name)) for f in fields(group)] for group in self.groups], np.float64
            ).reshape(-1, core.GROUP),
            grids=np.concatenate(pieces) if pieces else np.zeros(0),
            layout=layout,
            outside=np.zeros((core.OUTSIDE, 2)),
        )

    def beyond(self, tables: TimingTables) -> list[str]:
        """One sentence for each axis on which a run left the range that was measured."""
        if self.kind != "measured":
            return []
        ranges = (
            ("tokens in a step", self.linear, 0),
            ("sampling rows", self.head, 0),
            ("prefill tokens", self.prefill, 0),
            ("tokens before a prefill chunk", self.prefill, 1),
            ("decode rows", self.decode, 0),
            ("decode context", self.decode, 1),
        )
        sentences = []
        for (what, grid, axis), (count, largest) in zip(ranges, tables.outside, strict=True):
            if grid is not None and count > 0:
                sentences.append(
                    f"timing: {what} reached {largest:,.0f}, the profile ends at {grid.axes[axis][-1]:,.0f}: "
                    f"extrapolated in {count:,.0f} steps"
                )
        return sentences

    def as_dict(self) -> dict[str, Any]:
        """The terms, for a summary: name to value, unit and source."""
        return {term.name: {"value": term.value, "unit": term.unit, "source": term.source} for term in self.terms}
