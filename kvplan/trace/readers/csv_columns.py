"""The fast way through CSV: Arrow's parser on a block of rows, and whole columns judged at once."""

from __future__ import annotations

from typing import Any

import numpy as np

from kvplan.trace.clock import Clock
from kvplan.trace.readers.delimited import Block
from kvplan.trace.rows import LEAST, MAX_TOKENS
from kvplan.trace.trace import Doubles, Longs


class NotWellFormedError(Exception):
    """Something in the block is no plain row of numbers; the slow way can tell which line, and why."""


class ColumnParser:
    """Parses blocks of one file.

    Args:
        header: the names of the columns; ``roles``: role -> name, of those that are wanted.
        clock: shared with the slow way, so that both count from the same zero.
    """

    def __init__(self, header: list[str], roles: dict[str, str], separator: str, clock: Clock) -> None:
        self.header = header
        self.roles = roles
        self.separator = separator
        self.clock = clock
        self._whole = [role for role in ("prompt", "output", *LEAST) if role in roles]
        self._times: list[Any] = []

    def columns(self, block: Block) -> tuple[Doubles | None, Longs, Longs | None, dict[str, Any]]:
        """(arrivals, prompts, outputs, further columns) of a block, as ``TraceBuilder.extend`` takes them.

        Raises:
            NotWellFormedError: the block holds anything but rows that the slow way would read just so.
        """
        import pyarrow as pa

        roles = self.roles
        table = self._table(block)
        columns = {role: table.column(name).combine_chunks() for role, name in roles.items()}
        if not len(table):
            return (np.zeros(0) if "arrival" in roles else None), np.zeros(0, np.int64), np.zeros(0, np.int64), {}
        arrival = self._seconds(columns["arrival"]) if "arrival" in roles else None
        numbers = {role: _within(columns[role], LEAST.get(role, 0)) for role in self._whole}
        extra: dict[str, Any] = {role: numbers[role] for role in LEAST if role in roles}
        names = (("name", "id"), ("session", "session"))
        extra |= {key: columns[role].to_pylist() for key, role in names if role in roles}
        pa.default_memory_pool().release_unused()  # else it keeps several times what all blocks together become
        return arrival, numbers["prompt"], numbers.get("output"), extra

    def _table(self, block: Block) -> Any:
        import pyarrow as pa
        import pyarrow.csv as arrow

        types = {self.roles[role]: pa.int64() for role in self._whole}
        types |= {self.roles[role]: pa.string() for role in ("id", "session") if role in self.roles}
        while True:
            if "arrival" in self.roles:
                types[self.roles["arrival"]] = self._time_type()
            try:
                return arrow.read_csv(
                    pa.BufferReader(block.data),
                    read_options=arrow.ReadOptions(
                        use_threads=False, block_size=len(block.data) + 1, column_names=self.header
                    ),
                    parse_options=arrow.ParseOptions(delimiter=self.separator, newlines_in_values=False),
                    convert_options=arrow.ConvertOptions(
                        column_types=types, include_columns=list(types), strings_can_be_null=False, null_values=[]
                    ),
                )
            except pa.ArrowException as error:
                if len(self._times) < 2:
                    raise NotWellFormedError from error
                del self._times[0]  # "5" came before "5.25"

    def _time_type(self) -> Any:
        """What Arrow shall read times as: the first of what is still possible for this file."""
        import pyarrow as pa

        clock = self.clock
        if clock.is_date is None:
            raise NotWellFormedError
        if not self._times:
            dates = [pa.timestamp("ns", "UTC") if clock.has_zone else pa.timestamp("ns")]
            self._times = dates if clock.is_date else [pa.int64(), pa.float64()]
        return self._times[0]

    def _seconds(self, values: Any) -> Doubles:
        clock = self.clock
        readings = _numbers(values, clock.is_date is False and len(self._times) == 1)
        since: Doubles = (readings - clock.base) / clock.per_second
        if not clock.is_date and not (np.isfinite(since).all() and readings.min() >= 0):
            raise NotWellFormedError
        if not np.abs(since).max() < 1e12:
            raise NotWellFormedError
        return since


def _numbers(column: Any, is_float: bool = False) -> Any:
    """The numbers of an Arrow column without nulls, not copied; a timestamp's are its nanoseconds.

    By its buffer: Arrow's own ``to_numpy`` imports pandas, which takes longer than most files do.
    """
    kind = np.float64 if is_float else np.int64
    return np.frombuffer(column.buffers()[1], kind, len(column), column.offset * 8)


def _within(column: Any, least: int) -> Longs:
    values: Longs = _numbers(column)
    if values.min() < least or values.max() > MAX_TOKENS:
        raise NotWellFormedError
    return values
