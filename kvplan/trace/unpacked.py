"""What a compressed input unpacks to, refused where it unpacks to far more than itself."""

from __future__ import annotations

import gzip
import io
from typing import IO, Any, cast

from kvplan.errors import InputError

MOST_TIMES = 64
"""How many times its own size an input may unpack to: traces unpack to 3 to 20 times, zeros to a thousand and more."""
SURELY = 16 << 20
"""Bytes that any input may unpack to: a short one can be repetitive by chance, and this much does no harm."""
_UNPACKERS = {"gzip": "gunzip", "zstd": "zstd -d"}


def unpacked(packed: IO[bytes], compression: str, size: int, name: str) -> IO[bytes]:
    """The decompressed bytes of ``packed``, forward only.

    Args:
        compression: ``gzip`` or ``zstd``; several members or frames, one after the other, are read as one.
        size: of ``packed``, bytes.
        name: what messages call it.

    Raises:
        InputError: while it is read, the first byte beyond ``SURELY`` that is beyond ``MOST_TIMES`` the size too:
            what is read before is true, and no more is unpacked.
    """
    if compression == "gzip":
        stream: Any = gzip.GzipFile(fileobj=packed, mode="rb")
    else:
        import pyarrow as pa  # only here: plain files need no Arrow to be opened

        stream = pa.CompressedInputStream(pa.PythonFile(packed, mode="r"), "zstd")
    return cast(IO[bytes], io.BufferedReader(_Bounded(stream, compression, size, name), 1 << 16))


class _Bounded(io.RawIOBase):
    """A decompressor's stream up to its bound. It cannot seek, so every byte that is read is counted once."""

    def __init__(self, stream: Any, compression: str, size: int, name: str) -> None:
        self._stream, self._compression, self._size, self._name = stream, compression, size, name
        self._most = self._left = max(MOST_TIMES * size, SURELY)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        room = memoryview(buffer).cast("B")
        block = self._stream.read(min(len(room), self._left + 1))  # one more: it may end at the bound
        if len(block) > self._left:
            raise InputError(
                f"is {self._size:,} bytes of {self._compression} that unpack to more than {self._most:,}",
                source=self._name,
                line=1,
                hint=f"where that is no mistake, unpack it first: {_UNPACKERS[self._compression]}",
            )
        self._left -= len(block)
        room[: len(block)] = block
        return len(block)
