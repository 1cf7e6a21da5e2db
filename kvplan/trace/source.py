"""The bytes of an input: a file, a pipe or standard input; plain, gzip or zstd; read as often as needed."""

from __future__ import annotations

import codecs
import contextlib
import io
import itertools
import os
import shutil
import stat
import sys
import tempfile
import zlib
from codecs import BOM_UTF8
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import IO, Any

from kvplan.errors import InputError
from kvplan.trace.unpacked import unpacked

HEAD_BYTES = 1 << 18
"""How much of a file detection looks at."""
_IN_MEMORY = 64 << 20
_BLOCK = 1 << 20

_GZIP, _ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"
_REFUSED = {
    b"\xff\xfe": "is UTF-16: save it as UTF-8",
    b"\xfe\xff": "is UTF-16: save it as UTF-8",
    b"PK\x03\x04": "is a zip archive: unpack it first",
    b"BZh": "is compressed with bzip2: unpack it first (gzip and zstd are read as they are)",
    b"\xfd7zXZ": "is compressed with xz: unpack it first (gzip and zstd are read as they are)",
    b"version https://git-lfs": "is a Git LFS pointer, not the file itself: run `git lfs pull`",
}
_BROKEN = (OSError, EOFError, zlib.error)


class Source:
    """An input that can be read from its beginning more than once, decompressed on the way.

    Use ``open_source``. ``name`` is what messages call it; ``path`` is None for standard input and pipes. ``size``:
    bytes, as compressed.
    """

    def __init__(self, name: str, path: Path | None, opener: Callable[[], IO[bytes]]) -> None:
        self.name = name
        self.path = path
        self._open = opener
        with opener() as file:
            magic = file.read(4)
            self.size = file.seek(0, io.SEEK_END)
        self.compression = "gzip" if magic[:2] == _GZIP else "zstd" if magic == _ZSTD else None
        with self.stream() as stream:
            self.head = _read_fully(stream, HEAD_BYTES)
        for start, reason in _REFUSED.items():
            if self.head.startswith(start):
                raise InputError(reason, source=name, line=1)

    @contextlib.contextmanager
    def stream(self) -> Iterator[IO[bytes]]:
        """The decompressed bytes from the beginning, through a handle of its own.

        Raises:
            InputError: damaged compression, one that unpacks to far more than the file (``unpacked``), or the file
                cannot be read.
        """
        try:
            with self._open() as file:
                yield unpacked(file, self.compression, self.size, self.name) if self.compression else file
        except _BROKEN as error:
            what = f"is damaged {self.compression} data" if self.compression else "cannot be read"
            raise InputError(f"{what}: {error}", source=self.name, line=1) from error

    def lines(self) -> Iterator[tuple[int, str]]:
        """(1-based number, text without its line end) of each line; ``\\n`` and ``\\r\\n`` end lines.

        Raises:
            InputError: a byte that is not UTF-8, with its line and column.
        """
        for line, raw in self.raw_lines():
            held = [self.text(raw, line)]
            del raw  # nothing of a line stays here while it is used: it may be as long as the file
            yield line, held.pop()

    def raw_lines(self) -> Iterator[tuple[int, bytes | bytearray]]:
        """(1-based number, bytes up to ``\\n``) of each line, for ``text``."""
        line = 1
        rest = bytearray()  # grows in place: a line of any length is held once
        with self.stream() as stream:
            while block := stream.read(_BLOCK):
                first, *others = block.split(b"\n")
                rest += first
                if not others:
                    continue
                last = others.pop()
                held, rest = [rest], bytearray()
                yield line, held.pop()
                for raw in others:
                    line += 1
                    yield line, raw
                line += 1
                rest += last
        if rest:
            yield line, rest

    def blocks(self) -> Iterator[bytes]:
        """The text in blocks that may cut a character, without a byte order mark.

        Raises:
            InputError: a byte that is not UTF-8, with its line and column.
        """
        with self.stream() as stream:
            first = True
            for block in self._checked(iter(lambda: stream.read(_BLOCK), b""), 1):
                yield block.removeprefix(BOM_UTF8) if first else block
                first = False

    def check_utf8(self, raw: bytes | bytearray, line: int) -> None:
        """Check a long line without decoding it at once: that may take four times its bytes.

        Raises:
            InputError: a byte that is not UTF-8, with its line and column.
        """
        for _ in self._checked((raw[at : at + _BLOCK] for at in range(0, len(raw), _BLOCK)), line):
            pass

    def _checked(self, blocks: Iterable[bytes | bytearray], line: int) -> Iterator[bytes]:
        """The blocks, once they are known to be UTF-8; the first begins ``line``."""
        decoder = codecs.getincrementaldecoder("utf-8")()
        column = 1
        for block in itertools.chain(blocks, (b"",)):
            try:
                decoder.decode(block, not block)
            except UnicodeDecodeError as error:
                # The decoder puts the begun character of the former block before this one.
                before = error.object[: error.start]
                if b"\n" in before:
                    column = 1 - (before.rfind(b"\n") + 1)
                else:
                    column -= len(error.object) - len(block)
                line += before.count(b"\n")
                message = "is not UTF-8 text"
                raise InputError(message, source=self.name, line=line, column=column + error.start) from None
            line += block.count(b"\n")
            column = len(block) - block.rfind(b"\n") if b"\n" in block else column + len(block)
            yield bytes(block)

    def text(self, raw: bytes | bytearray | memoryview, line: int) -> str:
        """One line's bytes as text without its line end.

        Raises:
            InputError: a byte that is not UTF-8, with its line and column.
        """
        if raw[-1:] == b"\r":  # before it is text, which takes up to four bytes a character
            raw = raw[:-1]
        try:
            text = str(raw, "utf-8")
        except UnicodeDecodeError as error:
            raise InputError("is not UTF-8 text", source=self.name, line=line, column=error.start + 1) from None
        return text.removeprefix("\ufeff") if line == 1 else text


def _read_fully(stream: Any, size: int) -> bytes:
    """``size`` bytes or all there are: a pipe or a decompressor may give fewer at once."""
    parts = []
    while size > 0 and (block := stream.read(size)):
        parts.append(bytes(block))
        size -= len(block)
    return b"".join(parts)


@contextlib.contextmanager
def open_source(path: str | os.PathLike[str]) -> Iterator[Source]:
    """Open a file, a pipe or ``-`` (standard input).

    What cannot be read twice is copied first: to memory, to a temporary file where it is larger than 64 MiB.

    Raises:
        InputError: missing, unreadable, a folder or a device.
    """
    name = os.fspath(path)
    if name == "-":
        with _copied(sys.stdin.buffer) as opener:
            yield Source("<stdin>", None, opener)
        return
    try:
        mode = Path(name).stat().st_mode
    except OSError as error:
        raise InputError(f"cannot read: {error.strerror or error}", source=name) from error
    except ValueError as error:  # a path with a zero byte
        raise InputError(f"is no path: {error}", source=name) from error
    if stat.S_ISREG(mode):
        yield Source(name, Path(name), lambda: Path(name).open("rb"))  # noqa: SIM115 - its user closes it
    elif stat.S_ISFIFO(mode):
        with Path(name).open("rb") as pipe, _copied(pipe) as opener:
            yield Source(name, None, opener)
    else:
        raise InputError("is a folder" if stat.S_ISDIR(mode) else "is neither a file nor a pipe", source=name)


@contextlib.contextmanager
def _copied(pipe: IO[bytes]) -> Iterator[Callable[[], IO[bytes]]]:
    start = _read_fully(pipe, _IN_MEMORY)
    if len(start) < _IN_MEMORY:
        yield lambda: io.BytesIO(start)
        return
    with tempfile.NamedTemporaryFile() as copy:
        copy.write(start)
        start = b""  # its memory is not needed any more
        shutil.copyfileobj(pipe, copy, 1 << 20)
        copy.flush()
        yield lambda: Path(copy.name).open("rb")  # noqa: SIM115 - its user closes it


def memory_source(data: bytes, name: str = "<memory>") -> Source:
    """Bytes at hand as a source."""
    return Source(name, None, lambda: io.BytesIO(data))
