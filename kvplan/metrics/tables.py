"""The tables of a run: a row a request, a row a bucket of time, a row an address of the memory map."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from kvplan.core.recorder import Record
from kvplan.core.state import FINISHED, REFUSALS, REFUSED, Core

if TYPE_CHECKING:
    import pandas as pd

    from kvplan.trace.trace import Trace

SPLIT = ("used", "reserved", "internal", "external", "cached", "free")


def _constant(value: str, count: int) -> pd.Categorical[str]:
    """A column of one value, a byte a row."""
    import pandas as pd

    return pd.Categorical(np.full(count, value), categories=[value])


def requests_table(name: str, core: Core, trace: Trace) -> pd.DataFrame:
    """One row a request, in order of arrival. Times in seconds, NaN where there is none."""
    import pandas as pd

    count = len(trace)
    rows = core.requests[:count]
    finished = rows["status"] == FINISHED
    refused = rows["status"] == REFUSED

    def moment(field: str) -> np.ndarray:
        return np.where(rows[field] >= 0, rows[field], np.nan)

    arrival = np.asarray(trace.arrival_s, np.float64)
    first, finish = moment("first_token_s"), moment("finish_s")
    output = rows["output"]
    with np.errstate(invalid="ignore"):
        tpot = np.where(output > 1, (finish - first) / np.maximum(output - 1, 1), np.nan)
    status = np.where(finished, "finished", np.where(refused, "refused", "unfinished"))
    ids = trace.names() if trace.request_id is not None else np.arange(count).astype(str)
    return pd.DataFrame(
        {
            "run": _constant(name, count),
            "id": ids,
            "arrival_s": arrival,
            "prompt_tokens": rows["prompt"],
            "output_tokens": output,
            "sequences": rows["sequences"],
            "status": pd.Categorical(status, categories=["finished", "refused", "unfinished"]),
            "reason": pd.Categorical(np.array(REFUSALS)[rows["reason"]], categories=list(REFUSALS)),
            "first_scheduled_s": moment("first_scheduled_s"),
            "first_token_s": first,
            "finish_s": finish,
            "queue_s": moment("first_scheduled_s") - arrival,
            "ttft_s": first - arrival,
            "tpot_s": tpot,
            "e2e_s": finish - arrival,
            "preemptions": rows["preemptions"],
            "cached_tokens": np.maximum(rows["cached"], 0),
        }
    )


def timeline_table(name: str, record: Record, total_slots: int) -> pd.DataFrame:
    """One row a bucket in which anything ran. Fractions of the pool, weighted with the time of the steps."""
    import pandas as pd

    width = float(record.totals["width_s"][0])
    origin = float(record.totals["origin_s"][0])
    ran = np.flatnonzero(record.timeline["steps"])
    b = record.timeline[ran]
    busy = b["busy_s"]
    weight = np.where(busy > 0, busy, 1.0)
    columns: dict[str, object] = {
        "run": _constant(name, len(ran)),
        "t_s": origin + ran * width,
        "dt_s": busy,
        "steps": b["steps"],
    }
    for word in SPLIT:
        columns[word] = b[word] / weight / total_slots
    columns |= {
        "shared_saved": b["shared"] / weight / total_slots,
        "allocated_max": b["held_max"] / total_slots,
        "running": b["running"] / weight,
        "running_max": b["running_max"],
        "waiting": b["waiting"] / weight,
        "waiting_max": b["waiting_max"],
        "preemptions": b["preemptions"],
        "output_tokens": b["output_tokens"],
        "prefill_tokens": b["prefill_tokens"],
        "hit_tokens": b["hit_tokens"],
        "largest_free_extent": b["largest_free"] / total_slots,
    }
    return pd.DataFrame(columns)


def memory_map_table(name: str, record: Record) -> pd.DataFrame:
    """Who holds each of 256 addresses at the beginning of each bucket: a request's index, -1 free, -2 cached."""
    import pandas as pd

    width = float(record.totals["width_s"][0])
    origin = float(record.totals["origin_s"][0])
    ran = np.flatnonzero(record.timeline["steps"])
    addresses = record.map_owner.shape[1]
    return pd.DataFrame(
        {
            "run": _constant(name, len(ran) * addresses),
            "t_s": np.repeat(origin + ran * width, addresses),
            "address": np.tile((np.arange(addresses) / addresses).astype(np.float32), len(ran)),
            "request": record.map_owner[ran].ravel(),
        }
    )
