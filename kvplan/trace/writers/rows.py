"""Row formats: Mooncake JSONL, vLLM timed traces, AIPerf, GuideLLM, Vidur CSV."""

from __future__ import annotations

import json
from typing import IO, Any

from kvplan.trace.trace import Trace
from kvplan.trace.writers.blocks import block_ids

_SHORT_GAP_MS = 10.0


def mooncake(trace: Trace, file: IO[str], block_size: int) -> None:
    """``{timestamp: ms, input_length, output_length, hash_ids}``.

    Microseconds are kept, except where requests come less than 10 ms apart: there a fraction would make
        readers
    that guess the unit take it for seconds, and whole milliseconds are written.
    """
    whole = len(trace) > 1 and 1000 * trace.span_s / (len(trace) - 1) < _SHORT_GAP_MS
    _json_rows(trace, file, [_plain(1000 * at, 0 if whole else 3) for at in trace.arrival_s.tolist()], block_size)


def aiperf(trace: Trace, file: IO[str], block_size: int) -> None:
    """AIPerf's ``mooncake_trace``: as Mooncake's; without sessions, as AIPerf would add their history."""
    mooncake(trace, file, block_size)


def timed_trace(trace: Trace, file: IO[str], block_size: int) -> None:
    """vLLM's ``timed_trace``: seconds. Give vLLM the block size: ``--timed-trace-chunk-hash-size``."""
    _json_rows(trace, file, [round(at, 9) for at in trace.arrival_s.tolist()], block_size)


def guidellm(trace: Trace, file: IO[str], block_size: int) -> None:
    """GuideLLM's trace: seconds; hash ids of 512 tokens."""
    _json_rows(trace, file, [round(at, 9) for at in trace.arrival_s.tolist()], block_size)


def _plain(value: float, digits: int) -> int | float:
    rounded = round(value, digits)
    return int(rounded) if rounded == int(rounded) else rounded


def _json_rows(trace: Trace, file: IO[str], times: list[Any], block_size: int) -> None:
    ids = None if trace.content is None else block_ids(trace, block_size)
    lengths = zip(times, trace.prompt_tokens.tolist(), trace.output_tokens.tolist(), strict=True)
    for row, (time, prompt, output) in enumerate(lengths):
        value: dict[str, Any] = {"timestamp": time, "input_length": prompt, "output_length": output}
        if ids is not None:
            value["hash_ids"] = ids[row]
        file.write(json.dumps(value) + "\n")


def vidur(trace: Trace, file: IO[str], block_size: int) -> None:
    """``arrived_at,num_prefill_tokens,num_decode_tokens``; session and block ids where there are some."""
    ids = None if trace.content is None else block_ids(trace, block_size)
    header = ["arrived_at", "num_prefill_tokens", "num_decode_tokens"]
    with_session = trace.session is not None or ids is not None
    if with_session:
        header.append("session_id")
    if ids is not None:
        header.append("block_hash_ids")
    file.write(",".join(header) + "\n")
    sessions = [-1] * len(trace) if trace.session is None else trace.session.tolist()
    columns = zip(trace.arrival_s.tolist(), trace.prompt_tokens.tolist(), trace.output_tokens.tolist(), strict=True)
    for row, (arrival, prompt, output) in enumerate(columns):
        cells = [repr(round(arrival, 9)), str(prompt), str(output)]
        if with_session:
            cells.append("" if sessions[row] < 0 else str(sessions[row]))
        if ids is not None:
            cells.append("|".join(map(str, ids[row])))
        file.write(",".join(cells) + "\n")
