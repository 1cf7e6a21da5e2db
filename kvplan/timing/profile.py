"""A profile: what somebody measured on a machine, as one JSON file that a person can read.

::

    {"schema": "kvplan-profile/1",
     "name": "...", "model": "...", "launch": "eager",
     "machine": {...}, "versions": {...}, "source": {...}, "notes": [...],
     "step_factor": 1.0,                     whole steps against the sum of their parts
     "memory": {...},                        measured memory terms, where there are any
     "ranks": {"1": {                        by tensor_parallel_size
       "operations": [{"name": "qkv_proj", "per": "layer", "axis": "tokens", "points": [[1, 5.49e-05], ...]},
       ...], "attention": {"columns": [...], "rows": [[chunk, prior, rows, context, seconds], ...]},
       "mixed":     {"columns": [...], "rows": [[chunk, prior, rows, context, seconds], ...]},
       "experts":   {"columns": [...], "rows": [[tokens, activated, seconds], ...]},
       "skew":      {"columns": [...], "rows": [...]},
       "forms": [                            attention again, at other block sizes and KV dtypes than source's
         {"block_size": 32, "kv_cache_dtype": "bfloat16", "columns": [...], "rows": [...]}, ...]}},
     "errors": {...}}                        leave-one-out, by operation

Times are seconds of one layer (``per: layer``) or of one step (``per: step``). The points are the raw ones;
what is fitted to them is computed when the profile is used, so that a file never holds a fit of other points.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from kvplan.errors import InputError
from kvplan.files import atomic_path

SCHEMA = "kvplan-profile/1"
ATTENTION = ("prefill_tokens", "prefill_prior", "decode_rows", "decode_context", "seconds")
EXPERTS = ("tokens", "activated_experts", "seconds")
SKEW = (
    "prefill_tokens",
    "prefill_prior",
    "decode_rows",
    "long_rows",
    "short_context",
    "long_context",
    "seconds_at_mean",
    "seconds_at_longest",
    "seconds",
)
TABLES = (("attention", ATTENTION), ("mixed", ATTENTION), ("experts", EXPERTS), ("skew", SKEW))

Per = Literal["layer", "step"]
Axis = Literal["tokens", "samples", "bytes", "rows"]


@dataclass(frozen=True, eq=False)
class Operation:
    """One measured operation. ``count`` times in each layer (or step): two norms a layer are one operation.

    ``axis``: what its time depends on: tokens of the step, sampling rows, rows (the host's work), or bytes moved
    (the operations ``block_copy``, ``swap_out``, ``swap_in``). ``layers``: all, or those with dense or
    routed feed-forward.
    """

    name: str
    at: NDArray[np.float64]
    seconds: NDArray[np.float64]
    per: Per = "layer"
    axis: Axis = "tokens"
    count: int = 1
    layers: Literal["all", "dense", "moe"] = "all"


@dataclass(frozen=True, order=True)
class BlockForm:
    """How K and V are kept: the tokens of a block, and the type of a value by torch's name (``float8_e4m3fn``)."""

    block_size: int
    kv_cache_dtype: str

    def __str__(self) -> str:
        return f"blocks of {self.block_size} tokens in {self.kv_cache_dtype}"


def _no_rows(columns: tuple[str, ...]) -> NDArray[np.float64]:
    return np.zeros((0, len(columns)))


@dataclass(frozen=True, eq=False)
class RankProfile:
    """What one rank does at one tensor_parallel_size; tables with the columns of `ATTENTION` and so on."""

    operations: tuple[Operation, ...]
    attention: NDArray[np.float64]
    experts: NDArray[np.float64] = field(default_factory=lambda: _no_rows(EXPERTS))
    skew: NDArray[np.float64] = field(default_factory=lambda: _no_rows(SKEW))
    mixed: NDArray[np.float64] = field(default_factory=lambda: _no_rows(ATTENTION))
    """A few steps of both, with `ATTENTION`'s columns: they correct the sum of the two tables of the single kinds.
    Where ``attention`` holds a table of mixed steps, that is used alone."""
    forms: Mapping[BlockForm, NDArray[np.float64]] = field(default_factory=dict)
    """Rows of `ATTENTION` at points of ``attention``, prefill or decode alone, with the KV cache in another form than
    `Profile.form`."""


@dataclass(frozen=True, eq=False)
class Profile:
    """See the module."""

    name: str
    ranks: Mapping[int, RankProfile]
    model: str = ""
    launch: Literal["eager", "graph", "engine", ""] = ""
    """How the measured kernels were launched: one by one, or replayed from a CUDA graph; by this engine, as it runs
    (nothing of them is hidden elsewhere); empty: not said."""
    machine: Mapping[str, Any] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)
    source: Mapping[str, Any] = field(default_factory=dict)
    step_factor: float = 1.0
    """How much longer steps of changing shapes were found to take than their parts, each of which was timed again and
    again on data still in the cache."""
    memory: Mapping[str, float] = field(default_factory=dict)
    errors: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def form(self) -> BlockForm | None:
        """What the KV cache was while all was measured; None where the profile does not say."""
        size, dtype = self.source.get("block_size"), self.source.get("kv_cache_dtype")
        return BlockForm(int(size), str(dtype)) if size and dtype else None

    def rank(self, tensor_parallel_size: int) -> RankProfile:
        """The measurements at this TP.

        Raises:
            InputError: not measured; the hint says which are.
        """
        if tensor_parallel_size not in self.ranks:
            raise InputError(
                "the profile has no measurements at this tensor_parallel_size",
                field="parallel.tensor_parallel_size",
                value=tensor_parallel_size,
                source=self.name,
                hint="measured: " + ", ".join(str(tp) for tp in sorted(self.ranks)),
            )
        return self.ranks[tensor_parallel_size]

    def head(self) -> dict[str, Any]:
        """All but the points, as the file has it."""
        return {
            "schema": SCHEMA,
            "name": self.name,
            "model": self.model,
            "launch": self.launch,
            "machine": dict(self.machine),
            "versions": dict(self.versions),
            "source": dict(self.source),
            "notes": list(self.notes),
            "step_factor": self.step_factor,
            "memory": dict(self.memory),
            "errors": dict(self.errors),
        }


def write_profile(profile: Profile, path: str | Path) -> None:
    """Write the file whole or not at all."""
    ranks = {str(tp): _rank_as_json(profile.ranks[tp]) for tp in sorted(profile.ranks)}
    with atomic_path(path) as temporary:
        temporary.write_text(_dump({**profile.head(), "ranks": ranks}), encoding="utf-8")


def read_profile(path: str | Path) -> Profile:
    """Read a profile file.

    Raises:
        InputError: no such file, no JSON, or not a profile of this schema; says which key is at fault.
    """
    source = str(path)
    try:
        document = json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"cannot read the profile: {error.strerror}", field="timing.profile", source=source) from None
    except ValueError as error:
        line = getattr(error, "lineno", None)
        raise InputError("the profile is not JSON", field="timing.profile", source=source, line=line) from None
    if not isinstance(document, dict) or document.get("schema") != SCHEMA:
        found = document.get("schema") if isinstance(document, dict) else type(document).__name__
        raise InputError(f"not a {SCHEMA} file", field="schema", value=found, source=source)
    try:
        return Profile(
            name=document["name"],
            ranks={int(tp): _rank_from_json(rank) for tp, rank in document["ranks"].items()},
            model=document.get("model", ""),
            launch=document.get("launch", ""),
            machine=document.get("machine", {}),
            versions=document.get("versions", {}),
            source=document.get("source", {}),
            step_factor=float(document.get("step_factor", 1.0)),
            memory=document.get("memory", {}),
            errors=document.get("errors", {}),
            notes=tuple(document.get("notes", ())),
        )
    except KeyError as error:
        raise InputError("the profile lacks a key", field=str(error.args[0]), source=source) from None
    except (TypeError, ValueError, AttributeError) as error:
        raise InputError(f"the profile is damaged: {error}", field="timing.profile", source=source) from None


def _rank_as_json(rank: RankProfile) -> dict[str, Any]:
    document: dict[str, Any] = {
        "operations": [
            {
                "name": op.name,
                "per": op.per,
                "axis": op.axis,
                "count": op.count,
                "layers": op.layers,
                "points": np.column_stack([op.at, op.seconds]).tolist(),
            }
            for op in rank.operations
        ]
    }
    for key, columns in TABLES:
        rows = getattr(rank, key)
        if len(rows):
            document[key] = {"columns": list(columns), "rows": rows.tolist()}
    if rank.forms:
        document["forms"] = [
            {**asdict(form), "columns": list(ATTENTION), "rows": rank.forms[form].tolist()}
            for form in sorted(rank.forms)
        ]
    return document


def _rank_from_json(document: Mapping[str, Any]) -> RankProfile:
    tables = {}
    for key, columns in TABLES:
        table = document.get(key)
        tables[key] = _no_rows(columns) if table is None else _table_from_json(table, columns)
    forms = {
        BlockForm(int(table["block_size"]), str(table["kv_cache_dtype"])): _table_from_json(table, ATTENTION)
        for table in document.get("forms", ())
    }
    operations = []
    for op in document["operations"]:
        points = np.asarray(op["points"], np.float64).reshape(-1, 2)
        operations.append(
            Operation(
                op["name"],
                np.ascontiguousarray(points[:, 0]),
                np.ascontiguousarray(points[:, 1]),
                op["per"],
                op["axis"],
                op.get("count", 1),
                op.get("layers", "all"),
            )
        )
    return RankProfile(tuple(operations), **tables, forms=forms)


def _table_from_json(table: Mapping[str, Any], columns: tuple[str, ...]) -> NDArray[np.float64]:
    rows = np.asarray(table["rows"], np.float64).reshape(-1, len(table["columns"]))
    return np.ascontiguousarray(rows[:, [table["columns"].index(name) for name in columns]])


def _dump(document: Mapping[str, Any]) -> str:
    """JSON with one measured point a line: long, but a person can read and diff it."""
    return _value(document, 0) + "\n"


def _value(value: Any, depth: int) -> str:
    pad = "  " * (depth + 1)
    if isinstance(value, dict) and value:
        inner = ",\n".join(f"{pad}{json.dumps(str(k))}: {_value(v, depth + 1)}" for k, v in value.items())
        return "{\n" + inner + "\n" + "  " * depth + "}"
    if isinstance(value, list) and value and isinstance(value[0], (list, dict)):
        inner = ",\n".join(pad + _value(v, depth + 1) for v in value)
        return "[\n" + inner + "\n" + "  " * depth + "]"
    if isinstance(value, list):
        return "[" + ", ".join(_value(v, depth) for v in value) + "]"
    if isinstance(value, float):
        return json.dumps(int(value)) if value.is_integer() and abs(value) < 2**53 else f"{value:.9g}"
    return json.dumps(value, ensure_ascii=False)
