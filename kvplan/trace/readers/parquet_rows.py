"""Rows of a Parquet file, some at a time, and only as many as its size bears.

Dictionaries and run lengths tell a hundred million values in a few bytes, a page of zeros packs as well as any. So
what a file says of itself is added up before a value of it is read, and what it turns out to hold while it is.
"""

from __future__ import annotations

import io
import itertools
from array import array
from collections.abc import Iterator, Sequence
from typing import IO, Any

from kvplan.errors import InputError
from kvplan.trace.readers.parquet_pages import RowGroup, footer_bytes, pages, row_groups
from kvplan.trace.source import Source

DAMAGED = (OSError, ValueError, OverflowError, RuntimeError)
"""What comes of a damaged file beside Arrow's own errors; RuntimeError of checks in C++ that Python has no name for."""

_FOOTER_SURELY, _FOOTER_SHARE = 1 << 17, 32
"""Bytes any footer may have, and its part of a larger file: Arrow makes up to 260 bytes of each."""
_UNPACKED_SURELY, _UNPACKED_TIMES = 32 << 20, 4
"""Bytes any column of a row group may unpack to, and how many times the file: it may be a single page."""
_KEPT_SURELY, _KEPT_TIMES = 60 << 20, 10
"""Bytes that a trace of any file may take, and how many times the file."""
_ROW_BYTES, _ENTRY_BYTES, _TEXT_BYTES = 48, 24, 64
"""What a row and an entry of a list take while a trace is made of them (it keeps 24 and 8), and an entry as a text."""
_BATCH, _BATCH_ENTRIES = 1 << 13, 1 << 16
"""Rows and list entries at once: as Python's objects a row of numbers takes 400 bytes."""
_LONG_TEXT = 1 << 10
"""Bytes of a text that is not to be held by every row of a batch."""
_LONGEST_FIXED = 64
"""Bytes of a fixed-width value: a UUID has 16, a decimal 32."""


class ParquetRows:
    """An open file's columns.

    Args:
        file: seekable; read as long as this lives.
        source: what messages call it, and its size.

    Raises:
        InputError: the footer is larger than a trace's.
        pyarrow.ArrowException, OSError, ValueError: the footer is damaged.
    """

    def __init__(self, file: IO[bytes], source: Source) -> None:
        import pyarrow.parquet as pq

        self._file, self._source = file, source
        self._size = file.seek(0, io.SEEK_END)
        self._check_footer()
        self._parquet = pq.ParquetFile(file, pre_buffer=False)
        self.schema = self._parquet.schema_arrow

    def _check_footer(self) -> None:
        length = footer_bytes(self._file)
        self._file.seek(0)
        if max(_FOOTER_SURELY, self._size // _FOOTER_SHARE) < length <= self._size:  # Arrow refuses a longer one
            raise InputError(
                f"has a footer of {length:,} bytes in a file of {self._size:,}",
                source=self._source.name,
                line=1,
                hint="write it with fewer columns or larger row groups",
            )

    def batches(
        self, plain: Sequence[str], lists: Sequence[str], kept: str | None, limit: int | None
    ) -> Iterator[dict[str, list[Any]]]:
        """Columns of some rows at a time, each as a list of Python's values.

        Args:
            plain: columns of numbers, times and texts; a cell of another kind is ``{}``.
            lists: columns of lists of whole numbers, which come as ``array("q")``, or of texts; another is ``{}``.
            kept: the plain column whose texts are all kept, one a row.
            limit: rows that are wanted; None: all, and they are refused before the first where they are too many.

        Raises:
            InputError: they would take more than the file bears.
            pyarrow.ArrowException, OSError, ValueError: a page is damaged.
        """
        import pyarrow as pa
        import pyarrow.parquet as pq

        names = [*plain, *lists]
        for name in names:
            if self.schema.names.count(name) > 1:
                raise InputError("is the name of two columns", value=name, source=self._source.name, line=1)
        metadata = self._parquet.metadata
        wanted = [name for name in plain if _is_plain(self.schema.field(name).type)]
        wanted += [name for name in lists if _is_list(self.schema.field(name).type)]
        columns = [metadata.schema.column(at) for at in range(metadata.num_columns)]
        leaves = [(at, top) for at, column in enumerate(columns) if (top := _top(column.path, wanted)) is not None]
        of_lists = [(at, name) for at, name in leaves if name in lists]
        budget = _Budget(self._size, self._source.name, limit)
        groups = row_groups(self._file)
        if any(len(group.columns) != metadata.num_columns for group in groups):
            raise ValueError("a row group has other columns than the schema")
        budget.check(groups, leaves, of_lists)
        texts = {columns[at].path: name for at, name in leaves if columns[at].physical_type == "BYTE_ARRAY"}
        shared = pq.ParquetFile(self._file, metadata=metadata, read_dictionary=list(texts), pre_buffer=False)
        line = 1
        for group, about in enumerate(groups):
            budget.check_pages(self._file, about, leaves, line)
            entries = sum(about.columns[at].values for at, _ in of_lists)
            most = max(1, min(_BATCH, limit or _BATCH, _BATCH_ENTRIES * about.rows // max(1, entries)))
            # As dictionaries a long text that a million rows repeat is held once, but each of a million texts twice.
            file = shared if _longest(shared, group, list(texts.values())) > _LONG_TEXT else self._parquet
            for batch in file.iter_batches(most, row_groups=[group], columns=wanted, use_threads=False):
                read = {name: _listed(batch.column(name), budget, line) for name in wanted}
                budget.add(len(batch), [batch.column(name) for _, name in of_lists], read.get(kept or ""), line)
                rows = len(batch)
                del batch
                pa.default_memory_pool().release_unused()  # else it keeps what was freed
                yield {name: read[name] if name in read else [{}] * rows for name in names}
                line += rows


def _longest(shared: Any, group: int, names: list[str]) -> int:
    """Bytes of the longest text in the dictionaries of a row group; the others stand in its pages as they are."""
    import pyarrow.compute as pc

    if not names:
        return 0
    longest = 0
    for batch in shared.iter_batches(1, row_groups=[group], columns=names, use_threads=False):
        for column in batch.columns:
            texts = column.values if _is_list(column.type) else column
            longest = max(longest, pc.max(pc.binary_length(texts.dictionary)).as_py() or 0)
        break  # the first row comes with the whole dictionary
    return longest


class _Budget:
    """What may be kept of a file of ``size`` bytes, and what is so far."""

    def __init__(self, size: int, name: str, limit: int | None) -> None:
        self.most = max(_KEPT_SURELY, _KEPT_TIMES * size)
        self._size, self._name, self._limit = size, name, limit
        self._kept = 0

    def check(
        self, groups: Sequence[RowGroup], leaves: Sequence[tuple[int, str]], lists: Sequence[tuple[int, str]]
    ) -> None:
        """Judge a file by its footer."""
        for about in groups:
            for at, name in leaves:
                self._check_unpacked(name, about.columns[at].unpacked)
            # Any of a row group's rows may have all of its entries: no limit helps.
            entries = max((about.columns[at].values for at, _ in lists), default=0)
            if entries * _ENTRY_BYTES > self.most:
                raise self._refused(f"has {entries:,} list entries in one row group")
        if self._limit is not None:
            return
        rows = sum(about.rows for about in groups)
        entries = sum(about.columns[at].values for about in groups for at, _ in lists)
        if rows * _ROW_BYTES + entries * _ENTRY_BYTES > self.most:
            raise self._refused(f"holds {rows:,} rows and {entries:,} list entries", hint="--limit N reads the first N")

    def check_pages(self, file: IO[bytes], about: RowGroup, leaves: Sequence[tuple[int, str]], line: int) -> None:
        """Judge the pages of a row group, of which the footer says ``about``: Arrow goes by the pages."""
        for at, name in leaves:
            chunk, values = about.columns[at], 0
            for page in pages(file, chunk):
                self._check_unpacked(name, page.unpacked)
                values += page.values
                if values > chunk.values:
                    raise self._refused(f"has more values in column {name!r} than its footer says", line)

    def _check_unpacked(self, name: str, unpacked: int) -> None:
        if unpacked > max(_UNPACKED_SURELY, _UNPACKED_TIMES * self._size):
            raise self._refused(f"has a column {name!r} that unpacks to {unpacked:,} bytes")

    def add(self, rows: int, lists: Sequence[Any], texts: list[Any] | None, line: int) -> None:
        """Count what is kept of the rows from ``line`` on: the footer may lie, and tells nothing of texts."""
        entries = sum(len(column.flatten()) for column in lists)
        self._kept += entries * _ENTRY_BYTES + (rows * _ROW_BYTES if self._limit is None else 0)
        self._kept += sum(len(text) for text in texts or () if isinstance(text, (str, bytes)))
        if self._kept > self.most:
            raise self._refused(
                f"holds more than {self.most:,} bytes of rows, lists and names",
                line,
                hint="--limit N reads the first N",
            )

    def check_texts(self, entries: int, line: int) -> None:
        """Lists of that many texts are about to become Python's."""
        if entries * _TEXT_BYTES > self.most:
            raise self._refused(f"has {entries:,} texts in the lists of a few rows", line)

    def _refused(self, what: str, line: int = 1, hint: str | None = None) -> InputError:
        return InputError(
            f"{what}, in a file of {self._size:,} bytes",
            source=self._name,
            line=line,
            hint=hint or "that is more than a file of its size is taken to mean",
        )


def _top(path: str, names: Sequence[str]) -> str | None:
    """Which of the columns ``names`` a leaf belongs to."""
    return next((name for name in names if path == name or path.startswith(f"{name}.")), None)


def _is_text(kind: Any) -> bool:
    from pyarrow import types

    return types.is_dictionary(kind) or types.is_string(kind) or types.is_large_string(kind) or types.is_binary(kind)


def _is_list(kind: Any) -> bool:
    """Whether a column of the type can hold block ids or segments: anything else is not even unpacked."""
    from pyarrow import types

    if not types.is_list(kind) and not types.is_large_list(kind):
        return False
    return types.is_integer(kind.value_type) or _is_text(kind.value_type)


def _is_plain(kind: Any) -> bool:
    """Whether a column of the type can hold what a request has: anything else is not even unpacked."""
    from pyarrow import types

    if types.is_fixed_size_binary(kind):
        return bool(kind.byte_width <= _LONGEST_FIXED)
    return types.is_primitive(kind) or types.is_decimal(kind) or types.is_null(kind) or _is_text(kind)


def _listed(column: Any, budget: _Budget, line: int) -> list[Any]:
    """A column as Python's values."""
    if _is_list(column.type):
        return _lists(column, budget, line)
    return _shared(column) if _is_text(column.type) else list(column.to_pylist())


def _lists(column: Any, budget: _Budget, line: int) -> list[Any]:
    import pyarrow as pa
    import pyarrow.compute as pc

    lengths = pc.list_value_length(column).to_pylist()
    ends = list(itertools.accumulate(length or 0 for length in lengths))
    entries = column.flatten()
    if pa.types.is_integer(entries.type) and not entries.null_count:
        try:
            numbers = entries.cast(pa.int64())
        except pa.ArrowInvalid:  # beyond 63 bits: Python's numbers tell which
            return list(column.to_pylist())
        whole = memoryview(numbers.buffers()[1] or b"")[numbers.offset * 8 :]
        parts: Iterator[Any] = (array("q", bytes(whole[8 * begin : 8 * end])) for begin, end in _spans(ends))
    else:
        budget.check_texts(len(entries), line)
        values = _shared(entries)
        parts = (values[begin:end] for begin, end in _spans(ends))
    return [None if length is None else part for length, part in zip(lengths, parts, strict=True)]


def _spans(ends: list[int]) -> Iterator[tuple[int, int]]:
    return zip([0, *ends[:-1]], ends, strict=True)


def _shared(column: Any) -> list[Any]:
    """The values of a dictionary-encoded column, those that are equal as one object; of another as they come."""
    import pyarrow as pa

    if not pa.types.is_dictionary(column.type):
        return list(column.to_pylist())
    places = column.indices.to_pylist()
    used = sorted({place for place in places if place is not None})
    # Not pa.array(): that imports pandas, which takes longer and more than most files do.
    chosen = pa.Array.from_buffers(pa.int64(), len(used), [None, pa.py_buffer(array("q", used))])
    values = dict(zip(used, column.dictionary.take(chosen).to_pylist(), strict=True))
    return [values.get(place) for place in places]
