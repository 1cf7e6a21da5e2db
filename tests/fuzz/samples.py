# ruff: noqa: E501 - a sample reads better on one line
"""What the fuzzer starts from: a small file of every format that kvplan reads."""

from __future__ import annotations

import io
from collections.abc import Iterator

from kvplan.trace import synthesize
from kvplan.trace.readers.tables import TABLES
from kvplan.trace.trace import Trace
from kvplan.trace.writers import WRITERS
from kvplan.trace.writers.tables import write_parquet

FOREIGN = {
    "otlp": b'{"resourceSpans": [{"scopeSpans": [{"spans": [{"spanId": "a", "startTimeUnixNano": "1700000000000000001", "attributes": [{"key": "gen_ai.usage.prompt_tokens", "value": {"intValue": "12"}}, {"key": "gen_ai.usage.completion_tokens", "value": {"intValue": "3"}}]}]}]}]}',
    "otel-flat": b'{"spans": [{"span_id": "a", "start_time": "2024-01-01T00:00:00.5Z", "attributes": {"gen_ai.input.messages": "[{\\"role\\": \\"user\\", \\"content\\": \\"hello\\"}]", "gen_ai.usage.output_tokens": 5, "gen_ai.request.choice.count": 2}}]}',
    "weka": b'{"id": "s", "block_size": 64, "hash_id_scope": "local", "requests": [{"t": 0, "in": 130, "out": 5, "hash_ids": [1, 2]}, {"type": "subagent", "requests": [{"t": 1.5, "in": 64, "out": 2, "hash_ids": [9]}]}]}',
    "guidellm": b'{"benchmarks": [{"requests": {"successful": [{"request_id": "a", "request_start_time": 1700000000.5, "prompt_tokens": 7, "output_tokens": 2}], "errored": [{"info": {"timings": {"request_start": 1700000001}}}], "incomplete": []}}]}',
    "vllm-bench": b'{"backend": "vllm", "completed": 2, "total_input_tokens": 12, "total_output_tokens": 4, "request_rate": 2.0, "burstiness": 0.5, "duration": 3, "input_lens": [5, 7], "output_lens": [1, 3], "start_times": [10.5, 11], "errors": ["", "late"]}',
    "sglang-bench": b'{"backend": "sglang", "completed": 3, "total_input_tokens": 12, "total_output_tokens": 4, "request_rate": 2.0, "duration": 3}',
    "aiperf-export": b'{"metadata": {"request_start_ns": 1700000000000000000, "x_request_id": "a", "conversation_id": "c", "was_cancelled": false}, "metrics": {"input_sequence_length": {"value": 5}, "output_sequence_length": {"value": 2}}, "error": null}',
    "aiperf-sessions": b'{"session_id": "a", "timestamp": 0, "input_length": 5, "output_length": 2}\n{"session_id": "a", "delay": 10, "input_length": 3, "output_length": 2}\n{"text_input": "hello", "delay": 5}\n{"payload": {"messages": [{"content": "hi"}]}}',
    "inference-perf": b'[{"start_time": 1.5, "info": {"request_metrics": {"text": {"input_tokens": 5}}, "response_metrics": {"output_tokens": 2}}, "error": null}]',
    "aibrix": b'{"timestamp": 0, "requests": [{"Prompt Length": 5, "Output Length": 2}, {"Prompt Length": 7}]}',
    "tracelab": b'{"session_id": "a", "round_id": 0, "input_tokens_total": 50, "prefix_tokens": 40, "newly_append_tokens": 10, "output_tokens": 5, "timing_events": [{"timestamp": "2025-01-01T00:00:00+02:00"}]}',
    "tracelab-csv": b"session_id,arrival_time,round_idx,prefix_len,input_len,output_len,tool_wait_after_ms\na,0,0,0,10,5,100\na,0,1,15,5,5,0\n",
    "llmservingsim": b'{"request_id": 1, "input_toks": 9, "output_toks": 4, "arrival_time_ns": 1000}\n{"session_id": "a", "arrival_time_ns": 5, "sub_requests": [{"input_toks": 10, "output_toks": 2, "tool_duration_ns": 1000000}, {"input_toks": 20, "output_toks": 2}]}',
    "bailian": b'{"chat_id": 1, "parent_chat_id": -1, "timestamp": 0.5, "input_length": 33, "output_length": 2, "type": "text", "turn": 1, "hash_ids": [1, 2, 3]}\n{"chat_id": 2, "parent_chat_id": 1, "timestamp": 1.5, "input_length": 48, "output_length": 2, "hash_ids": [1, 2, 4]}',
    "ragpulse": b'{"timestamp": 1, "input_length": 9, "output_length": 2, "session_id": "a", "hash_ids": {"sys_prompt": [1], "passages_ids": [3], "history": [], "web_search": [], "user_input": [2]}}',
    "sharegpt": b'[{"id": "a", "conversations": [{"from": "human", "value": "hello there"}, {"from": "gpt", "value": "hi"}]}]',
    "servegen-offline": b'{"timestamp": 1, "input_length": 9, "output_length": 2, "img_ids": []}',
    "servegen-rates": b"0,0.5,1.2,Gamma,0.5,0\n600,0.25,,,,\n",
    "servegen-dataset": b'{"0": {"input_tokens": "{9: 0.5, 20: 0.5}", "output_tokens": "{3: 1.0}"}}',
    "vllm-multi-turn": b'[{"id": "a", "messages": [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "hi"}]}]',
    "vllm-custom": b'{"prompt": "hello there", "output_tokens": 5}',
    "lmcache-agents": b'{"timestamp": 1700000000000000, "input": "hello", "output": [{"text": "hi"}], "session_id": "a"}',
    "lengths": b'{"input_length": 5, "output_length": 2}',
    "kvplan": b'{"arrival_s": 0.5, "prompt_tokens": 5, "output_tokens": 2, "request_id": "a", "n": 2, "session": "s"}',
    "synthetic": b"workload:\n  synthetic: {requests: 5, arrivals: {rate: 2}, prompt: {lognormal: {median: 50, sigma: 1}}, output: 5, prefixes: [{tokens: 20, share: 0.5}], sessions: {turns: 3, think_s: 1}}\n",
    "scenario": b"requests:\n- {prompt: 50, output: 5, prefix: {id: a, tokens: 20}}\n- prompt: 100\n  output: 2\n  arrival: 1.5\n  session: s\n  priority: -1\n",
    "prometheus": b'# TYPE vllm:request_prompt_tokens histogram\nvllm:request_prompt_tokens_bucket{le="10",engine="0"} 3\nvllm:request_prompt_tokens_bucket{le="+Inf"} 5\nvllm:request_prompt_tokens_sum{engine="0"} 60\nvllm:request_prompt_tokens_count{engine="0"} 5\nvllm:request_generation_tokens_bucket{le="5"} 5\nvllm:request_generation_tokens_count 5\nvllm:cache_config_info{block_size="16",num_gpu_blocks="100"} 1\nsglang:token_usage 0.5\n',
    "engine-log": b"INFO 01-01 00:00:00 [kv_cache_utils.py:849] GPU KV cache size: 100,000 tokens\nINFO 01-01 00:00:00 [core.py:1] # GPU blocks: 512, # CPU blocks: 0\n",
}  # fmt: skip
"""Formats that kvplan reads and does not write, made up after their documentation."""


def shared_trace() -> Trace:
    """A handful of requests that use all that a trace can hold."""
    return synthesize(
        {
            "requests": 6,
            "arrivals": 2,
            "prompt": {"lognormal": {"median": 60, "sigma": 0.5}},
            "output": 7,
            "n": 2,
            "sessions": {"turns": 3, "think_s": 1},
            "prefixes": [{"tokens": 32, "share": 0.5}],
        }
    )


def written(trace: Trace, to: str, block_size: int = 16) -> bytes:
    """The trace as the writer ``to`` puts it into a file."""
    writer = WRITERS[to]
    if writer.lines is None:
        whole = io.BytesIO()
        write_parquet(trace, whole)
        return whole.getvalue()
    text = io.StringIO()
    writer.lines(trace, text, writer.block_size or block_size)
    return text.getvalue().encode()


def samples() -> Iterator[tuple[str, bytes]]:
    """(name, file) of every format: what kvplan writes, the headers it knows, and ``FOREIGN``."""
    trace = shared_trace()
    for to in WRITERS:
        yield f"written-{to}", written(trace, to)
    for number, table in enumerate(TABLES):
        names = list(dict.fromkeys([*table.columns.values(), *table.marks]))
        rows = (",".join(str(row + place) for place in range(len(names))) for row in (1, 2))
        yield f"table-{number}", "\n".join([",".join(names), *rows]).encode()
    yield from FOREIGN.items()
