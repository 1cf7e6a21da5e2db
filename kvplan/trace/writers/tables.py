"""Parquet with all that a trace knows: the columns of ``Trace`` and ``Content`` by their own names."""

from __future__ import annotations

from pathlib import Path
from typing import IO, Any

import numpy as np

from kvplan.trace.trace import Trace

_COLUMNS = (
    "arrival_s",
    "prompt_tokens",
    "output_tokens",
    "request_id",
    "priority",
    "session",
    "n",
    "beam_width",
)


def write_parquet(trace: Trace, path: Path | IO[bytes]) -> None:
    """One row a request; content as lists in ``segment_source``, ``segment_start``, ``segment_tokens``."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    columns: dict[str, Any] = {}
    for name in _COLUMNS:
        column = getattr(trace, name)
        if column is not None:
            columns[name] = pa.array(trace.names(), pa.string()) if name == "request_id" else pa.array(column)
    content = trace.content
    if content is not None:
        pointer = pa.array(content.segment_ptr.astype(np.int32))
        for name in ("segment_source", "segment_start", "segment_tokens"):
            columns[name] = pa.ListArray.from_arrays(pointer, pa.array(getattr(content, name), pa.int64()))
        columns["output_source"] = pa.array(content.output_source, pa.int64())
        if content.output_start is not None:
            columns["output_start"] = pa.array(content.output_start, pa.int64())
    metadata = {"kvplan": "trace"} | (
        {} if trace.origin.block_size is None else {"block_size": str(trace.origin.block_size)}
    )
    pq.write_table(pa.table(columns, metadata=metadata), path)
