"""The roofline against arithmetic by hand and against served systems."""

from __future__ import annotations

import numpy as np
import pytest

from kvplan.catalog import load_gpu, load_model
from kvplan.errors import InputError
from kvplan.timing import roofline
from kvplan.timing.work import Experts, layer_work
from tests.timing.loads import decodes, seconds

BARE = {
    "weight_read_efficiency": 1.0,
    "linear_flops_efficiency": 1.0,
    "kv_read_efficiency": 1.0,
    "layer_s": 0.0,
    "host_step_s": 0.0,
    "host_row_s": 0.0,
    "all_reduce_s": 0.0,
    "activation_read_efficiency": 1e9,
}
H100 = load_gpu("h100-sxm")


def bare(model: str, **more: int) -> object:
    return roofline(load_model(model), H100, coefficients=BARE, **more)


def test_one_decode_row_reads_every_weight_once_and_its_context() -> None:
    """Llama-3.1-8B: 8.03 G parameters but for the embedding table, in bf16, and 128 KiB a token of context."""
    weights = 2 * (8_030_261_248 - 128_256 * 4096)
    expected = (weights + 1000 * 131_072) / 3.35e12
    assert seconds(bare("llama-3.1-8b"), decodes(1, 1000)) == pytest.approx(expected, rel=1e-3)


def test_a_long_prompt_is_bound_by_arithmetic() -> None:
    """2 FLOPs a parameter and token, and 4 · 4096 FLOPs a layer and causal pair at 45% of the peak."""
    flops = 2 * (8_030_261_248 - 2 * 128_256 * 4096) * 8192
    pairs = 8192 * 8193 / 2
    head = 2 * 128_256 * 4096 / 3.35e12
    expected = flops / 989e12 + 32 * pairs * 4 * 4096 / (989e12 * 0.45) + head
    assert seconds(bare("llama-3.1-8b"), [(0, 8192)]) == pytest.approx(expected, rel=1e-3)


def test_two_ranks_read_half_each_and_pay_for_joining() -> None:
    one = seconds(bare("llama-3.1-8b"), decodes(1, 1000))
    two = seconds(bare("llama-3.1-8b", tensor_parallel_size=2), decodes(1, 1000))
    hidden = 4096 * 2 / (H100.nvlink_bytes_per_s * 0.70)  # a ring of two moves the whole state once
    assert two == pytest.approx(one / 2 + 2 * 32 * hidden, rel=1e-3)


def test_kv_heads_are_replicated_not_divided_when_ranks_exceed_them() -> None:
    model, eight, sixteen = (
        load_model("llama-3.1-70b"),
        *(bare("llama-3.1-70b", tensor_parallel_size=tp).groups[0].read_s for tp in (8, 16)),
    )
    assert model.num_key_value_heads == 8
    assert eight == sixteen


def test_only_the_experts_that_tokens_choose_are_read() -> None:
    model = load_model("qwen3-30b-a3b")
    experts = next(part for part in layer_work(model, model.layers[0], 1) if isinstance(part, Experts))
    touched = experts.touched(np.array([1.0, 64.0, 1e6]))
    assert touched == pytest.approx([8.0, 128 * (1 - (1 - 8 / 128) ** 64), 128.0])


def test_mla_reads_the_latent_alone() -> None:
    """DeepSeek-V3: 61 layers of 576 elements a token; 128 heads make decode attention arithmetic-bound at TP 1."""
    group = bare("deepseek-v3").groups[0]
    assert group.read_s == pytest.approx(61 * 576 * 2 / 3.35e12)
    assert group.decode_pair_s > group.read_s


def test_sliding_layers_form_a_group_of_their_own() -> None:
    groups = {group.window: group.read_s for group in bare("gpt-oss-20b").groups}
    assert set(groups) == {0, 128}
    assert groups[0] == pytest.approx(12 * 2 * 8 * 64 * 2 / 3.35e12)


def test_an_unknown_coefficient_is_refused_with_the_known_ones() -> None:
    with pytest.raises(InputError, match=r"unknown coefficient.*\n.*weight_read_efficiency"):
        roofline(load_model("llama-3.1-8b"), H100, coefficients={"speed": 2.0})


def test_every_number_is_named_with_its_source() -> None:
    terms = {
        term.name: term for term in roofline(load_model("llama-3.1-8b"), H100, coefficients={"host_step_s": 2e-3}).terms
    }
    assert (terms["host_step_s"].value, terms["host_step_s"].source) == (2e-3, "given")
    assert all(term.source and term.unit for term in terms.values())


def test_the_host_is_hidden_where_scheduling_is_asynchronous_unless_it_takes_longer() -> None:
    model, host = load_model("llama-3.1-8b"), {**BARE, "host_step_s": 1e-3}
    device = seconds(bare("llama-3.1-8b"), decodes(8, 100))
    waited, hidden = (
        seconds(roofline(model, H100, async_scheduling=overlapped, coefficients=host), decodes(8, 100))
        for overlapped in (False, True)
    )
    slow = roofline(model, H100, async_scheduling=True, coefficients={**host, "host_step_s": 1.0})
    assert [waited, hidden, seconds(slow, decodes(8, 100))] == pytest.approx([device + 1e-3, device, 1.0])


@pytest.mark.parametrize(
    ("gpu", "tp", "concurrency", "context", "observed_ms"),
    [("h100-sxm", 2, 16, 1536, 19.7), ("h200-sxm", 1, 16, 1536, 24.7), ("h200-sxm", 2, 4, 1536, 13.9)],
)
def test_llama_70b_fp8_decodes_as_fast_as_it_was_served(
    gpu: str, tp: int, concurrency: int, context: int, observed_ms: float
) -> None:
    """vllm_ttft_tpot.csv, 1,024 tokens in and out: few prompts interrupt, so a decode step is nearly the TPOT."""
    from dataclasses import replace

    from kvplan.catalog import Quantization

    model = replace(load_model("llama-3.1-70b"), quantization=Quantization("fp8", 8))
    times = roofline(model, load_gpu(gpu), tensor_parallel_size=tp)
    assert 1e3 * seconds(times, decodes(concurrency, context)) == pytest.approx(observed_ms, rel=0.15)
