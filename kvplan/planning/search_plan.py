"""`plan`: from a trace and a promise to the deployment to paste, with its reason and its margin."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from kvplan.cluster.spec import ROUTERS
from kvplan.cluster.traffic import Traffic
from kvplan.errors import InputError
from kvplan.metrics.summary import effective_settings
from kvplan.planning.search import Answer, Ask, Search, no_answer
from kvplan.planning.search_manifest import compose, flags, kubernetes
from kvplan.planning.search_rate import rate_of
from kvplan.planning.search_space import DEFAULT_AXES, Axes, candidates

if TYPE_CHECKING:
    from kvplan.scenario import Scenario
    from kvplan.trace.trace import Trace


@dataclass(frozen=True)
class Wish:
    """What a person asks of `plan`.

    Args:
        gpus: catalogue names to choose among.
        rate: requests per second to plan for; None: the trace's own.
        growth: factor on the rate.
        survive: replicas that may fail while the SLO is kept.
        windows: parts of equal length into which the trace is cut; each must be carried.
        seeds: how often a generated workload is drawn; each must be carried.
        axes: settings to try; a key that the scenario sets is taken as it is set.
        prices: of a GPU hour, by GPU.
    """

    gpus: Sequence[str]
    rate: float | None = None
    growth: float = 1.0
    survive: int = 0
    windows: int = 1
    seeds: int = 1
    max_gpus: int = 64
    router: str = "round_robin"
    axes: Axes = field(default_factory=dict)
    prices: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, value, least in (
            ("survive", self.survive, 0),
            ("windows", self.windows, 1),
            ("seeds", self.seeds, 1),
            ("max_gpus", self.max_gpus, 1),
        ):
            if value < least:
                raise InputError(f"must be at least {least}", field=f"--{name.replace('_', '-')}", value=value)
        for name, number in (
            ("rate", self.rate),
            ("growth", self.growth),
            *(("price", p) for p in self.prices.values()),
        ):
            if number is not None and not (math.isfinite(number) and number > 0):
                raise InputError("must be above 0", field=f"--{name}", value=number)
        if self.router not in ROUTERS:
            raise InputError(f"must be one of {', '.join(ROUTERS)}", field="--router", value=self.router)
        for gpu in self.prices:
            if gpu not in self.gpus:
                raise InputError("is the price of a GPU that is not asked for", field="--price", value=gpu)


def plan(scenario: Scenario, wish: Wish, *, progress: Callable[[str], None] | None = None) -> dict[str, Any]:
    """The cheapest deployment on each GPU, and which of them to take. JSON's types.

    Raises:
        InputError: a wish that makes no sense for this trace.
        InfeasibleError: nothing carries it, with the reason and the nearest that works.
    """
    windows, rate = _windows(scenario, wish)
    slo = scenario.slo.model_dump(exclude_none=True)
    ask = Ask(
        (wish.rate or rate) * wish.growth,
        rate,
        slo,
        wish.survive,
        wish.max_gpus,
        wish.router,
        wish.prices if set(wish.prices) >= set(wish.gpus) else {},
    )
    axes = {**{k: v for k, v in DEFAULT_AXES.items() if not _is_set(scenario, k)}, **wish.axes}
    longest = max(window.longest for window in windows)
    search = Search(windows, ask, progress)
    answers, problems, refused_in_all = [], [], []
    for gpu in wish.gpus:
        found, refused = candidates(scenario, [gpu], axes, longest=longest)
        refused_in_all += refused
        answer = search.cheapest(found) if found else None
        if answer is None:
            problems.append((gpu, no_answer(search, found, refused)))
        else:
            answers.append(answer)
    if not answers:
        raise problems[0][1]
    answers.sort(key=lambda answer: answer.cost)  # stable: of equals the GPU that was named first
    simulations = search.simulations
    chosen = [_described(search, answer, priced=bool(ask.prices)) for answer in answers]
    return {
        "rate": ask.rate,
        "trace_rate": rate,
        "growth": wish.growth,
        "survive": wish.survive,
        "slo": slo,
        "windows": len(windows),
        "router": wish.router,
        "best": chosen[0],
        "others": chosen[1:],
        "cannot": [{"gpu": gpu, "reason": error.message, "nearest": error.hint} for gpu, error in problems],
        "not_started": [{"gpu": r.gpu, "changes": dict(r.changes), "reason": r.reason} for r in refused_in_all],
        "simulations": simulations,
    }


def _described(search: Search, answer: Answer, *, priced: bool) -> dict[str, Any]:
    one = answer.candidate
    capacity = search.capacity(one, answer.replicas)
    worst = max(answer.judgements, key=lambda judgement: judgement.worst)
    limit = search.judged(one, answer.replicas, _just_above(search, one, answer.replicas, capacity))[-1].reason
    return {
        "gpu": one.gpu,
        "replicas": answer.replicas,
        "gpus": answer.gpus,
        "price_per_hour": answer.cost if priced else None,
        "changes": dict(one.changes),
        "settings": effective_settings(one.deployment),
        "kv_cache_gib": one.deployment.memory.kv_cache_bytes / 2**30,
        "largest_rate": capacity,
        "margin": capacity / search.ask.rate - 1,
        "binds": limit,
        "nearest_bound": worst.reason,
        "measured": dict(worst.measured),
        "windows": [{"worst": j.worst, "queue_growth": j.growth, **j.measured} for j in answer.judgements],
        "notes": list(one.deployment.notes),
        "flags": flags(one),
        "compose": compose(one, answer.replicas),
        "kubernetes": kubernetes(one, answer.replicas),
    }


def _just_above(search: Search, candidate: Any, replicas: int, capacity: float) -> float:
    """The smallest rate that was simulated and not carried."""
    tried = [r for order, n, r in search.known if (order, n) == (candidate.order, replicas) and r > capacity]
    return min(tried, default=capacity)


def _windows(scenario: Scenario, wish: Wish) -> tuple[list[Traffic], float]:
    """The traffics to carry, and the mean rate of the whole trace."""
    from kvplan.trace.edit import cut, scale

    traces: list[Trace] = [scenario.trace()]
    for step in range(1, wish.seeds):
        traces.append(_drawn_again(scenario, step))
    if traces[0].span_s == 0:
        if wish.rate is None:
            raise InputError(
                "the trace has no arrival times", field="--rate", hint="say how many requests a second come"
            )
        traces = [scale(trace, rate=wish.rate, seed=scenario.seed + step) for step, trace in enumerate(traces)]
    rate = rate_of(Traffic.of(traces[0]))
    if wish.windows > 1:
        shortest = min(len(trace) for trace in traces)
        if shortest < 20 * wish.windows:
            raise InputError(f"{shortest} requests are too few for so many", field="--windows", value=wish.windows)
        edges = np.linspace(0.0, 1.0, wish.windows + 1)
        traces = [
            cut(trace, first=int(a * len(trace)), count=int(b * len(trace)) - int(a * len(trace)))
            for trace in traces
            for a, b in pairwise(edges)
        ]
    return [Traffic.of(trace) for trace in traces], rate


def _drawn_again(scenario: Scenario, step: int) -> Trace:
    if scenario.workload is None or scenario.workload.synthetic is None:
        raise InputError(
            "only a generated workload can be drawn again", field="--seeds", hint="use --windows with a trace"
        )
    from kvplan.trace import synthesize

    spec = scenario.workload.synthetic
    return synthesize({**spec, "seed": int(spec.get("seed", scenario.seed)) + step})


def _is_set(scenario: Scenario, key: str) -> bool:
    """Whether a person has decided this key (in the file or by a flag)."""
    section, _, name = key.partition(".")
    if name == "gpu_memory_utilization" and (
        scenario.cache.num_gpu_blocks_override is not None or scenario.cache.kv_cache_memory_bytes is not None
    ):
        return True
    return name in getattr(scenario, section).model_fields_set
