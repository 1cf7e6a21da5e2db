"""What became of every request of a cluster."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from kvplan.core.state import FINISHED, REFUSALS, REFUSED
from kvplan.metrics.percentiles import statistics

if TYPE_CHECKING:
    import pandas as pd

    from kvplan.cluster.traffic import Traffic

OUTCOMES = ("unfinished", "finished", "refused", "rejected", "timed_out", "lost")
"""refused: by the engine, it could never run; rejected: by admission control; timed_out: its client left; lost: with
a replica that failed."""
UNFINISHED, DONE, REFUSED_BY_ENGINE, REJECTED, TIMED_OUT, LOST = range(6)

COLUMNS = np.dtype(
    [
        ("outcome", "i1"),
        ("reason", "i1"),
        ("replica", "i4"),  # that finished or refused it, -1 for none
        ("attempts", "i4"),  # times it was handed to a replica
        ("preemptions", "i4"),
        ("cached", "i4"),
        ("first_scheduled_s", "f8"),  # of the attempt that finished; -1 where there is none
        ("first_token_s", "f8"),
        ("finish_s", "f8"),
    ],
    align=True,
)


class Ledger:
    """A row a request (`COLUMNS`), in order of the trace."""

    def __init__(self, requests: int) -> None:
        self.rows: NDArray[Any] = np.zeros(requests, COLUMNS)
        self.rows["replica"] = -1
        for name in ("first_scheduled_s", "first_token_s", "finish_s"):
            self.rows[name] = -1.0

    def take(self, done: NDArray[Any], replica: int) -> None:
        """Enters the rows (REQUEST) that a replica is done with; aborted ones are their client's affair."""
        done = done[(done["status"] == FINISHED) | (done["status"] == REFUSED)]
        serial = done["serial"]
        self.rows["outcome"][serial] = np.where(done["status"] == FINISHED, DONE, REFUSED_BY_ENGINE)
        self.rows["replica"][serial] = replica
        for name in ("reason", "preemptions", "first_scheduled_s", "first_token_s", "finish_s"):
            self.rows[name][serial] = done[name]
        self.rows["cached"][serial] = np.maximum(done["cached"], 0)

    def counts(self) -> dict[str, int]:
        """Requests by outcome, and their total."""
        found = np.bincount(self.rows["outcome"], minlength=len(OUTCOMES))
        return {"total": len(self.rows), **dict(zip(OUTCOMES, found.tolist(), strict=True))}

    def seconds(self, traffic: Traffic) -> dict[str, NDArray[np.float64]]:
        """Of the requests that finished, from the client's first try; a tpot_s of NaN is undefined (one token)."""
        finished = self.rows["outcome"] == DONE
        rows = self.rows[finished]
        arrival = traffic.workload.arrival_s[finished]
        output = traffic.workload.output_tokens[finished]
        tpot = (rows["finish_s"] - rows["first_token_s"]) / np.maximum(output - 1, 1)
        return {
            "queue_s": rows["first_scheduled_s"] - arrival,
            "ttft_s": rows["first_token_s"] - arrival,
            "tpot_s": np.where(output > 1, tpot, np.nan),
            "e2e_s": rows["finish_s"] - arrival,
            "normalized_s_per_token": (rows["finish_s"] - arrival) / output,
        }

    def latency(self, traffic: Traffic) -> dict[str, Mapping[str, float | None]]:
        return {name: statistics(values) for name, values in self.seconds(traffic).items()}

    def table(self, traffic: Traffic) -> pd.DataFrame:
        """One row a request, in order of arrival. Times in seconds, NaN where there is none."""
        import pandas as pd

        rows, workload = self.rows, traffic.workload
        arrival = workload.arrival_s

        def moment(name: str) -> NDArray[np.float64]:
            return np.where(rows[name] >= 0, rows[name], np.nan)

        first, finish = moment("first_token_s"), moment("finish_s")
        output = workload.output_tokens
        return pd.DataFrame(
            {
                "arrival_s": arrival,
                "prompt_tokens": workload.prompt_tokens,
                "output_tokens": output,
                "outcome": pd.Categorical(np.array(OUTCOMES)[rows["outcome"]], categories=list(OUTCOMES)),
                "reason": pd.Categorical(np.array(REFUSALS)[rows["reason"]], categories=list(REFUSALS)),
                "replica": rows["replica"],
                "attempts": rows["attempts"],
                "preemptions": rows["preemptions"],
                "cached_tokens": rows["cached"],
                "first_scheduled_s": moment("first_scheduled_s"),
                "first_token_s": first,
                "finish_s": finish,
                "queue_s": moment("first_scheduled_s") - arrival,
                "ttft_s": first - arrival,
                "tpot_s": np.where(output > 1, (finish - first) / np.maximum(output - 1, 1), np.nan),
                "e2e_s": finish - arrival,
            }
        )
