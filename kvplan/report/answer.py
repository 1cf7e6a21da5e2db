"""The top of the page: the verdict, the flags to paste, how sure we are, and the figures that matter most."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from markupsafe import Markup

from kvplan.report.runs import Run, plain
from kvplan.report.shown import at, is_number, percent, shown

Parts = Mapping[str, Any]


def plain_verdict(runs: list[Run]) -> Markup:
    """What the base run shows, claiming no cause: the sentence for a page without a diagnosis."""
    base = runs[0]
    total, refused = base.get("requests.total"), base.get("requests.refused")
    if total and total == refused:
        return Markup("Every one of the {} requests was refused.").format(
            shown(total, base.path("requests.total"), "count")
        )
    sentence = Markup("{} sequences ran at once on average, and their tokens filled {} of the {} pool.").format(
        shown(base.get("concurrency.mean"), base.path("concurrency.mean"), "number"),
        shown(base.get("memory.mean.used"), base.path("memory.mean.used"), "percent"),
        shown(base.get("memory.pool_gib"), base.path("memory.pool_gib"), "gib"),
    )
    wait = "latency.ttft_s.p99"
    if is_number(base.get(wait)):
        sentence += Markup(" The p99 time to first token was {}.").format(
            shown(base.get(wait), base.path(wait), "seconds")
        )
    other = _farthest(base, runs[1:])
    if other is not None:
        sentence += Markup(" With <bdi>{}</bdi> it was {} sequences and {}.").format(
            other.label,
            shown(other.get("concurrency.mean"), other.path("concurrency.mean"), "number"),
            shown(other.get(wait), other.path(wait), "seconds"),
        )
    return sentence


def _farthest(base: Run, others: list[Run]) -> Run | None:
    """The drawn run that differs most in concurrency or p99 TTFT; None where none differs by 5%."""
    far, found = 1.05, None
    for run in others:
        for path in ("concurrency.mean", "latency.ttft_s.p99"):
            ours, theirs = base.get(path), run.get(path)
            if run.tone >= 0 and is_number(ours) and is_number(theirs) and min(ours, theirs) > 0:
                ratio = max(ours, theirs) / min(ours, theirs)
                if ratio > far:
                    far, found = ratio, run
    return found


def timing_of(timing: Any) -> tuple[str, Any]:
    """(``roofline``, ``profile`` or ``constant``, its settings) of a scenario's ``timing``."""
    if isinstance(timing, Mapping):
        return next(((str(key), value) for key, value in timing.items() if value is not None), ("", None))
    return str(timing or ""), None


def sureness(summary: Parts, diagnosis: Parts | None) -> list[Markup]:
    """Where the step times come from and how far they may be off; sentences."""
    kind, timing = timing_of(at(diagnosis, "timing") or at(summary, "scenario.timing"))
    lines = [Markup("Memory and scheduling: replayed step by step under the engine's own rules.")]
    if kind == "roofline":
        lines.append(
            Markup(
                "Step times: a roofline from model shape and GPU facts. Not calibrated on this machine; "
                "its coefficients are under Inputs."
            )
        )
    elif kind == "profile":
        lines.append(Markup("Step times: a measured profile, <bdi>{}</bdi>.").format(plain(timing, 120)))
    elif kind == "constant":
        lines.append(Markup("Step times: a constant. Latencies and rates below mean no more than that constant does."))
    error = at(diagnosis, "timing_error") or at(summary, "runs.0.timing.error")
    if is_number(error):
        lines.append(Markup("Its error against measurement: {}.").format(percent(error)))
    elif isinstance(error, Mapping):
        parts = ", ".join(f"{plain(key)} {percent(value)}" for key, value in error.items() if is_number(value))
        lines.append(Markup("Its error against measurement: {}.").format(parts))
    elif kind in ("roofline", "profile"):
        lines.append(Markup("Its error here is unknown: compare runs with each other, and calibrate before you buy."))
    for note in at(summary, "runs.0.notes") or ():
        said = plain(note, 240)
        lines.append(Markup("Assumed: {}.").format(said.rstrip(".")))
    return lines


def objective(run: Run, slo: Parts, latency: str) -> Markup:
    """Whether a run met each objective on ``latency``; empty where there is none."""
    verdicts = []
    for quantile, bound in (at(slo, latency) or {}).items():
        value = run.get(f"latency.{latency}.{quantile}")
        if is_number(value) and is_number(bound):
            met = value <= bound
            verdicts.append(
                Markup('<span class="{}">{} objective {}</span>').format(
                    "met" if met else "missed",
                    "meets" if met else "misses",
                    shown(
                        bound,
                        f"summary.scenario.slo.{latency}.{quantile}",
                        "seconds",
                        f"{quantile}\u00a0≤\u00a0{bound:g}\u00a0s",
                    ),
                )
            )
    return Markup("<br>").join(verdicts)


def wasted(run: Run) -> Markup:
    """Reserved + internal + external, one figure."""
    parts = ("reserved", "internal", "external")
    values = [run.get(f"memory.mean.{part}") for part in parts]
    if not all(is_number(value) for value in values):
        return shown(None, "", "percent")
    return shown(sum(values), " + ".join(run.path(f"memory.mean.{part}") for part in parts), "percent")


def key_figures(run: Run, slo: Parts) -> list[dict[str, Markup]]:
    """The base run in five figures: label, value, note."""

    def number(inside: str, kind: str) -> Markup:
        return shown(run.get(inside), run.path(inside), kind)

    return [
        {
            "label": Markup("Running at once"),
            "value": number("concurrency.mean", "number"),
            "note": Markup("mean; peak {}").format(number("concurrency.peak", "count")),
        },
        {
            "label": Markup("Pool holding live tokens"),
            "value": number("memory.mean.used", "percent"),
            "note": Markup("of {}; {} held but empty").format(number("memory.pool_gib", "gib"), wasted(run)),
        },
        {
            "label": Markup("First token, p99"),
            "value": number("latency.ttft_s.p99", "seconds"),
            "note": objective(run, slo, "ttft_s")
            or Markup("median {}").format(number("latency.ttft_s.p50", "seconds")),
        },
        {
            "label": Markup("Token after token, p95"),
            "value": number("latency.tpot_s.p95", "seconds"),
            "note": objective(run, slo, "tpot_s")
            or Markup("median {}").format(number("latency.tpot_s.p50", "seconds")),
        },
        {
            "label": Markup("Output tokens"),
            "value": number("throughput.output_tokens_per_s", "rate"),
            "note": Markup("{} requests finished, {} refused, {} preemptions").format(
                number("requests.finished", "count"),
                number("requests.refused", "count"),
                number("requests.preemptions", "count"),
            ),
        },
    ]
