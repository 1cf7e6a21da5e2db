"""What a cluster is sent: a trace's columns, and the key by which a prefix-aware router knows a request."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from kvplan.core.replica import Workload
from kvplan.simulation import workload_of

if TYPE_CHECKING:
    from kvplan.trace.trace import Trace

_OWN = np.int64(1) << np.int64(62)
_PREFIX = np.int64(1) << np.int64(61)


@dataclass(frozen=True, eq=False)
class Traffic:
    """Requests in order of arrival.

    Args:
        workload: their columns.
        keys: int64[R]: equal for requests that should meet on one replica.
    """

    workload: Workload
    keys: NDArray[np.int64]

    @classmethod
    def of(cls, trace: Trace) -> Traffic:
        """The key is the session; where there is none, what the prompt begins with; else the request alone."""
        keys = _OWN + np.arange(len(trace), dtype=np.int64)
        content = trace.content
        if content is not None:
            has = np.flatnonzero(np.diff(content.segment_ptr))
            keys[has] = _PREFIX ^ content.segment_source[content.segment_ptr[has]]
        if trace.session is not None:
            keys = np.where(trace.session >= 0, trace.session, keys)
        return cls(workload_of(trace), keys)

    def __len__(self) -> int:
        return len(self.workload)

    @property
    def longest(self) -> int:
        """Tokens of the longest request."""
        return int((self.workload.prompt_tokens + self.workload.output_tokens).max(initial=1))

    @property
    def sequences(self) -> int:
        """Most sequences of a request."""
        return 1 if self.workload.sequences is None else int(self.workload.sequences.max(initial=1))
