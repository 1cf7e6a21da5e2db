"""JSON rows of plain columns: kvplan's own, any names given by ``--columns``, and requests of a scenario."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kvplan.errors import InputError
from kvplan.trace.builder import TraceBuilder
from kvplan.trace.clock import Clock
from kvplan.trace.readers.fields import plain
from kvplan.trace.rows import LEAST, small, tokens


class ColumnRows:
    """One object a request; ``columns`` says which key is which role."""

    def __init__(self, builder: TraceBuilder, unit: str, columns: Mapping[str, str]) -> None:
        self.builder = builder
        self.columns = columns
        self.clock = Clock(unit, columns.get("arrival", "arrival"))
        builder.rebase = False
        if "prompt" not in columns:
            raise InputError(
                "names no prompt column",
                field="columns",
                hint="--columns prompt=NAME,output=NAME,arrival=NAME",
            )

    def row(self, value: dict[str, Any], line: int) -> None:
        got = {role: value.get(name) for role, name in self.columns.items()}
        name = plain(got.get("id"), "id")
        extra: dict[str, Any] = {
            role: small(got[role], role, least) for role, least in LEAST.items() if got.get(role) is not None
        }
        self.builder.add(
            None if got.get("arrival") is None else self.clock.seconds(got["arrival"]),
            tokens(got["prompt"], self.columns["prompt"]),
            None if got.get("output") is None else tokens(got["output"], self.columns["output"]),
            name=None if name is None else str(name),
            session=plain(got.get("session"), "session"),
            **extra,
        )
