"""The JSON formats, told by the keys of their first values."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from kvplan.trace.builder import TraceBuilder
from kvplan.trace.readers.hash_rows import BailianRows, HashRows

Sample = Sequence[dict[str, Any]]


class RowReader(Protocol):
    """Adds one JSON value's requests to its builder."""

    def row(self, value: dict[str, Any], line: int) -> None:
        """Raises InputError, without a place, for a value that holds none."""


@dataclass(frozen=True)
class JsonFormat:
    """A JSON format.

    Args:
        name: as ``--format`` takes it.
        fits: whether the sample (the first objects of a file) is of this format.
        reader: makes the reader for a builder, a unit of time and the person's options.
        time_unit: the format's own; None: inferred from the sample.
        block_size: of hash ids, as the format prescribes; None: none.
    """

    name: str
    fits: Callable[[Sample], bool]
    reader: Callable[[TraceBuilder, str, Any], RowReader]
    time_unit: str | None = "s"
    block_size: int | None = None

    def unit(self, sample: Sample, builder: TraceBuilder, given: str | None) -> str:
        """The unit of time: given, the format's own, or inferred; noted in each case."""
        if given:
            builder.note(f"time in {given} (as given)")
            return given
        if self.time_unit:
            builder.note(f"time in {self.time_unit}, as {self.name} has it")
            return self.time_unit
        unit, why = infer_unit(sample)
        builder.note(f"time in {unit}, inferred: {why} (--time-unit overrides)")
        return unit


def infer_unit(sample: Sample) -> tuple[str, str]:
    """(unit, why) of ``timestamp`` in rows that do not say: Mooncake's ms or vLLM's and GuideLLM's seconds."""
    times = [value["timestamp"] for value in sample if isinstance(value.get("timestamp"), (int, float))]
    gap = (max(times) - min(times)) / (len(times) - 1) if len(times) > 1 else 0.0
    if any(isinstance(time, float) and time != int(time) for time in times) and gap < 10:
        return "s", f"fractional timestamps {gap:.3g} apart"
    return "ms", "whole timestamps, or far apart, as Mooncake's"


def _has(*keys: str) -> Callable[[Sample], bool]:
    return lambda sample: any(all(key in value for key in keys) for value in sample)


def _seconds(sample: Sample) -> bool:
    return _has("timestamp", "input_length")(sample) and infer_unit(sample)[0] == "s"


# The first that fits wins: the more particular stand first.
JSON_FORMATS: tuple[JsonFormat, ...] = (
    JsonFormat("bailian", _has("chat_id", "input_length"), lambda b, u, o: BailianRows(b, u), "s", 16),
    JsonFormat("servegen-offline", _has("input_length", "img_ids"), lambda b, u, o: HashRows(b, u), "s", 16),
    JsonFormat(
        "vllm-timed-trace", lambda s: _seconds(s) and _has("hash_ids")(s), lambda b, u, o: HashRows(b, u), None, 16
    ),
    JsonFormat("guidellm-trace", _seconds, lambda b, u, o: HashRows(b, u), None, 512),
    JsonFormat("mooncake", _has("timestamp", "input_length"), lambda b, u, o: HashRows(b, u), None, 512),
)


def json_format(sample: Sample) -> JsonFormat | None:
    """The format of a file that begins with these objects; None where no format knows it."""
    return next((known for known in JSON_FORMATS if known.fits(sample)), None)
