"""The writers by name: what each keeps, and what it has no word for."""

from __future__ import annotations

import contextlib
import gzip
import io
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from kvplan.errors import InputError
from kvplan.files import atomic_path, atomic_write
from kvplan.trace.trace import Trace
from kvplan.trace.words import names
from kvplan.trace.writers.blocks import fitting_block_size, kept_share
from kvplan.trace.writers.rows import aiperf, guidellm, mooncake, timed_trace, vidur
from kvplan.trace.writers.scenario import scenario_yaml
from kvplan.trace.writers.tables import write_parquet

_EXTRA = ("request_id", "session", "priority", "n", "beam_width")


@dataclass(frozen=True)
class Writer:
    """A writer.

    Args:
        name: as ``--to`` takes it; a reader of that name reads the file back.
        suffix: of its files.
        keeps: the trace's further columns that the format has a word for.
        lines: makes the text, line by line; None: the format is binary.
        block_size: the only one that the format knows; None: any.
        blocks: whether sharing is told by block ids.
    """

    name: str
    suffix: str
    keeps: tuple[str, ...]
    lines: Callable[[Trace, IO[str], int], None] | None
    block_size: int | None = None
    blocks: bool = True


WRITERS = {
    writer.name: writer
    for writer in (
        Writer("mooncake", ".jsonl", (), mooncake),
        Writer("vllm-timed-trace", ".jsonl", (), timed_trace),
        Writer("aiperf", ".jsonl", (), aiperf),
        Writer("guidellm", ".jsonl", (), guidellm, block_size=512),
        Writer("vidur", ".csv", ("session",), vidur),
        Writer("parquet", ".parquet", _EXTRA, None, blocks=False),
        Writer("yaml", ".yaml", _EXTRA, scenario_yaml, blocks=False),
    )
}
_COMPRESSED = (".gz", ".zst")
_BY_SUFFIX = {".parquet": "parquet", ".yaml": "yaml", ".yml": "yaml", ".csv": "vidur", ".jsonl": "mooncake"}


@dataclass(frozen=True)
class Written:
    """What came of a conversion: the format, and what it could not keep (for the person)."""

    format: str
    notes: tuple[str, ...]


def writer_for(path: str | os.PathLike[str], name: str | None, block_size: int | None = None) -> Writer:
    """The writer of that name, or the one that the file's suffix suggests (``.csv``, ``.csv.gz``, ``.csv.zst``).

    Raises:
        InputError: there is none, or it cannot write such a file or blocks of that size.
    """
    inner = Path(path).with_suffix("") if Path(path).suffix.lower() in _COMPRESSED else Path(path)
    wanted = name or _BY_SUFFIX.get(inner.suffix.lower())
    if wanted not in WRITERS:
        if name is None:
            raise InputError(
                "does not tell the format by its suffix",
                field="output",
                value=os.fspath(path),
                hint=f"--to takes {', '.join(WRITERS)}",
            )
        raise InputError("is no format to write", field="to", value=name, hint=names(name, WRITERS))
    writer = WRITERS[wanted]
    if writer.lines is None and Path(path).suffix.lower() in _COMPRESSED:
        raise InputError("is compressed in itself: leave out the second suffix", field="output", value=os.fspath(path))
    if block_size is not None and (block_size < 1 or writer.block_size not in (None, block_size)):
        only = f"{writer.name} takes {writer.block_size} only" if writer.block_size else "it must be at least 1"
        raise InputError(f"is no block size of {writer.name}", field="block_size", value=block_size, hint=only)
    return writer


def write_trace(
    trace: Trace, path: str | os.PathLike[str], *, to: str | None = None, block_size: int | None = None
) -> Written:
    """Write ``trace`` to ``path``, whole or not at all; ``-`` is standard output; ``.gz`` and ``.zst`` are packed.

    Args:
        to: a name of ``WRITERS``; None: by the file's suffix.
        block_size: tokens in a block of the hash ids written; None: the trace's own, or the largest usual one
            that loses (nearly) nothing.

    Raises:
        InputError: no such format, or a block size that it does not know.
        KvplanError: the file cannot be written.
    """
    writer = writer_for(path, to, block_size)
    size = writer.block_size or block_size or (fitting_block_size(trace) if trace.content is not None else 512)
    if path == "-":
        _to_stdout(trace, writer, size)
    elif writer.lines is None:
        with atomic_path(path) as temporary:
            write_parquet(trace, temporary)
    else:
        with atomic_write(path, "wb") as raw, _packed(raw, Path(path).suffix.lower()) as file:
            writer.lines(trace, file, size)
    return Written(writer.name, tuple(_losses(trace, writer, size)))


@contextlib.contextmanager
def _packed(raw: IO[bytes], suffix: str) -> Iterator[IO[str]]:
    """Text into ``raw``, compressed where the suffix says so; ``raw`` stays open."""
    packer: Any = contextlib.nullcontext(raw)
    if suffix == ".gz":
        packer = gzip.GzipFile("", "wb", fileobj=raw, mtime=0)
    elif suffix == ".zst":
        import pyarrow as pa  # only here: the other text files are written without Arrow

        packer = pa.CompressedOutputStream(pa.PythonFile(raw, mode="w"), "zstd")
    with packer as packed:
        file = io.TextIOWrapper(packed, encoding="utf-8", newline="\n")
        yield file
        file.flush()
        file.detach()


def _to_stdout(trace: Trace, writer: Writer, size: int) -> None:
    if writer.lines is not None:
        writer.lines(trace, sys.stdout, size)
        return
    whole = io.BytesIO()  # Parquet is written with seeks, which a pipe does not have
    write_parquet(trace, whole)
    sys.stdout.buffer.write(whole.getvalue())


def _losses(trace: Trace, writer: Writer, size: int) -> list[str]:
    lost: list[Any] = [name for name in _EXTRA if name not in writer.keeps and getattr(trace, name) is not None]
    notes = [f"{writer.name} has no word for: {', '.join(lost)}"] if lost else []
    if writer.blocks and trace.content is not None:
        notes.append(f"hash ids of {size} tokens keep {kept_share(trace, size):.1%} of the shared tokens")
        if (trace.content.output_source >= 0).any():
            notes.append("hash ids name prompts only: that an earlier output is repeated in a later prompt is lost")
    return notes
