"""Slices, scalings and sums."""

from __future__ import annotations

import numpy as np
import pytest

from kvplan.errors import InputError
from kvplan.trace import Trace, inline_trace, read_trace
from kvplan.trace.edit import cut, merge, scale
from kvplan.trace.sharing import prefix_hits

TURNS = [{"arrival": 10.0 * at, "prompt": 100 + 50 * at, "output": 10, "session": "s"} for at in range(4)]


def test_a_slice_of_time_begins_at_0_and_keeps_names_and_sharing():
    part = cut(inline_trace(TURNS), start_s=10, end_s=30)
    assert part.arrival_s.tolist() == [0, 10]
    assert part.names().tolist() == ["1", "2"]
    assert prefix_hits(part).tokens.tolist() == [0, 160]


def test_a_slice_by_number_can_keep_its_clock():
    part = cut(inline_trace(TURNS), first=1, count=2, rebase=False)
    assert part.arrival_s.tolist() == [10, 20]


def test_an_empty_slice_is_refused():
    with pytest.raises(InputError, match="holds no request"):
        cut(inline_trace(TURNS), start_s=1000)
    with pytest.raises(InputError, match="at least 1"):
        cut(inline_trace(TURNS), count=0)


def test_a_rate_is_met_and_gaps_keep_their_proportions():
    trace = inline_trace([{"arrival": at, "prompt": 5, "output": 1} for at in (0, 1, 4)])
    assert scale(trace, rate=2).arrival_s.tolist() == [0, 0.25, 1]
    assert scale(trace, speed=2).arrival_s.tolist() == [0, 0.5, 2]


def test_a_trace_without_times_gets_poisson_arrivals(data):
    trace = read_trace(data("traces/etalon/sharegpt_8k_filtered_stats_llama2_tokenizer.csv"))
    spread = scale(trace, rate=5)
    gaps = np.diff(spread.arrival_s)
    assert (gaps.mean(), gaps.std() / gaps.mean()) == (
        pytest.approx(0.2, rel=0.02),
        pytest.approx(1, abs=0.03),
    )
    assert (spread.arrival_s == scale(trace, rate=5).arrival_s).all()


def test_what_prompts_share_scales_with_them(data):
    trace = read_trace(data("traces/mooncake/mooncake_trace.slice93.jsonl"))
    doubled = scale(trace, prompt=2)
    assert (doubled.prompt_tokens == 2 * trace.prompt_tokens).all()
    assert (prefix_hits(doubled).tokens == 2 * prefix_hits(trace).tokens).all()
    assert doubled.origin.block_size == 1024
    third = scale(trace, prompt=1 / 3, output=0.01)
    assert third.output_tokens.min() == 1
    assert prefix_hits(third).tokens == pytest.approx(prefix_hits(trace).tokens / 3, abs=1.1)


def test_impossible_scalings():
    trace = inline_trace(TURNS)
    for options in ({"rate": 0}, {"prompt": -1}, {"rate": 1, "speed": 1}):
        with pytest.raises(InputError):
            scale(trace, **options)


def test_merged_traces_keep_their_rows_apart():
    one, two = (
        inline_trace(TURNS),
        inline_trace([{"arrival": 5, "prompt": 100, "output": 1, "session": "s", "priority": 2}]),
    )
    both = merge([one, two])
    assert both.arrival_s.tolist() == [0, 5, 10, 20, 30]
    assert both.names().tolist() == ["0:0", "1:0", "0:1", "0:2", "0:3"]
    assert both.session.tolist() == [0, 1, 0, 0, 0]
    assert both.priority.tolist() == [0, 2, 0, 0, 0]
    assert prefix_hits(both).tokens.tolist() == [0, 0, 110, 160, 210]


def test_parts_of_one_trace_share_when_asked(data):
    trace = read_trace(data("traces/mooncake/synthetic_trace.jsonl"))
    parts = [cut(trace, first=first, count=2000, rebase=False) for first in (0, 2000)]
    whole = prefix_hits(trace).tokens.sum()
    assert prefix_hits(merge(parts, share=True)).tokens.sum() == whole
    assert prefix_hits(merge(parts)).tokens.sum() < whole


def test_a_trace_with_and_one_without_content():
    plain = Trace(np.array([1.0]), np.array([7]), np.array([2]))
    both = merge([inline_trace(TURNS), plain])
    assert both.content.covered_tokens().tolist() == [100, 0, 150, 200, 250]


def test_requests_without_a_name_keep_their_number_through_every_cut() -> None:
    trace = Trace(np.arange(6.0), np.full(6, 3), np.full(6, 1))
    part = trace.take(np.array([1, 3, 4])).take(np.array([1, 2]))
    assert part.request_id.dtype == np.int64, "numbers, not texts: a trace may have millions"
    assert part.names().tolist() == [part.name(0), part.name(1)] == ["3", "4"]
    assert trace.names().tolist() == [str(row) for row in range(6)]
