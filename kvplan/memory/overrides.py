"""Terms of the memory sum that a person (or a measurement) states instead of leaving them to the formulas."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from kvplan.errors import InputError
from kvplan.files import signed, write_text

GIB = 2**30


@dataclass(frozen=True)
class MemoryOverrides:
    """Bytes of one rank; None leaves the term to the engine's formula. ``origin`` says who measured them."""

    total_bytes: int | None = None
    weights_bytes: int | None = None
    non_torch_bytes: int | None = None
    activation_bytes: int | None = None
    cuda_graphs_bytes: int | None = None
    origin: str = "given"

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name == "origin" or value is None or field.name == "cuda_graphs_bytes":
                continue
            if value < 0 or (field.name == "total_bytes" and value == 0):
                raise InputError("must not be negative", field=field.name, value=value)

    @classmethod
    def from_gib(cls, *, origin: str = "given", **terms: float | None) -> MemoryOverrides:
        """The same from GiB: ``weights=14.99``, ``activation=1.89``, ..."""
        return cls(
            **{f"{name}_bytes": None if value is None else round(value * GIB) for name, value in terms.items()},
            origin=origin,
        )

    def over(self, other: MemoryOverrides) -> MemoryOverrides:
        """These terms, and ``other``'s where these say nothing."""
        stated = {field.name: getattr(self, field.name) for field in fields(self) if field.name != "origin"}
        merged = replace(other, **{name: value for name, value in stated.items() if value is not None})
        if any(value is not None for value in stated.values()):
            merged = replace(merged, origin=self.origin)
        return merged


NO_OVERRIDES = MemoryOverrides()


def load_overrides(path: str | Path) -> MemoryOverrides:
    """Overrides that ``kvplan reconcile --save`` wrote: YAML with the fields of `MemoryOverrides` under
    ``memory``.

    Raises:
        InputError: unreadable, not such a file, or a key that is not known.
    """
    import yaml

    try:
        text = Path(path).read_text(encoding="utf-8")
        document = yaml.safe_load(text)
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", field="overrides", source=str(path)) from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        raise InputError("not YAML", source=str(path), line=mark.line + 1 if mark else None) from None
    terms = document.get("memory") if isinstance(document, dict) else None
    if not isinstance(terms, dict):
        raise InputError("has no mapping `memory`", field="overrides", source=str(path))
    known = {field.name for field in fields(MemoryOverrides)}
    if unknown := set(terms) - known:
        raise InputError(
            "unknown term",
            field="memory",
            value=sorted(unknown)[0],
            source=str(path),
            hint=", ".join(sorted(known)),
        )
    for name, value in terms.items():
        if name != "origin" and not (value is None or (isinstance(value, int) and not isinstance(value, bool))):
            raise InputError("whole bytes are needed", field=f"memory.{name}", value=value, source=str(path))
    return MemoryOverrides(**terms)


def save_overrides(overrides: MemoryOverrides, path: str | Path, *, header: dict[str, Any] | None = None) -> None:
    """Write overrides so that `load_overrides` reads them back; ``header`` is kept beside them for people."""
    import yaml

    terms = {field.name: getattr(overrides, field.name) for field in fields(overrides)}
    document: dict[str, Any] = {"memory": {name: value for name, value in terms.items() if value is not None}}
    if header:
        document["measured_on"] = header
    write_text(path, signed(yaml.safe_dump(document, sort_keys=False)))
