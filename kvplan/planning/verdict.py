"""A diagnosis as one sentence."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from kvplan.planning.changes import Change
from kvplan.planning.trial import Outcome

if TYPE_CHECKING:
    from kvplan.planning.diagnosis import Finding

CAUSES = {
    "allocation": "allocation waste",
    "prefixes": "repeated prefixes",
    "batching": "static batching",
    "bytes": "the bytes of a token",
    "memory": "memory as such",
    "sequences": "the sequence limit",
    "tokens": "the token budget",
    "compute": "the compute of the step",
    "bandwidth": "the memory bandwidth of the step",
    "step": "the time of the step",
}

WORDS = {
    "queue_s": "queue time",
    "ttft_s": "time to first token",
    "itl_s": "inter-token latency",
    "tpot_s": "time per output token",
    "e2e_s": "end-to-end time",
    "normalized_s_per_token": "normalized latency",
}


def sentence(base: Outcome, findings: Sequence[Finding], mends: Sequence[Change], after: Outcome) -> str:
    """What binds, how that shows, and what the mend gives."""
    if not findings:
        return _nothing(base)
    names = [CAUSES[finding.cause] for finding in findings]
    if len(names) == 1:
        said = (
            f"{names[0][0].upper()}{names[0][1:]} holds this deployment back"
            if _singular(names[0])
            else (f"{names[0][0].upper()}{names[0][1:]} hold this deployment back")
        )
    else:
        said = f"{names[0][0].upper()}{names[0][1:]} and {names[1]} hold this deployment back together"
    said += _evidence(base, findings[0].cause)
    if not mends:
        return said + ". No setting tried here mends it."
    what = " and ".join(_lower(mend.label) for mend in mends)
    return f"{said}. {_upper(what)} would give {_gain(base, after)}."


def _nothing(base: Outcome) -> str:
    queue, concurrency = base.get("latency.queue_s.p99"), base.get("concurrency.mean")
    said = "Nothing holds this deployment back at this load"
    if queue is not None and concurrency is not None:
        noun = "sequence runs" if f"{concurrency:.3g}" == "1" else "sequences run"
        start = f"within {_time(queue)}" if queue >= 1e-3 else "at once"
        said += f": {concurrency:.3g} {noun} on average, and 99% of requests start {start}"
    return said + "."


def _evidence(base: Outcome, cause: str) -> str:
    if cause == "allocation":
        held = [base.get(f"memory.mean.{part}") or 0.0 for part in ("reserved", "internal", "external")]
        return f": {sum(held):.0%} of the pool is reserved, never filled, or in holes of no use"
    if cause in ("bytes", "memory"):
        peak = base.get("memory.peak.free")
        full = f"the pool is {1 - peak:.0%} taken at its peak and " if peak is not None else ""
        queue = base.get("latency.queue_s.p99") or 0.0
        return f": {full}the p99 of the wait for room in it is {_time(queue)}"
    if cause == "sequences":
        return f": {base.get('concurrency.peak') or 0:.0f} run at once, which is all that max_num_seqs allows"
    if cause in ("tokens", "compute", "bandwidth", "step"):
        missed = base.missed()
        if missed:
            metric, quantile, value, bound = missed[0]
            return f": {quantile} {WORDS.get(metric, metric)} is {_time(value)} where {_time(bound)} is promised"
        return f": the p99 time to first token is {_time(base.get('latency.ttft_s.p99') or 0.0)}"
    return ""


def _gain(base: Outcome, after: Outcome) -> str:
    """The figures that moved by 5% or more, the best first; "little" where none did."""
    parts = []
    for metric, quantile, was, _ in base.missed():
        now = after.get(f"latency.{metric}.{quantile}")
        if now is not None and metric != "ttft_s":
            parts.append(f"a {quantile} {WORDS.get(metric, metric)} of {_time(now)} instead of {_time(was)}")
    for path, words in (
        ("throughput.output_tokens_per_s", "the output tokens per second"),
        ("concurrency.mean", "the sequences running at once"),
    ):
        before, now = base.get(path), after.get(path)
        if before and now and now / before >= 1.05:
            parts.append(f"{now / before:.3g} times {words}")
    before, now = base.get("latency.ttft_s.p99"), after.get("latency.ttft_s.p99")
    if before and now and now / before <= 0.95:
        parts.append(f"a p99 time to first token of {_time(now)} instead of {_time(before)}")
    served, serves = base.get("requests.finished"), after.get("requests.finished")
    if served is not None and serves is not None and serves > served:
        parts.insert(0, f"{serves - served:.0f} more requests served")
    before, now = base.get("latency.e2e_s.mean"), after.get("latency.e2e_s.mean")
    if not parts and before and now:
        parts.append(f"a mean end-to-end time of {_time(now)} instead of {_time(before)}")
    return " and ".join(parts[:3]) if len(parts) < 3 else f"{parts[0]}, {parts[1]} and {parts[2]}"


def _singular(name: str) -> bool:
    return not name.startswith(("repeated", "the bytes"))


def _time(seconds: float) -> str:
    if seconds >= 999.5:
        return f"{seconds / 60:,.0f} min"
    return f"{seconds * 1e3:.3g} ms" if seconds < 0.9995 else f"{seconds:.3g} s"


def _upper(text: str) -> str:
    return text if text.startswith(("max_num", "gpu_memory")) else text[:1].upper() + text[1:]


def _lower(text: str) -> str:
    return text if text[:2].isupper() or text[:3] in ("FP8", "INT") else text[:1].lower() + text[1:]
