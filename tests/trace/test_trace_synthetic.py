"""Generators: what they draw follows their description, and nothing but the seed decides the rest."""

from __future__ import annotations

import numpy as np
import pytest

from kvplan.errors import InputError
from kvplan.trace import read_trace, synthesize
from kvplan.trace.distribution import distribution
from kvplan.trace.fit import closeness, fit
from kvplan.trace.sharing import prefix_hits

BASE = {"requests": 2000, "arrivals": 4.0, "prompt": {"quantiles": {0: 10, 0.5: 100, 1: 1000}}, "output": 20}


def test_the_same_seed_gives_the_same_trace_and_another_one_another():
    first, again, other = synthesize(BASE), synthesize(BASE, 0), synthesize(BASE, 1)
    assert first.prompt_tokens.tobytes() == again.prompt_tokens.tobytes()
    assert first.arrival_s.tobytes() == again.arrival_s.tobytes()
    assert first.arrival_s.tobytes() != other.arrival_s.tobytes()


def test_another_rate_does_not_change_the_lengths():
    assert (synthesize(BASE | {"arrivals": 9.0}).prompt_tokens == synthesize(BASE).prompt_tokens).all()


def test_lengths_follow_their_quantiles_and_the_rate_is_met():
    trace = synthesize(BASE)
    assert np.percentile(trace.prompt_tokens, [0, 50, 75]) == pytest.approx([10, 100, 550], abs=1)
    assert set(trace.output_tokens.tolist()) == {20}
    assert (len(trace) - 1) / trace.span_s == pytest.approx(4.0, rel=1e-6)


@pytest.mark.parametrize("cv", [0, 0.5, 1, 3])
def test_gaps_have_the_burstiness_asked_for(cv):
    gaps = np.diff(synthesize(BASE | {"requests": 40_000, "arrivals": {"rate": 4, "cv": cv}}).arrival_s)
    assert gaps.std() / gaps.mean() == pytest.approx(cv, rel=0.05, abs=1e-9)


def test_a_profile_moves_arrivals_into_its_windows():
    trace = synthesize(BASE | {"requests": 40_000, "arrivals": {"rate": 10, "profile": [0, 1, 0, 3]}})
    counts = np.histogram(trace.arrival_s, bins=4, range=(0, 4000))[0]
    assert counts[[0, 2]].tolist() == [0, 0]
    assert counts[3] / counts[1] == pytest.approx(3, rel=0.1)


def test_ticks_round_arrivals_down():
    assert set((synthesize(BASE | {"arrivals": {"rate": 10, "tick_s": 3}}).arrival_s % 3).tolist()) == {0.0}


def test_a_joint_matrix_ties_outputs_to_prompts():
    tied = synthesize(BASE | {"output": BASE["prompt"], "joint": [[1, 0], [0, 1]]})
    short = tied.prompt_tokens <= 100
    assert (tied.output_tokens[short] <= 100).mean() > 0.99
    assert (tied.output_tokens[~short] >= 100).mean() > 0.99


def test_max_total_deals_outputs_anew():
    trace = synthesize(BASE | {"output": BASE["prompt"], "max_total": 1100})
    assert (trace.prompt_tokens + trace.output_tokens).max() <= 1100
    assert trace.output_tokens.mean() == pytest.approx(distribution(BASE["prompt"], "").mean, rel=0.05)


def test_prefixes_are_shared_by_their_share_of_requests():
    trace = synthesize(
        BASE | {"prompt": 500, "prefixes": [{"tokens": 200, "share": 0.5}, {"tokens": 300, "share": 0.25}]}
    )
    hits = prefix_hits(trace).tokens
    assert [(hits == count).mean() for count in (200, 300, 0)] == pytest.approx([0.5, 0.25, 0.25], abs=0.03)


def test_reuse_gives_the_hit_rate_asked_for():
    reuse = {"probability": 0.6, "fraction": 0.5, "lag_s": {"exponential": {"mean": 20}}}
    trace = synthesize(BASE | {"prompt": 400, "reuse": reuse})
    assert prefix_hits(trace).tokens.sum() / trace.prompt_tokens.sum() == pytest.approx(0.3, abs=0.01)


def test_turns_of_a_session_hold_their_history():
    trace = synthesize(BASE | {"prompt": 50, "sessions": {"turns": 4, "think_s": 5}})
    first = np.flatnonzero(trace.session == 0)
    assert trace.prompt_tokens[first].tolist() == [50, 120, 190, 260]
    assert np.diff(trace.arrival_s[first]).tolist() == pytest.approx([5, 5, 5])
    assert prefix_hits(trace).tokens[first].tolist() == [0, 70, 140, 210]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"requests": 0}, "at least 1"),
        ({"arrivals": 0}, "more than 0"),
        ({"arrivals": {"rate": 1, "cw": 1}}, "cw: is not a key"),
        ({"prompt": {"quantiles": {0: 1, 0.5: 2}}}, "ranks 0 and 1"),
        ({"prompt": {"quantiles": {0: 5, 1: 2}}}, "climb"),
        ({"prompt": {"normal": {}}}, "no kind of distribution"),
        ({"prompt": {"histogram": {"lo": 1, "hi": 5, "counts": [0, 0]}}}, "not all 0"),
        ({"promt": 5}, "promt: is not a key"),
        ({"joint": [[1, 2]]}, "square matrix"),
        ({"max_total": 500}, "longest prompt"),
        ({"prefixes": [{"tokens": 5, "share": 0.6}] * 2}, "at most 1"),
        ({"reuse": {"probability": 2, "fraction": 1, "lag_s": 1}}, r"within 0\.\.1"),
        ({"sessions": {"turns": 2}}, "turns, think_s"),
    ],
)
def test_impossible_descriptions(change, message):
    with pytest.raises(InputError, match=message):
        synthesize(BASE | change)


# -- fitted to real traces --------------------------------------------------------------------------------------

TOLERANCE = {
    "prompt mean": 0.02, "prompt p50": 0.02, "prompt p90": 0.02, "prompt p99": 0.02,
    "output mean": 0.03, "output p50": 0.02, "output p90": 0.03, "output p99": 0.03,
    "rate (1/s)": 0.01, "cv of gaps": 0.1, "prefix hit rate (tokens)": 0.05,
}  # fmt: skip


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize(
    "name",
    [
        "azure-2023/AzureLLMInferenceTrace_conv.csv",
        "azure-2023/AzureLLMInferenceTrace_code.csv",
        "mooncake/conversation_trace.jsonl",
        "mooncake/synthetic_trace.jsonl",
    ],
)
def test_a_fitted_generator_lies_close_to_its_trace(data, name, seed):
    trace = read_trace(data(f"traces/{name}"))
    for row in closeness(trace, synthesize(fit(trace), seed)):
        if row.figure in TOLERANCE:
            assert abs(row.relative) <= TOLERANCE[row.figure], row
        if row.figure.startswith("prompt-output"):
            assert abs(row.drawn - row.real) < 0.05


def test_a_fit_tells_no_single_request(data):
    trace = read_trace(data("traces/mooncake/conversation_trace.jsonl"))
    numbers = str(fit(trace)).count(",")
    assert numbers < len(trace) / 10


def test_sessions_are_fitted_as_sessions(data):
    trace = read_trace(data("traces/tracelab/multi_session_large.csv"))
    spec = fit(trace)
    assert "reuse" not in spec
    drawn = synthesize(spec)
    rate = [prefix_hits(each).tokens.sum() / each.prompt_tokens.sum() for each in (trace, drawn)]
    assert rate[1] == pytest.approx(rate[0], abs=0.05)
