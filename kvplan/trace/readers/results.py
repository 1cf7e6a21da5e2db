"""Results of load generators read back as traces: vLLM and SGLang bench, GuideLLM, inference-perf."""

from __future__ import annotations

from typing import Any

import numpy as np

from kvplan.errors import InputError
from kvplan.trace.builder import TraceBuilder
from kvplan.trace.clock import Clock
from kvplan.trace.readers.fields import at, each, listed
from kvplan.trace.rows import tokens


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
        if value.get("input_lens") is None:
            arrivals = self._from_sums(value)
        else:
            arrivals = self._detailed(value, line)
        duration = value.get("duration")
        end = max(arrivals, default=self._offset)
        if isinstance(duration, (int, float)) and 0 <= duration < 1e9:
            end = max(end, self._offset + duration)
        self._offset = end

    def _detailed(self, value: dict[str, Any], line: int) -> list[float]:
        prompts = listed(value.get("input_lens"), "input_lens")
        outputs = listed(value.get("output_lens"), "output_lens")
        if len(outputs) != len(prompts):
            raise InputError(f"has {len(outputs)} entries, input_lens {len(prompts)}", field="output_lens")
        errors = listed(value.get("errors"), "errors") or [""] * len(prompts)
        starts = self._starts(value, len(prompts))
        arrivals: list[float] = []

        def add(item: dict[str, Any]) -> None:
            index = item["index"]
            failed = index < len(errors) and bool(errors[index])
            prompt = tokens(prompts[index], "input_lens")
            output = 0 if failed else tokens(outputs[index], "output_lens")
            self.builder.add(None if starts is None else self._offset + starts[index], prompt, output)
            if starts is not None:
                arrivals.append(self._offset + starts[index])

        each(self.builder, line, ({"index": index} for index in range(len(prompts))), "requests", add)
        return arrivals

    def _starts(self, value: dict[str, Any], count: int) -> list[float] | None:
        times = value.get("start_times")
        if times is None:
            return self._drawn(value, count)
        clock = Clock(self.unit, "start_times")
        starts = [clock.seconds(time) for time in listed(times, "start_times")]
        if len(starts) != count:
            raise InputError(f"has {len(starts)} entries, input_lens {count}", field="start_times")
        self.builder.note(f"time: start_times in {self.unit}, on the client's own clock")
        first = min(starts, default=0.0)
        return [start - first for start in starts]

    def _drawn(self, value: dict[str, Any], count: int) -> list[float] | None:
        """Arrivals of a run that tells its rate and burstiness only, as the load generator draws them."""
        rate = value.get("request_rate")
        if not isinstance(rate, (int, float)) or not 0 < rate < 1e9:
            return None  # "inf": all at once
        burstiness = value.get("burstiness")
        shape = float(burstiness) if isinstance(burstiness, (int, float)) and 0 < burstiness < 1e6 else 1.0
        self.builder.note(
            f"no start times: arrivals drawn at {rate:g} requests/s, burstiness {shape:g}, seed {self.seed}"
        )
        gaps = np.random.default_rng(self.seed).gamma(shape, 1 / (rate * shape), count)
        starts = np.cumsum(gaps) - gaps[:1].sum()
        return [float(start) for start in starts]

    def _from_sums(self, value: dict[str, Any]) -> list[float]:
        completed = tokens(value.get("completed"), "completed")
        total = {key: tokens(value.get(key), key) for key in ("total_input_tokens", "total_output_tokens")}
        if not completed:
            raise InputError("no request of this run completed", field="completed", value=completed)
        prompt, output = (total[key] / completed for key in ("total_input_tokens", "total_output_tokens"))
        self.builder.note(
            "the result has sums only: every request gets the mean lengths"
            " (run the benchmark with --save-detailed, sglang: --output-details, for the real ones)"
        )
        count = self.builder.drawn(completed)
        starts = self._drawn(value, count)
        for index in range(count):
            if self.builder.full:
                break
            # Whole tokens that sum to the total: the remainder is spread over the requests.
            share = [round(mean * (index + 1)) - round(mean * index) for mean in (prompt, output)]
            self.builder.add(
                None if starts is None else self._offset + starts[index], max(1, share[0]), max(1, share[1])
            )
        return [] if starts is None else [self._offset + start for start in starts]


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
