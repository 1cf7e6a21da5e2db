"""GPUs by name or by a mapping of their facts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from kvplan.catalog.lookup import find, load_table, near
from kvplan.errors import InputError


@dataclass(frozen=True)
class Gpu:
    """One accelerator. Bandwidths in bytes a second and one direction, rates in dense operations a second.

    ``memory_bytes`` is what the driver reports to a process, which is less than the data sheet says.
    A rate of 0 means that the device has no such unit.
    """

    name: str
    memory_bytes: int
    hbm_bytes_per_s: float
    bf16_flops: float
    fp8_flops: float = 0.0
    link_bytes_per_s: float = 32e9
    """The host link (PCIe)."""
    nvlink_bytes_per_s: float = 0.0
    """To a neighbouring GPU; 0 where only the host link joins them."""
    sms: int = 0
    compute_capability: str = ""
    """``"9.0"`` for Hopper; empty for other vendors."""
    source: str = "given"

    @property
    def memory_gib(self) -> float:
        return self.memory_bytes / 2**30


def gpu_names() -> tuple[str, ...]:
    """The catalogue's GPUs, in its order."""
    return tuple(load_table("gpus.yaml"))


def load_gpu(ref: str | Mapping[str, Any]) -> Gpu:
    """The GPU that ``ref`` means: a catalogue name, or a mapping of `Gpu`'s fields.

    A mapping may say ``memory_gib`` for ``memory_bytes``, and ``base: NAME`` to refine a catalogue entry.

    Raises:
        InputError: unknown name (the nearest are listed), unknown key, missing or impossible number.
    """
    if isinstance(ref, Mapping):
        return _from_mapping(ref)
    name, entry = find(load_table("gpus.yaml"), str(ref), field="gpu")
    return _build({**entry, "name": name})


def _from_mapping(keys: Mapping[str, Any]) -> Gpu:
    given = dict(keys)
    entry: dict[str, Any] = {}
    if base := given.pop("base", None):
        base_name, found = find(load_table("gpus.yaml"), str(base), field="gpu.base")
        entry = {**found, "name": base_name}
    if "memory_gib" in given:
        if "memory_bytes" in given:
            raise InputError("give memory_gib or memory_bytes, not both", field="gpu")
        given["memory_bytes"] = round(_number(given.pop("memory_gib"), "gpu.memory_gib") * 2**30)
    return _build({"name": "custom", **entry, **given})


def _build(values: Mapping[str, Any]) -> Gpu:
    known = {field.name: field for field in fields(Gpu)}
    values = {key: value for key, value in values.items() if key != "aliases"}
    for key in values:
        if key not in known:
            raise InputError(
                "unknown key of a GPU",
                field="gpu",
                value=key,
                hint=near(key, {name: name for name in known}, known),
            )
    for key in ("memory_bytes", "hbm_bytes_per_s", "bf16_flops"):
        if key not in values:
            raise InputError("a custom GPU needs it", field=f"gpu.{key}")
        if _number(values[key], f"gpu.{key}") <= 0:
            raise InputError("must be positive", field=f"gpu.{key}", value=values[key])
    built: dict[str, Any] = {}
    for key, value in values.items():
        kind = known[key].type
        if kind == "float":
            built[key] = _number(value, f"gpu.{key}")
        elif kind == "int":
            built[key] = int(_number(value, f"gpu.{key}"))
        else:
            built[key] = str(value)
    return Gpu(**built)


def _number(value: Any, field: str) -> float:
    try:
        return float(value)
    except (TypeError, ValueError):
        raise InputError("must be a number", field=field, value=value) from None
