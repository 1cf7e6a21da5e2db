"""Results of load generators read back as traces: vLLM and SGLang bench, GuideLLM, inference-perf."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np

from kvplan.errors import InputError
from kvplan.trace.builder import TraceBuilder
from kvplan.trace.clock import Clock
from kvplan.trace.readers.fields import BATCH, at, batches, each, listed
from kvplan.trace.rows import are_tokens, tokens
from kvplan.trace.trace import Doubles, Longs


class BenchResults:
    """``vllm bench serve --save-result`` and ``sglang.bench_serving --output-file``: one object a run.

    Several runs may follow one another (``--append-result``); each is put after the one before it. Without
    ``--save-detailed`` (``--output-details``) a run tells only sums: then its requests get the mean lengths,
    and that is said.
    """

    def __init__(self, builder: TraceBuilder, unit: str, seed: int) -> None:
        self.builder = builder
        self.unit = unit
        self.seed = seed
        self.runs = 0
        self._offset = 0.0
        builder.zero_output_failed = True

    def row(self, value: dict[str, Any], line: int) -> None:
        self.runs += 1
        if self.runs > 1:
            self.builder.note("several runs in one file: each starts where the one before it ends")
        end = self._from_sums(value) if value.get("input_lens") is None else self._detailed(value, line)
        duration = value.get("duration")
        if isinstance(duration, (int, float)) and 0 <= duration < 1e9:
            end = max(end, self._offset + duration)
        self._offset = end

    def _detailed(self, value: dict[str, Any], line: int) -> float:
        """Add the run's requests; returns when the last one arrives."""
        prompts = listed(value.get("input_lens"), "input_lens")
        outputs = listed(value.get("output_lens"), "output_lens")
        if len(outputs) != len(prompts):
            raise InputError(f"has {len(outputs)} entries, input_lens {len(prompts)}", field="output_lens")
        errors = itertools.chain(listed(value.get("errors"), "errors"), itertools.repeat(""))  # often fewer, or none
        starts = self._starts(value, len(prompts))
        last, begin = self._offset, 0
        for prompt, output, error, start in zip(
            batches(prompts), batches(outputs), batches(errors), starts, strict=False
        ):
            if self.builder.full:
                break
            arrival = None if start is None else self._offset + start
            last = max(last, self._add(prompt, output, error, arrival, begin, line))
            begin += len(prompt)
        return last

    def _add(
        self, prompt: list[Any], output: list[Any], error: list[Any], arrival: Doubles | None, begin: int, line: int
    ) -> float:
        """Add the requests from the one numbered ``begin`` on; returns when the last one arrives."""
        last = self._offset
        if are_tokens(prompt) and are_tokens(output) and not any(error):
            before = len(self.builder)
            self.builder.extend(arrival, np.array(prompt, np.int64), np.array(output, np.int64))
            return last if arrival is None else float(arrival[: len(self.builder) - before].max(initial=last))

        def add(item: dict[str, Any]) -> None:
            nonlocal last
            at = item["at"]
            counts = tokens(prompt[at], "input_lens"), 0 if error[at] else tokens(output[at], "output_lens")
            self.builder.add(None if arrival is None else float(arrival[at]), *counts)
            last = last if arrival is None else max(last, float(arrival[at]))

        each(self.builder, line, ({"at": at} for at in range(len(prompt))), "requests", add, first=begin)
        return last

    def _starts(self, value: dict[str, Any], count: int) -> Iterator[Doubles | None]:
        """Seconds from the run's first request, ``BATCH`` requests at a time; None: all at once."""
        times = value.get("start_times")
        if times is None:
            return self._drawn(value, count)
        clock = Clock(self.unit, "start_times")
        starts = np.fromiter((clock.seconds(time) for time in listed(times, "start_times")), np.float64)
        if len(starts) != count:
            raise InputError(f"has {len(starts)} entries, input_lens {count}", field="start_times")
        self.builder.note(f"time: start_times in {self.unit}, on the client's own clock")
        starts -= starts.min(initial=np.inf)
        return (starts[at : at + BATCH] for at in range(0, count, BATCH))

    def _drawn(self, value: dict[str, Any], count: int) -> Iterator[Doubles | None]:
        """Arrivals of a run that tells its rate and burstiness only, as the load generator draws them."""
        rate = value.get("request_rate")
        if not isinstance(rate, (int, float)) or not 0 < rate < 1e9:
            return itertools.repeat(None)  # "inf": all at once
        burstiness = value.get("burstiness")
        shape = float(burstiness) if isinstance(burstiness, (int, float)) and 0 < burstiness < 1e6 else 1.0
        self.builder.note(
            f"no start times: arrivals drawn at {rate:g} requests/s, burstiness {shape:g}, seed {self.seed}"
        )
        return _renewals(self.seed, shape, 1 / (rate * shape), count)

    def _from_sums(self, value: dict[str, Any]) -> float:
        """Add requests of the mean lengths; returns when the last one arrives."""
        completed = tokens(value.get("completed"), "completed")
        total = {key: tokens(value.get(key), key) for key in ("total_input_tokens", "total_output_tokens")}
        if not completed:
            raise InputError("no request of this run completed", field="completed", value=completed)
        self.builder.note(
            "the result has sums only: every request gets the mean lengths"
            " (run the benchmark with --save-detailed, sglang: --output-details, for the real ones)"
        )
        count = self.builder.drawn(completed)
        last = self._offset
        for begin, start in zip(range(0, count, BATCH), self._drawn(value, count), strict=False):
            prompt, output = (_shares(total[key] / completed, begin, min(begin + BATCH, count)) for key in total)
            arrival = None if start is None else self._offset + start
            self.builder.extend(arrival, prompt, output)
            last = last if arrival is None else max(last, float(arrival.max()))
        return last


def _renewals(seed: int, shape: float, scale: float, count: int) -> Iterator[Doubles]:
    """Sums of gamma-distributed gaps, from 0 on, ``BATCH`` at a time."""
    random = np.random.default_rng(seed)
    first, reached = 0.0, 0.0
    for begin in range(0, count, BATCH):
        gaps = random.gamma(shape, scale, min(BATCH, count - begin))
        first = first if begin else float(gaps[0])
        gaps[0] += reached
        moments: Doubles = np.cumsum(gaps)
        reached = float(moments[-1])
        yield moments - first


def _shares(mean: float, begin: int, end: int) -> Longs:
    """Whole tokens, at least one, of the requests ``begin`` to ``end`` that are ``mean`` long on average.

    Those of all requests sum to their total: the remainder is spread over them.
    """
    return np.maximum(np.diff(np.rint(mean * np.arange(begin, end + 1))), 1).astype(np.int64)


class GuideLlmResults:
    """GuideLLM's benchmarks.json: version 2 and those of 0.3 and before; failed requests are counted only."""

    def __init__(self, builder: TraceBuilder, unit: str) -> None:
        self.builder = builder
        self.clock = Clock(unit, "request_start_time")
        builder.zero_output_failed = True

    def row(self, value: dict[str, Any], line: int) -> None:
        benchmarks = listed(value.get("benchmarks"), "benchmarks")
        if len(benchmarks) > 1:
            self.builder.note(f"{len(benchmarks)} benchmarks in one file, each at its own time")
        for index, benchmark in enumerate(benchmarks):
            requests = at(benchmark, "requests")
            for status in ("successful", "errored", "incomplete"):
                items = listed(at(requests, status), f"benchmarks[{index}].requests.{status}")
                add = self._add if status == "successful" else self._add_failed
                each(self.builder, line, items, f"benchmarks[{index}].requests.{status}", add)
        if not len(self.builder) and not self.builder.bad.count:
            raise InputError(
                "holds no single requests (the samples were stripped)",
                field="benchmarks",
                hint="run GuideLLM without a sample limit, or use its trace",
            )

    def _add_failed(self, item: dict[str, Any]) -> None:
        self._add(item, failed=True)

    def _add(self, item: dict[str, Any], failed: bool = False) -> None:
        start = item.get("request_start_time")
        for path in (
            ("start_time",),
            ("info", "timings", "request_start"),
            ("scheduler_info", "request_start"),
        ):
            start = at(item, *path) if start is None else start
        prompt, output = item.get("prompt_tokens"), item.get("output_tokens")
        prompt = at(item, "input_metrics", "text_tokens") if prompt is None else prompt
        output = at(item, "output_metrics", "text_tokens") if output is None else output
        name = item.get("request_id")
        self.builder.add(
            None if start is None else self.clock.seconds(start),
            0 if failed and prompt is None else tokens(prompt, "prompt_tokens"),
            0 if failed else tokens(output, "output_tokens"),
            name=None if name is None else str(name),
        )


class InferencePerfRequests:
    """inference-perf's per_request_lifecycle_metrics.json; times on the client's monotonic clock."""

    def __init__(self, builder: TraceBuilder, unit: str) -> None:
        self.builder = builder
        self.clock = Clock(unit, "start_time")
        builder.zero_output_failed = True

    def row(self, value: dict[str, Any], line: int) -> None:
        start = value.get("start_time")
        failed = value.get("error") is not None
        prompt = at(value, "info", "request_metrics", "text", "input_tokens")
        prompt = at(value, "info", "input_tokens") if prompt is None else prompt
        output = at(value, "info", "response_metrics", "output_tokens")
        output = at(value, "info", "output_tokens") if output is None else output
        self.builder.add(
            None if start is None else self.clock.seconds(start),
            0 if failed and prompt is None else tokens(prompt, "info.request_metrics.text.input_tokens"),
            0 if failed else (None if output is None else tokens(output, "info.response_metrics.output_tokens")),
        )
