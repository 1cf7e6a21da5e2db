"""Where a command may write. Nothing that a person had on disk is lost.

One rule for every command and every file: a file that is read is never written; what is new, empty, or kvplan's own of
the same kind (`kvplan.commands.written`) is; anything else only with ``--overwrite``.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kvplan.commands.written import Kind
from kvplan.errors import InputError

if TYPE_CHECKING:
    from kvplan.scenario import Scenario

Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace files that kvplan did not write, too.")]


def check_file(
    path: str | os.PathLike[str], flag: str, kind: Kind | None, *, read: Iterable[Any] = (), overwrite: bool = False
) -> None:
    """Before a long run, not after it.

    Args:
        path: the file to write; ``-``, a device or a pipe always may be.
        flag: that names it.
        kind: what kvplan writes there; None: what others write as well, which is never taken for kvplan's own.
        read: the files that are read; entries that are no files do not matter.
        overwrite: what ``--overwrite`` says.

    Raises:
        InputError: it is one of those that are read, a folder, or somebody else's.
    """
    target = Path(path)
    if str(path) == "-" or not target.exists():
        return
    if target.is_dir():
        raise InputError("is a folder, not a file", field=flag, value=str(path))
    if not target.is_file():
        return
    if any(same(target, other) for other in read):
        raise InputError("is a file that is read", field=flag, value=str(path), hint="write to another file")
    if overwrite or target.stat().st_size == 0 or (kind is not None and _is(target, kind)):
        return
    what = "exists, and may be another's work" if kind is None else "is not what kvplan would write there"
    raise InputError(what, field=flag, value=str(path), hint="choose another name, or replace it with --overwrite")


def check_folder(
    folder: Path, flag: str, kinds: Mapping[str, Kind], *, read: Iterable[Any] = (), overwrite: bool = False
) -> None:
    """``check_file`` for every file of these names in a folder, which need not be there.

    Raises:
        InputError: as ``check_file``; ``folder`` is a file.
    """
    if folder.exists() and not folder.is_dir():
        raise InputError("is a file, not a folder", field=flag, value=str(folder))
    inputs = list(read)
    for name, kind in kinds.items():
        check_file(folder / name, flag, kind, read=inputs, overwrite=overwrite)


def files_of(path: str | None, scenario: Scenario) -> Iterator[Path]:
    """The files that a scenario is read from, its trace, profile and model included; and perhaps some that are not:
    every word in it that names a file."""
    if path is not None:
        yield Path(path)
    mapping = scenario.to_mapping()
    mapping.pop("requests", None)
    for word in _words(mapping):
        yield scenario.path(word)
    model = scenario.model_source
    if isinstance(model, Path):
        yield model


def _words(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, (Mapping, list)):
        for inner in value.values() if isinstance(value, Mapping) else value:
            yield from _words(inner)


def same(target: Path, other: Any) -> bool:
    """Whether both are, or would be, one file; ``other`` may be any word, or None."""
    try:
        if target.exists():
            return other is not None and target.samefile(other)
        return other is not None and target.resolve() == Path(other).resolve()
    except (OSError, ValueError, RuntimeError):  # no such file; no path at all; links in a circle
        return False


def _is(path: Path, kind: Kind) -> bool:
    try:
        return kind(path)
    except (OSError, ValueError):  # pyarrow's and json's errors are ValueErrors
        return False
