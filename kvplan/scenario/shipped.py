"""The scenarios that come with kvplan: ``workloads/`` of a checkout, inside the package of a wheel."""

from __future__ import annotations

from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent.parent
_FOLDERS = (_PACKAGE / "_workloads", _PACKAGE.parent / "workloads")


def shipped_workloads() -> dict[str, Path]:
    """Name (``azure-conversation``) to file."""
    for folder in _FOLDERS:
        if folder.is_dir():
            return {path.stem: path for path in sorted(folder.glob("*.yaml"))}
    return {}


def shipped_workload(path: Path) -> Path | None:
    """The shipped scenario that ``azure-conversation`` or ``workloads/azure-conversation.yaml`` means."""
    if path.suffix not in ("", ".yaml") or path.parent.as_posix() not in (".", "workloads"):
        return None
    return shipped_workloads().get(path.stem)
