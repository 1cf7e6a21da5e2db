"""From samples to a profile: medians, each in its table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from kvplan.calibration.errors import as_json, summed, summed_as_json
from kvplan.calibration.meter import HOST_STEPS
from kvplan.calibration.plan import Point, traffic
from kvplan.calibration.samples import Samples
from kvplan.core.replica import Replica
from kvplan.core.settings import Settings
from kvplan.errors import KvplanError
from kvplan.timing.measured import from_profile
from kvplan.timing.profile import ATTENTION, SKEW, BlockForm, Operation, Profile, RankProfile

if TYPE_CHECKING:
    from kvplan.catalog import ModelConfig

MOST_FACTOR = 1.4
"""Beyond it other processes ran meanwhile (a wall clock counts them), and the factor is reported but not used."""
Pairs = list[tuple[float, float]]


def assemble(
    head: Profile,
    points: Sequence[Point],
    samples: Samples,
    model: ModelConfig,
    block_bytes: int,
    served: tuple[Settings, int] | None = None,
) -> Profile:
    """The profile of one device.

    Args:
        head: all that is not measured point by point; its ranks are replaced.
        block_bytes: of one block, all layers.
        served: the settings and the longest context of the engine that was measured; None: its traffic is left out.

    Raises:
        KvplanError: nothing of a kind was measured without which no step can be priced.
    """
    layers = model.num_hidden_layers
    attention: list[tuple[float, ...]] = []
    mixed: list[tuple[float, ...]] = []
    skew: list[tuple[float, ...]] = []
    forms: dict[BlockForm, list[tuple[float, ...]]] = {}
    linear: dict[int, list[float]] = {}
    logits: Pairs = []
    moved: dict[str, Pairs] = {"block_copy": [], "swap_out": [], "swap_in": []}
    for point in points:
        seconds = {
            name: found / layers
            for name in ("attention", "seconds", "at_mean", "at_longest")
            if (found := samples.median(point.key, name)) is not None
        }
        if not seconds:
            continue
        if point.form is not None:
            forms.setdefault(point.form, []).append((*_coordinates(point), seconds["attention"]))
            continue
        if point.kind in ("decode", "prefill", "linear"):
            each = [sample["linear"] for sample in samples.by_point[point.key]]
            linear.setdefault(point.at[0], []).extend(each)
        if point.kind in ("decode", "prefill", "mixed"):
            row = (*_coordinates(point), seconds["attention"])
            (mixed if point.kind == "mixed" else attention).append(row)
        elif point.kind == "skew":
            rows, *rest = point.at
            skew.append((0, 0, rows, *rest, seconds["at_mean"], seconds["at_longest"], seconds["seconds"]))
        elif point.kind == "head":
            logits.append((point.at[0], seconds["seconds"] * layers))
        elif point.kind in moved:
            moved[point.kind].append((point.at[0] * block_bytes, seconds["seconds"] * layers))
    missing = [name for name, rows in (("attention", attention), ("head", logits)) if not rows]
    if missing:
        raise KvplanError(f"nothing of {missing[0]} could be measured", hint=_why(samples))
    operations = [
        _operation("layers", [(tokens, float(np.median(s))) for tokens, s in linear.items()], "tokens"),
        _operation("head", logits, "samples"),
        *(_operation(name, found, "bytes") for name, found in moved.items() if found),
    ]
    rank = RankProfile(
        tuple(operations),
        np.array(attention, np.float64),
        skew=np.array(skew, np.float64).reshape(-1, len(SKEW)),
        mixed=np.array(mixed, np.float64).reshape(-1, len(ATTENTION)),
        forms={form: np.array(rows, np.float64) for form, rows in forms.items()},
    )
    rank, whole = _with_host(replace(head, ranks={1: rank}), points, samples, model)
    profile = replace(head, ranks={1: rank}, notes=(*head.notes, *_failures(samples)))
    errors = as_json(profile)
    errors["1"] |= whole
    factor = _step_factor(profile, points, samples, model, served)
    if factor is not None:
        off = summed("traffic", np.array([1.0 / factor - 1.0]))
        errors["1"]["steps of changing shapes, before step_factor"] = summed_as_json(off)
    believed = factor is not None and 1.0 / MOST_FACTOR < factor < MOST_FACTOR
    return replace(profile, errors=errors, step_factor=factor if factor is not None and believed else 1.0)


def _step_factor(
    profile: Profile, points: Sequence[Point], samples: Samples, model: ModelConfig, served: tuple[Settings, int] | None
) -> float | None:
    """Served traffic against the sum of its steps' parts; None where none was measured."""
    found = [p for p in points if p.kind == "traffic" and samples.median(p.key, "seconds") is not None]
    if served is None or not found:
        return None
    settings, longest = served
    priced = measured = 0.0
    for point in found:
        requests, draw = point.at
        replica = Replica(settings, traffic(requests, draw, longest))
        replica.run(from_profile(profile, model).compiled())
        priced += float(replica.core.scalars["now"][0])
        measured += samples.median(point.key, "seconds") or 0.0
    return measured / priced


def _operation(name: str, pairs: Pairs, axis: Any) -> Operation:
    table = np.array(sorted(pairs), np.float64)
    return Operation(name, np.ascontiguousarray(table[:, 0]), np.ascontiguousarray(table[:, 1]), "step", axis)


def _coordinates(point: Point) -> tuple[int, int, int, int]:
    """Of `profile.ATTENTION`."""
    if point.kind == "decode":
        return (0, 0, *point.at)  # type: ignore[return-value]
    if point.kind == "prefill":
        return (*point.at, 0, 0)  # type: ignore[return-value]
    return point.at  # type: ignore[return-value]


def _with_host(
    profile: Profile, points: Sequence[Point], samples: Samples, model: ModelConfig
) -> tuple[RankProfile, Mapping[str, Any]]:
    """The rank with the host's time, which is what whole steps take longer than their parts; and how far whole steps
    lie from what the finished model says of them."""
    rank = profile.rank(1)
    hosts = [point for point in points if point.kind == "host" and samples.median(point.key, "decode") is not None]
    if not hosts:
        return rank, {}
    loads = {name: [_load(name, *point.at) for point in hosts] for name in ("decode", "prefill")}
    whole = {name: [samples.median(point.key, name) for point in hosts] for name in loads}
    parts = _priced(profile, model, loads["decode"])
    host: Pairs = [
        (point.at[0], max(float(w or 0) - p, 0.0)) for point, w, p in zip(hosts, whole["decode"], parts, strict=True)
    ]
    rank = replace(rank, operations=(*rank.operations, _operation("host", host, "rows")))
    finished = replace(profile, ranks={1: rank})
    errors = {}
    for name, found in whole.items():
        priced = _priced(finished, model, loads[name])
        off = [p / w - 1.0 for p, w in zip(priced, found, strict=True) if w]
        errors[f"whole {name} steps, all parts added"] = summed_as_json(summed(name, np.array(off)))
    return rank, errors


def _priced(profile: Profile, model: ModelConfig, loads: Sequence[Any]) -> list[float]:
    from kvplan.core.step_time import step_seconds

    tables = from_profile(profile, model).compiled()
    return [float(step_seconds(tables, load)) for load in loads]


def _load(name: str, rows: int, prompt: int) -> Any:
    """What the steps of a `host` point compute: its prompts, or the middle one of its decode steps."""
    from kvplan.core.step_time import STEP_LOAD

    load = np.zeros(1, STEP_LOAD)
    step = load[0]
    step["rows"] = step["samples"] = rows
    if name == "prefill":
        step["tokens"] = step["prefill_tokens"] = step["prefill_context"] = rows * prompt
        step["prefill_rows"] = rows
        step["prefill_pairs"] = rows * prompt * (prompt + 1) // 2
        return load
    context = prompt + HOST_STEPS // 2
    step["tokens"] = step["decode_rows"] = rows
    step["decode_context"] = rows * context
    step["decode_context_squares"] = rows * context**2
    step["decode_context_max"] = context
    return load


def _failures(samples: Samples) -> list[str]:
    if not samples.failed:
        return []
    return [f"{len(samples.failed)} points failed and are missing: {_why(samples)}"]


def _why(samples: Samples) -> str:
    return next((f"{key}: {message}" for key, message in samples.failed.items()), "no point of it fits the deployment")
