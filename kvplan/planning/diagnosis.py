"""What holds a deployment back, found by simulating what would be if it did not.

No rule of thumb decides: a constraint binds when loosening it, and it alone, shortens the time requests
spend in the system. Where no single one helps, pairs are tried: two equal limits hide each other.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kvplan.flags import serve_flags
from kvplan.planning.changes import Change, changes_for
from kvplan.planning.trial import Outcome, Simulate, Trials, relief
from kvplan.planning.verdict import sentence

if TYPE_CHECKING:
    from kvplan.scenario import Scenario

HELPS = math.log(1.1)
"""A change helps when it cuts the mean time in the system by a tenth."""
PRESSURE = 0.1
"""Something waits when the p99 of the queue time is above this share of the mean time in the system."""

CONFIGURED = ("allocation", "prefixes", "batching", "sequences", "tokens", "memory")
"""What a setting or more memory can loosen, in the order in which equals are named: the cheapest first."""

FREE = ("allocation", "prefixes", "batching")


@dataclass(frozen=True)
class Finding:
    """A constraint, the change that shows it binds, and the change to make."""

    cause: str
    shown_by: Change
    mend: Change | None
    relief: float


def diagnose(scenario: Scenario, simulate: Simulate | None = None) -> dict[str, Any]:
    """Runs the base, each change alone, and what it takes to tell causes apart; returns plain JSON.

    Keys: ``verdict`` (a sentence), ``binds`` (causes, the heaviest first; empty for nothing), ``flags`` (to
    paste), ``timing`` (as in the scenario), ``base`` and ``changes``: each change with its ``flags``, what it
    does not change, its ``risk``, and, where it could run, ``concurrency``, ``output_tokens_per_s``,
    ``ttft_p99_s`` with their ``*_gain`` relative to the base.

    Raises:
        InputError, InfeasibleError: the deployment itself cannot be simulated.
    """
    if simulate is None:
        from kvplan import simulate as simulate_scenario

        simulate = simulate_scenario
    trials = Trials(scenario, simulate)
    base = trials.run()
    assert base.run is not None
    changes = changes_for(base.scenario, base.run)
    findings = find(trials, changes)
    mends = [finding.mend for finding in findings if finding.mend is not None]
    after = trials.run(mends) if mends else base
    if after.run is None:
        mends, after = [], base
    rows = [_row(base, change, trials.run([change])) for change in changes]
    _mark(rows, mends)
    if len(mends) > 1:
        rows.insert(0, _together(base, mends, after))
    assert after.run is not None
    return {
        "verdict": sentence(base, findings, mends, after),
        "binds": [finding.cause for finding in findings],
        "flags": serve_flags(after.run["settings"]),
        "timing": base.scenario.get("timing"),
        "base": _figures(base),
        "changes": rows,
    }


def under_pressure(base: Outcome) -> bool:
    """Whether anything waits, was refused, or misses an objective."""
    queue, total = base.get("latency.queue_s.p99"), base.get("latency.e2e_s.mean")
    if base.served < 1 or (queue is not None and total is not None and queue > PRESSURE * total):
        return True
    return bool(base.missed())


def find(trials: Trials, changes: list[Change]) -> list[Finding]:
    """What binds, heaviest first: at most two causes; none where nothing waits and every objective is met."""
    base = trials.run()
    if not under_pressure(base):
        return []
    first = _heaviest(trials, changes, [])
    if first is None:
        return _pair(trials, changes) or _step(trials, changes)
    behind = trials.run([first.shown_by])
    if under_pressure(behind):
        second = _heaviest(trials, changes, [first.shown_by])
        if second is not None and second.cause != first.cause and second.relief >= first.relief / 2:
            return [first, second]
    return [first]


def _heaviest(trials: Trials, changes: list[Change], done: list[Change]) -> Finding | None:
    """The configured constraint whose loosening, on top of ``done``, helps most; None where none does.

    A waste (allocation, prefixes) is preferred to a limit that helps up to twice as much: it costs nothing.
    """
    before = trials.run(done)
    best: tuple[float, float, Change] | None = None
    for change in changes:
        if change.relaxes not in CONFIGURED or change in done or change.key in ("gpus", "gpu_memory_utilization"):
            continue
        if change.relaxes in {one.relaxes for one in done}:
            continue
        if change.needs and change.needs not in {one.key for one in done}:
            continue
        helped = relief(before, trials.run([*done, change]))
        if helped < HELPS:
            continue
        weight = helped * (2 if change.relaxes in FREE else 1)
        if best is None or weight > best[0]:
            best = (weight, helped, change)
    return None if best is None else _finding(trials, changes, done, best[2], best[1])


def _finding(trials: Trials, changes: list[Change], done: list[Change], change: Change, helped: float) -> Finding:
    if change.relaxes != "memory":
        return Finding(change.relaxes, change, change, helped)
    before = trials.run(done)
    bytes_changes = [one for one in changes if one.relaxes == "bytes"]
    thinner = max(bytes_changes, key=lambda one: relief(before, trials.run([*done, one])), default=None)
    fp8 = next((one for one in bytes_changes if one.key == "fp8"), None)
    if fp8 is not None and relief(before, trials.run([*done, fp8])) >= helped / 2:
        return Finding("bytes", change, fp8, helped)
    more = [one for one in changes if one.key in ("gpus", "gpu_memory_utilization")]
    mend = max(more, key=lambda one: relief(before, trials.run([*done, one])), default=thinner)
    if mend is not None and relief(before, trials.run([*done, mend])) < HELPS:
        mend = None
    return Finding("memory", change, mend, helped)


def _pair(trials: Trials, changes: list[Change]) -> list[Finding]:
    """Two constraints of the same height: neither helps alone, both together do."""
    base = trials.run()
    tried = [
        one
        for one in changes
        if one.relaxes in CONFIGURED and not one.needs and one.key not in ("gpus", "gpu_memory_utilization")
    ]
    best: tuple[float, Change, Change] | None = None
    for place, one in enumerate(tried):
        for other in tried[place + 1 :]:
            helped = relief(base, trials.run([one, other]))
            if helped >= HELPS and (best is None or helped > best[0]):
                best = (helped, one, other)
    if best is None:
        return []
    helped, one, other = best
    return [_finding(trials, changes, [other], one, helped), _finding(trials, changes, [one], other, helped)]


def _step(trials: Trials, changes: list[Change]) -> list[Finding]:
    """No limit binds and yet requests wait or objectives are missed: the step itself is too slow."""
    base = trials.run()
    tried = [(relief(base, trials.run([one])), one) for one in changes if one.relaxes in ("compute", "bandwidth")]
    if not tried:
        nothing = Change("step", "step", "A faster step", {}, "", "")
        return [Finding("step", nothing, None, 0.0)]
    helped, change = max(tried, key=lambda pair: pair[0])
    gpus = next((one for one in changes if one.key == "gpus"), None)
    mend = gpus if gpus is not None and relief(base, trials.run([gpus])) >= HELPS else None
    return [Finding(change.relaxes, change, mend, helped)]


FIGURES = {
    "concurrency": "concurrency.mean",
    "output_tokens_per_s": "throughput.output_tokens_per_s",
    "ttft_p99_s": "latency.ttft_s.p99",
    "e2e_mean_s": "latency.e2e_s.mean",
}


def _figures(outcome: Outcome) -> dict[str, Any]:
    found: dict[str, Any] = {key: outcome.get(path) for key, path in FIGURES.items()}
    return found | {"finished": outcome.get("requests.finished")}


def _gains(base: Outcome, outcome: Outcome) -> dict[str, Any]:
    """The figures, and each one's change relative to the base."""
    figures, was = _figures(outcome), _figures(base)
    gains = {
        f"{key}_gain": figures[key] / was[key] - 1 if was[key] and figures[key] is not None else None for key in FIGURES
    }
    return figures | gains


def _row(base: Outcome, change: Change, outcome: Outcome) -> dict[str, Any]:
    row = {
        "key": change.key,
        "relaxes": change.relaxes,
        "label": change.label,
        "what_if": change.what_if,
        "flags": "" if change.what_if else change.flags,
        "what": change.what,
        "unchanged": change.unchanged,
        "risk": change.risk,
        "overrides": change.overrides,
        "best": False,
    }
    if outcome.run is None:
        return row | {"status": "cannot run", "outcome": f"Cannot run: {outcome.problem}."}
    return row | {"status": "what if" if change.what_if else "simulated"} | _gains(base, outcome)


def _together(base: Outcome, mends: list[Change], after: Outcome) -> dict[str, Any]:
    return {
        "key": "together",
        "relaxes": "",
        "label": "Together: " + ", ".join(mend.label for mend in mends),
        "what_if": False,
        "flags": " ".join(mend.flags for mend in mends),
        "what": "What the flags above do.",
        "unchanged": "",
        "risk": " ".join(dict.fromkeys(mend.risk for mend in mends if mend.risk)),
        "overrides": {},
        "best": True,
        "status": "simulated",
        **_gains(base, after),
    }


def _mark(rows: list[dict[str, Any]], mends: list[Change]) -> None:
    """The recommended changes first, then the others, then the what-ifs, then what cannot run."""
    keys = [mend.key for mend in mends]
    for row in rows:
        row["best"] = row["key"] in keys
    rows.sort(key=lambda row: (not row["best"], row["status"] == "cannot run", row["what_if"]))
