"""What all parts of a scenario have in common: frozen, strict, no unknown keys; and their field types."""

from __future__ import annotations

import json
import re
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

_SUFFIXES = {"k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
_HUMAN_INT = re.compile(r"([0-9]+(?:\.[0-9]+)?)([kmgtKMGT])")


class Section(BaseModel):
    """Strict: ``"32"``, ``32.0`` and ``true`` are no integers. Finite: no NaN, no infinity."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False, protected_namespaces=())


def human_readable_int(value: Any) -> Any:
    """vLLM's ``25.6k`` = 25,600 and ``1K`` = 1,024 (its ``human_readable_int``); anything else as it is."""
    if isinstance(value, str) and (match := _HUMAN_INT.fullmatch(value)):
        number, suffix = match.groups()
        scaled = float(number) * _SUFFIXES[suffix]
        if scaled != int(scaled):
            raise ValueError(f"is {scaled:g}, not a whole number")
        return int(scaled)
    return value


def name_or_mapping(value: Any) -> Any:
    if isinstance(value, dict) and value:
        return json_mapping(value)
    if isinstance(value, str) and value.strip():
        return value
    raise ValueError("must be a name or a mapping")


def json_mapping(value: Any) -> Any:
    """A free-form mapping: whoever reads it knows its keys, but it must survive being written as JSON."""
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise ValueError("must hold text, finite numbers, true, false, lists and mappings only") from error
    return value


Count = Annotated[int, Field(ge=1)]
HumanCount = Annotated[int, Field(ge=1), BeforeValidator(human_readable_int, json_schema_input_type=int | str)]
Fraction = Annotated[float, Field(ge=0.0, le=1.0)]
Reference = Annotated[str | dict[str, Any], BeforeValidator(name_or_mapping)]
"""A name of the catalogue, a path, or the thing itself as a mapping."""

FreeMapping = Annotated[dict[str, Any], BeforeValidator(json_mapping)]
"""A mapping whose keys another module knows."""
