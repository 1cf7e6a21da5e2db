"""The least hardware that carries a traffic within its SLO.

Cost grows with the replicas, and more replicas never carry less: for each candidate the number of replicas is found
by bisection around an estimate, and from the second candidate on only numbers that would be cheaper than the best so
far are tried. Of candidates that differ in the size of the pool alone the largest is tried first: where it fails the
others fail. The answer is that of the whole grid (the cheapest; of equals the first in the order of preference), for
a few of its simulations.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from kvplan.cluster.run import simulate_cluster
from kvplan.cluster.spec import ClusterSpec
from kvplan.cluster.traffic import Traffic
from kvplan.errors import InfeasibleError
from kvplan.planning.search_judge import Judgement, Slo, judge
from kvplan.planning.search_rate import at_speed, estimate, largest
from kvplan.planning.search_space import Candidate, Refused

_CONFIRM = 2 ** (1 / 8)
"""The answer must hold at two rates below, on this ladder, too: percentiles are not quite monotone in the rate."""


@dataclass(frozen=True)
class Ask:
    """What is to be carried.

    Args:
        rate: requests per second, growth included.
        trace_rate: those of the traffic as it is; the traffic's time scale is stretched by their ratio.
        survive: replicas that may be missing while the rest keeps the SLO.
        max_gpus: the most to be considered.
        prices: of a GPU hour, by GPU; where one is missing GPUs are counted instead.
    """

    rate: float
    trace_rate: float
    slo: Slo
    survive: int = 0
    max_gpus: int = 64
    router: str = "round_robin"
    prices: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Answer:
    """``cost``: a price per hour, or GPUs where prices are missing. ``judgements``: one a window, at the rate."""

    candidate: Candidate
    replicas: int
    cost: float
    judgements: tuple[Judgement, ...]

    @property
    def gpus(self) -> int:
        return self.replicas * self.candidate.gpus


class Search:
    """Finds the cheapest answer, and counts what it simulates.

    Args:
        windows: the traffics that must all be carried: windows of one trace, or several seeds.
        progress: called with a sentence on what is simulated.

    ``known``: (candidate's order, replicas, rate) to the judgements, everything that was simulated.
    """

    def __init__(self, windows: Sequence[Traffic], ask: Ask, progress: Callable[[str], None] | None = None) -> None:
        self.windows = windows
        self.ask = ask
        self.simulations = 0
        self._progress = progress or (lambda _: None)
        self.known: dict[tuple[int, int, float], tuple[Judgement, ...]] = {}

    def cheapest(self, candidates: Sequence[Candidate]) -> Answer | None:
        """None where none of them carries the rate with `max_gpus`."""
        best: tuple[float, int, Candidate, int] | None = None
        for family in self._families(candidates):
            largest_pool = max(family, key=lambda one: (one.deployment.settings.total_slots, -one.order))
            limit = self._limit(largest_pool, best, min(one.order for one in family))
            replicas = self._fewest(largest_pool, limit, bounded=best is not None)
            if replicas is None:
                continue
            preferred = [one for one in family if one.order < largest_pool.order]
            chosen = next((one for one in preferred if self._holds(one, replicas)), largest_pool)
            found = (self.cost(chosen, replicas), chosen.order, chosen, replicas)
            if best is None or found[:2] < best[:2]:
                best = found
        if best is None:
            return None
        cost, _, candidate, replicas = best
        return Answer(candidate, replicas, cost, self.judged(candidate, replicas, self.ask.rate))

    def _families(self, candidates: Sequence[Candidate]) -> list[list[Candidate]]:
        """Those that differ in the size of the pool alone together; those first that promise to be cheapest."""
        families: dict[tuple[object, ...], list[Candidate]] = {}
        for one in candidates:
            families.setdefault(one.family, []).append(one)

        def promise(family: list[Candidate]) -> float:
            return min(self.cost(one, 1) / self._estimate(one) for one in family)

        return sorted(families.values(), key=promise)

    def _estimate(self, candidate: Candidate) -> float:
        return estimate(candidate.server, self.windows[0], self._tpot())

    def cost(self, candidate: Candidate, replicas: int) -> float:
        return replicas * candidate.gpus * self.ask.prices.get(candidate.gpu, 1.0)

    def carries(self, candidate: Candidate, replicas: int, rate: float) -> bool:
        """Whether every window keeps the SLO with the replicas that are left after `survive` failures."""
        judgements = self.judged(candidate, replicas, rate)
        return len(judgements) == len(self.windows) and judgements[-1].ok

    def judged(self, candidate: Candidate, replicas: int, rate: float) -> tuple[Judgement, ...]:
        """The windows' judgements, up to the first that fails."""
        key = (candidate.order, replicas, rate)
        if key not in self.known:
            judgements: list[Judgement] = []
            for window in self.windows:
                judgements.append(self._simulate(candidate, replicas, at_speed(window, rate / self.ask.trace_rate)))
                if not judgements[-1].ok:
                    break
            self.known[key] = tuple(judgements)
        return self.known[key]

    def capacity(self, candidate: Candidate, replicas: int) -> float:
        """The largest rate that it carries, in steps of 2%."""
        return largest(lambda rate: self.carries(candidate, replicas, rate), self.ask.rate)

    def alone(self, candidate: Candidate) -> Judgement:
        """The first window with every request by itself: what no number of replicas can better."""
        window = self.windows[0]
        apart = np.arange(len(window), dtype=np.float64) * 3600.0
        traffic = dataclasses.replace(window, workload=dataclasses.replace(window.workload, arrival_s=apart))
        return self._simulate(candidate, 1 + self.ask.survive, traffic)

    def _simulate(self, candidate: Candidate, replicas: int, traffic: Traffic) -> Judgement:
        serving = replicas - self.ask.survive
        self.simulations += 1
        changes = ", ".join(f"{key.rpartition('.')[2]} {value}" for key, value in candidate.changes.items())
        self._progress(f"{self.simulations}: {serving} x {candidate.gpu} {changes}")
        return judge(
            simulate_cluster(ClusterSpec((candidate.server,) * serving, self.ask.router), traffic), self.ask.slo
        )

    def _limit(self, candidate: Candidate, best: tuple[float, int, Candidate, int] | None, order: int) -> int:
        """The most replicas that are worth a try."""
        most = self.ask.max_gpus // candidate.gpus
        if best is not None:
            unit = self.cost(candidate, 1)
            beaten = best[0] / unit + 1e-9
            most = min(most, math.floor(beaten) if order < best[1] else math.ceil(beaten - 2e-9) - 1)
        return most

    def _holds(self, candidate: Candidate, replicas: int) -> bool:
        """Whether it carries the rate, and the two rates below it."""
        rung = math.ceil(math.log(self.ask.rate / self.ask.trace_rate, _CONFIRM) - 1e-9)
        below = [self.ask.trace_rate * _CONFIRM ** (rung - step) for step in (1, 2)]
        return all(self.carries(candidate, replicas, rate) for rate in (self.ask.rate, *below))

    def _fewest(self, candidate: Candidate, limit: int, *, bounded: bool) -> int | None:
        """The fewest replicas that carry the rate; None where `limit` do not. `bounded`: more are likely too many."""
        low, high = self.ask.survive, limit + 1
        if limit <= low or (bounded and not self.carries(candidate, limit, self.ask.rate)):
            return None
        if bounded:
            high = limit
        guess, stride = math.ceil(self.ask.rate / self._estimate(candidate)) + self.ask.survive, 1
        guess = min(max(guess, low + 1), limit)
        while high - low > 1:
            guess = min(max(guess, low + 1), high - 1)
            if self.carries(candidate, guess, self.ask.rate):
                high, guess = guess, guess - stride
            else:
                low, guess = guess, guess + stride
            stride *= 2
            if high <= limit and low > self.ask.survive:
                guess = (low + high) // 2
        while high <= limit and not self._holds(candidate, high):
            high += 1
        return high if high <= limit else None

    def _tpot(self) -> float:
        bounds = [b for metric in ("tpot_s", "itl_s") for b in self.ask.slo.get(metric, {}).values()]
        return min(bounds, default=math.inf)


def no_answer(search: Search, candidates: Sequence[Candidate], refused: Sequence[Refused]) -> InfeasibleError:
    """Why nothing works, and the nearest that does."""
    ask = search.ask
    within = [one for one in candidates if one.gpus * (1 + ask.survive) <= ask.max_gpus]
    if not within:
        if candidates:
            least = min(one.gpus for one in candidates) * (1 + ask.survive)
            return InfeasibleError(
                "no deployment is that small",
                field="max_gpus",
                value=ask.max_gpus,
                hint=f"what would start: {least} GPUs",
            )
        first = refused[0]
        return InfeasibleError(f"{first.gpu}: {first.reason}", hint=next((r.hint for r in refused if r.hint), None))
    alone = [(search.alone(one), one) for one in within]
    judgement, fastest = min(alone, key=lambda pair: (not pair[0].ok, pair[0].worst, pair[1].order))
    if not judgement.ok:
        bounds = ", ".join(f"{name} {value:.4g} s" for name, value in judgement.measured.items())
        return InfeasibleError(
            f"a request by itself breaks the SLO, whatever the number of replicas: {judgement.reason}",
            field="slo",
            hint=f"the nearest that is kept ({_words(fastest)}): {bounds}" if bounds else None,
        )
    replicas = ask.max_gpus // fastest.gpus
    carried = search.capacity(fastest, replicas)
    reason = search.judged(fastest, replicas, ask.rate)[-1].reason
    return InfeasibleError(
        f"{ask.max_gpus} GPUs do not carry {ask.rate:.4g} requests/s: {reason}",
        field="max_gpus",
        hint=f"{replicas} replicas ({_words(fastest)}) carry {carried:.4g} requests/s",
    )


def _words(candidate: Candidate) -> str:
    return " ".join([candidate.gpu, *(f"{key.rpartition('.')[2]} {value}" for key, value in candidate.changes.items())])
