"""The JSON formats, told by the keys of their first values."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from kvplan.trace.builder import TraceBuilder
from kvplan.trace.clock import epoch_unit
from kvplan.trace.long_json import is_list
from kvplan.trace.readers.agents import AibrixRows, ServingSimRows, TraceLabRounds, WekaSession
from kvplan.trace.readers.aiperf import AiperfExport, AiperfRows
from kvplan.trace.readers.columns import ColumnRows
from kvplan.trace.readers.dialogues import AgentLog, Conversations, CustomPrompts, ShareGptRows
from kvplan.trace.readers.fields import at
from kvplan.trace.readers.hash_rows import BailianRows, HashRows
from kvplan.trace.readers.ragpulse import RagPulseRows
from kvplan.trace.readers.results import BenchResults, GuideLlmResults, InferencePerfRequests
from kvplan.trace.readers.spans import SpanRows

Sample = Sequence[dict[str, Any]]


class RowReader(Protocol):
    """Adds one JSON value's requests to its builder."""

    def row(self, value: dict[str, Any], line: int) -> None:
        """Raises InputError, without a place, for a value that holds none."""


@dataclass(frozen=True)
class Setting:
    """What a reader is made with."""

    builder: TraceBuilder
    unit: str
    path: Path | None
    given_unit: str | None = None
    tokenizer: str | None = None
    seed: int = 0
    columns: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class JsonFormat:
    """A JSON format.

    Args:
        name: as ``--format`` takes it.
        fits: whether the sample (the first objects of a file) is of this format.
        reader: makes the reader.
        time_unit: the format's own; ``""``: inferred from the sample; None: the reader notes it itself.
        block_size: of hash ids, as the format prescribes; None: none.
    """

    name: str
    fits: Callable[[Sample], bool]
    reader: Callable[[Setting], RowReader]
    time_unit: str | None = None
    block_size: int | None = None

    def unit(self, sample: Sample, builder: TraceBuilder, given: str | None) -> str:
        """The unit of time: given, the format's own, or inferred; noted in each case."""
        if given:
            builder.note(f"time in {given} (as given)")
            return given
        if self.time_unit == "":
            unit, why = infer_unit(sample)
            builder.note(f"time in {unit}, inferred: {why} (--time-unit overrides)")
            return unit
        if self.time_unit:
            builder.note(f"time in {self.time_unit}, as {self.name} has it")
        return self.time_unit or "s"


def infer_unit(sample: Sample) -> tuple[str, str]:
    """(unit, why) of ``timestamp`` in rows that do not say: Mooncake's ms, vLLM's and GuideLLM's seconds."""
    stamps = [value.get("timestamp") for value in sample]
    times = [stamp for stamp in stamps if isinstance(stamp, (int, float))]
    digits = [int(stamp) for stamp in stamps if isinstance(stamp, str) and stamp.isdecimal() and len(stamp) < 30]
    epoch = epoch_unit(min([*times, *digits], default=0))
    if epoch is not None:
        return epoch, "its numbers are moments since 1970"
    gap = (max(times) - min(times)) / (len(times) - 1) if len(times) > 1 else 0.0
    floats = [time for time in times if isinstance(time, float)]
    if any(time.is_integer() for time in floats):
        return "s", "whole numbers written as decimals, as programs write seconds"
    if floats and gap < 10:
        return "s", f"fractional timestamps {gap:.3g} apart"
    if any(isinstance(stamp, str) for stamp in stamps):
        return "s", "dates or numbers as texts"
    return "ms", "whole timestamps, or far apart, as Mooncake's"


def _has(*keys: str) -> Callable[[Sample], bool]:
    return lambda sample: any(all(key in value for key in keys) for value in sample)


def _any(*keys: str) -> Callable[[Sample], bool]:
    return lambda sample: any(key in value for value in sample for key in keys)


def _seconds(sample: Sample) -> bool:
    return _has("timestamp", "input_length")(sample) and infer_unit(sample)[0] == "s"


def _is_aiperf(sample: Sample) -> bool:
    marks = _any("text_input", "delay", "payload")(sample) or _has("session_id", "input_length")(sample)
    return marks or _has("messages", "output_length")(sample)


def _is_flat_spans(sample: Sample) -> bool:
    return any(is_list(value.get("spans")) for value in sample)


def _is_aibrix(sample: Sample) -> bool:
    return any(is_list(at(value, "requests")) and "timestamp" in value for value in sample)


def _is_weka(sample: Sample) -> bool:
    return any(
        is_list(requests := value.get("requests"))
        and ("block_size" in value or any(isinstance(item, dict) and "hash_ids" in item for item in requests[:5]))
        for value in sample
    )


def _prompt_text(sample: Sample) -> bool:
    return any(isinstance(value.get("prompt"), str) and "arrival" not in value for value in sample)


def _is_inference_perf(sample: Sample) -> bool:
    return any("start_time" in value and isinstance(value.get("info"), dict) for value in sample)


OWN = {role: role for role in ("arrival", "prompt", "output", "id", "session", "priority", "n", "beam_width")}
OWN_LONG = OWN | {
    "arrival": "arrival_s",
    "prompt": "prompt_tokens",
    "output": "output_tokens",
    "id": "request_id",
}

# The first that fits wins: the more particular stand first.
JSON_FORMATS: tuple[JsonFormat, ...] = (
    JsonFormat("otlp", _has("resourceSpans"), lambda s: SpanRows(s.builder, s.tokenizer)),
    JsonFormat("otel-flat", _is_flat_spans, lambda s: SpanRows(s.builder, s.tokenizer)),
    JsonFormat("weka", _is_weka, lambda s: WekaSession(s.builder), "s"),
    JsonFormat("guidellm", _has("benchmarks"), lambda s: GuideLlmResults(s.builder, s.unit), "s"),
    JsonFormat(
        "sglang-bench",
        lambda s: str(s[0].get("backend")).startswith("sglang") and _has("completed")(s),
        lambda s: BenchResults(s.builder, s.unit, s.seed),
    ),
    JsonFormat(
        "vllm-bench",
        lambda s: _any("input_lens")(s) or _has("completed", "total_input_tokens")(s),
        lambda s: BenchResults(s.builder, s.unit, s.seed),
    ),
    JsonFormat("aiperf-export", _has("metadata", "metrics"), lambda s: AiperfExport(s.builder, s.unit), "ns"),
    JsonFormat("inference-perf", _is_inference_perf, lambda s: InferencePerfRequests(s.builder, s.unit), "s"),
    JsonFormat("aibrix", _is_aibrix, lambda s: AibrixRows(s.builder, s.unit), "ms"),
    JsonFormat("tracelab", _has("input_tokens_total", "prefix_tokens"), lambda s: TraceLabRounds(s.builder)),
    JsonFormat("llmservingsim", _any("input_toks", "sub_requests"), lambda s: ServingSimRows(s.builder, s.given_unit)),
    JsonFormat("bailian", _has("chat_id", "input_length"), lambda s: BailianRows(s.builder, s.unit), "s", 16),
    JsonFormat(
        "ragpulse",
        lambda sample: any(isinstance(value.get("hash_ids"), dict) for value in sample),
        lambda s: RagPulseRows(s.builder, s.unit, s.path),
        "s",
    ),
    JsonFormat("sharegpt", _any("conversations", "conversation"), lambda s: ShareGptRows(s.builder, s.tokenizer)),
    JsonFormat("servegen-offline", _has("input_length", "img_ids"), lambda s: HashRows(s.builder, s.unit), None, 16),
    JsonFormat("aiperf", _is_aiperf, lambda s: AiperfRows(s.builder, s.unit, s.tokenizer), "ms", 512),
    JsonFormat("vllm-multi-turn", _has("messages"), lambda s: Conversations(s.builder, s.tokenizer)),
    JsonFormat(
        "vllm-timed-trace",
        lambda s: _seconds(s) and _has("hash_ids")(s),
        lambda s: HashRows(s.builder, s.unit),
        "",
        16,
    ),
    JsonFormat("guidellm-trace", _seconds, lambda s: HashRows(s.builder, s.unit), "", 512),
    JsonFormat("mooncake", _has("timestamp", "input_length"), lambda s: HashRows(s.builder, s.unit), "", 512),
    JsonFormat("lengths", _has("input_length"), lambda s: HashRows(s.builder, s.unit), None, 16),
    JsonFormat(
        "lmcache-agents",
        _has("timestamp", "input", "output"),
        lambda s: AgentLog(s.builder, s.unit, s.tokenizer),
        "us",
    ),
    JsonFormat("vllm-custom", _prompt_text, lambda s: CustomPrompts(s.builder, s.tokenizer)),
    JsonFormat("generic", _has("prompt", "output"), lambda s: ColumnRows(s.builder, s.unit, s.columns or OWN), "s"),
    JsonFormat(
        "kvplan",
        _has("prompt_tokens", "output_tokens"),
        lambda s: ColumnRows(s.builder, s.unit, OWN_LONG),
        "s",
    ),
)


def json_format(sample: Sample) -> JsonFormat | None:
    """The format of a file that begins with these objects; None where no format knows it."""
    return next((known for known in JSON_FORMATS if known.fits(sample)), None)
