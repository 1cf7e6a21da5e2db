"""What decode attention takes by block size, where a profile has measured more than one."""

from __future__ import annotations

from dataclasses import dataclass
from math import log

from kvplan.report.runs import Run
from kvplan.report.shown import is_number

PATH = "timing.decode_by_block_size"


@dataclass(frozen=True)
class KernelTimes:
    """Measured decode attention of one step of ``rows`` sequences of ``context`` tokens each.

    ``places``: block size to its place in the summary's list; ``seconds``: block size to seconds; both ascending.
    """

    rows: int
    context: int
    seconds: dict[int, float]
    places: dict[int, int]

    @property
    def words(self) -> str:
        return f"{self.rows:,} sequence{'s' if self.rows > 1 else ''} of {self.context:,} tokens"


def kernel_times(run: Run) -> KernelTimes | None:
    """At the measured point that is nearest to the run's mean batch; None without a profile that compares sizes."""
    points = run.get(PATH) or ()
    if not points:
        return None
    rows, context = _mean_batch(run)

    def distance(point: dict[str, float]) -> float:
        return abs(log(point["decode_rows"] / rows)) + abs(log(point["decode_context"] / context))

    best = min(points, key=distance)
    chosen = {
        int(point["block_size"]): (place, float(point["seconds"]))
        for place, point in enumerate(points)
        if (point["decode_rows"], point["decode_context"]) == (best["decode_rows"], best["decode_context"])
    }
    sizes = sorted(chosen)
    return KernelTimes(
        int(best["decode_rows"]),
        int(best["decode_context"]),
        {size: chosen[size][1] for size in sizes},
        {size: chosen[size][0] for size in sizes},
    )


def _mean_batch(run: Run) -> tuple[float, float]:
    """(sequences running, tokens of each), over the run's busy time; at least one of each."""
    running, used, slots = (run.get(p) for p in ("concurrency.mean", "memory.mean.used", "memory.kv_cache_size_tokens"))
    rows = max(float(running), 1.0) if is_number(running) else 1.0
    tokens = float(used) * float(slots) if is_number(used) and is_number(slots) else 1.0
    return rows, max(tokens / rows, 1.0)
