"""Files written whole or not at all: write beside the target, fsync, rename.

A reader of the target sees the earlier file until the moment of the rename and the finished one from then on.
A process killed before it leaves at most a hidden ``.NAME.*.tmp`` beside the target.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from kvplan.errors import KvplanError

_HINTS = {
    errno.ENOSPC: "the disk is full: free some space or choose another folder with -o",
    errno.EDQUOT: "the quota of this disk is used up: choose another folder with -o",
    errno.EACCES: "no permission: choose a folder you may write to with -o",
    errno.EPERM: "no permission: choose a folder you may write to with -o",
    errno.EROFS: "the file system is read-only: choose another folder with -o",
    errno.ENOENT: "the folder does not exist: create it first",
    errno.ENOTDIR: "a part of the path is a file, not a folder",
    errno.EISDIR: "the path is a folder: name a file in it",
}


def _refusal(path: Path, error: OSError) -> KvplanError:
    reason = error.strerror or str(error) or type(error).__name__
    return KvplanError(f"cannot write: {reason}", source=str(path), hint=_HINTS.get(error.errno or 0))


def _permissions(path: Path) -> int:
    """The mode the finished file gets: the earlier file's, or what ``open`` would have given."""
    try:
        return stat.S_IMODE(path.stat().st_mode)
    except OSError:
        umask = os.umask(0)
        os.umask(umask)
        return 0o666 & ~umask


def _sync_folder(folder: Path) -> None:
    # The rename itself must survive a power cut; some file systems cannot fsync a folder, which is no error.
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


@contextlib.contextmanager
def atomic_path(path: str | os.PathLike[str]) -> Iterator[Path]:
    """A temporary path beside ``path``, renamed to it when the block ends without an exception.

    For libraries that want to open the file themselves. The temporary file exists and is empty at the start.
    A target that is a device or a pipe (``/dev/stdout``, a FIFO) is handed out as it is: nothing to rename
    there.

    Raises:
        KvplanError: the folder cannot be written to, the disk is full, or the target is a folder.
    """
    target = Path(path)
    if target.absolute().is_relative_to("/dev"):
        yield target
        return
    try:
        target = Path(os.path.realpath(target))  # a link stays a link; its target is what is replaced
        if target.is_dir():
            raise OSError(errno.EISDIR, os.strerror(errno.EISDIR))
        if target.exists() and not target.is_file():
            yield target
            return
        handle, name = tempfile.mkstemp(prefix=f".{target.name[:100]}.", suffix=".tmp", dir=target.parent)
        os.close(handle)
    except OSError as error:
        raise _refusal(Path(path), error) from error
    temporary = Path(name)
    try:
        yield temporary
        temporary.chmod(_permissions(target))
        with temporary.open("rb+") as written:
            os.fsync(written.fileno())
        temporary.replace(target)
        _sync_folder(target.parent)
    except OSError as error:
        raise _refusal(Path(path), error) from error
    finally:
        with contextlib.suppress(OSError):  # gone already after the rename
            temporary.unlink()


@contextlib.contextmanager
def atomic_write(path: str | os.PathLike[str], mode: str = "w") -> Iterator[IO[Any]]:
    """An open file whose contents become ``path`` when the block ends without an exception.

    Args:
        path: the target; its folder must exist.
        mode: ``"w"`` (UTF-8, ``\\n`` line ends) or ``"wb"``.

    Raises:
        KvplanError: as ``atomic_path``.
    """
    if mode not in ("w", "wb"):
        raise ValueError(f"atomic_write writes whole files: mode 'w' or 'wb', not {mode!r}")
    text: dict[str, Any] = {} if mode == "wb" else {"encoding": "utf-8", "newline": "\n"}
    with atomic_path(path) as temporary, temporary.open(mode, **text) as file:
        yield file


def write_text(path: str | os.PathLike[str], text: str) -> None:
    """Write ``text`` to ``path``, whole or not at all."""
    with atomic_write(path) as file:
        file.write(text)


def write_bytes(path: str | os.PathLike[str], data: bytes) -> None:
    """Write ``data`` to ``path``, whole or not at all."""
    with atomic_write(path, "wb") as file:
        file.write(data)


def write_json(path: str | os.PathLike[str], value: Any) -> None:
    """Write ``value`` as JSON that any parser accepts (no NaN), whole or not at all."""
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n")


GENERATOR = '<meta name="generator" content="kvplan'
"""In the head of every page that kvplan writes."""


def with_generator(page: str) -> str:
    """A page that another library made, marked as kvplan's."""
    return page.replace("<head>", f'<head>{GENERATOR}">', 1)


_SIGNED = "written by kvplan, unedited: "
_ENDS = {"# ": "", "<!-- ": " -->"}


def signed(text: str, begin: str = "# ") -> str:
    """``text`` and, last, a comment with its digest: as long as nobody edits it, ``is_signed`` knows it again.

    Args:
        begin: of a comment: ``"# "`` or ``"<!-- "``.
    """
    body = text if text.endswith("\n") else text + "\n"
    digest = hashlib.sha256(body.encode("utf-8", "replace")).hexdigest()[:16]
    return f"{body}{begin}{_SIGNED}{digest}{_ENDS[begin]}\n"


def is_signed(data: bytes) -> bool:
    """Whether ``signed`` made it and it is as it was."""
    text = data.decode("utf-8", "replace")
    at = text.rfind("\n", 0, -1) + 1
    return any(data == signed(text[:at], begin).encode("utf-8", "replace") for begin in _ENDS)


def make_folder(path: str | os.PathLike[str]) -> Path:
    """Create ``path`` and its parents where they are missing; a KvplanError where that is impossible."""
    folder = Path(path)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _refusal(folder, error) from error
    return folder
