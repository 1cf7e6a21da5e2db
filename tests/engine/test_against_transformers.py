"""Logits and greedy tokens through the paged pool equal transformers' own, whatever the scheduler does to them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from kvplan.core.replica import Workload
from kvplan.core.settings import Settings
from tests.engine.models import KINDS, Pair
from tests.engine.runs import Ran, run, workload, worst_error

TOLERANCE = 1e-4  # relative, fp32
THREE = ("llama", "qwen3", "mistral")
FOUR = (*THREE, "hybrid")

ROOMY = Settings(
    block_size=16, num_gpu_blocks=200, max_model_len=256, max_num_seqs=8, max_num_batched_tokens=512, skip=False
)
MIXED = workload([5, 90, 16, 33, 1, 130], [9, 12, 5, 20, 15, 6])


def greedy(pair: Pair, prompt: torch.Tensor, count: int) -> list[int]:
    """What transformers generates with its own contiguous cache."""
    out = pair.theirs.generate(
        prompt[None],
        attention_mask=torch.ones_like(prompt[None]),
        max_new_tokens=count,
        do_sample=False,
        eos_token_id=None,
        pad_token_id=0,
    )
    answer: list[int] = out[0, len(prompt) :].tolist()
    return answer


def assert_answers_equal(pair: Pair, ran: Ran, work: Workload) -> None:
    for request in range(len(work)):
        count = int(work.output_tokens[request])
        assert ran.answer(request) == greedy(pair, ran.prompt(request), count), f"request {request}"
    assert worst_error(pair, ran) < TOLERANCE


@pytest.mark.parametrize("kind", KINDS)
def test_every_family(pairs: dict[str, Pair], kind: str) -> None:
    ran = run(pairs[kind], ROOMY, MIXED)
    assert_answers_equal(pairs[kind], ran, MIXED)


@pytest.mark.parametrize("block_size", [1, 8, 128])
@pytest.mark.parametrize("kind", THREE)
def test_block_sizes(pairs: dict[str, Pair], kind: str, block_size: int) -> None:
    settings = replace(ROOMY, block_size=block_size, num_gpu_blocks=2 + 3200 // block_size)
    assert_answers_equal(pairs[kind], run(pairs[kind], settings, MIXED), MIXED)


@pytest.mark.parametrize("kind", THREE)
def test_chunked_prefill_mixed_with_decode(pairs: dict[str, Pair], kind: str) -> None:
    ran = run(pairs[kind], replace(ROOMY, max_num_batched_tokens=24), MIXED)
    assert any({"1", "0"} <= line["tokens"].keys() for line in ran.lines), "a chunk beside a decode row"
    assert_answers_equal(pairs[kind], ran, MIXED)


@pytest.mark.parametrize("kind", THREE)
def test_prefix_hits(pairs: dict[str, Pair], kind: str) -> None:
    """Requests 0 and 1 are admitted in one step and share blocks that this very step fills; 2 comes later."""
    shared = workload(
        [70, 75, 100],
        [8, 8, 8],
        segment_ptr=np.array([0, 1, 2, 3]),
        segment_source=np.array([4, 4, 4]),
        segment_start=np.array([0, 0, 0]),
        segment_tokens=np.array([64, 64, 50]),
        output_source=np.array([-1, -1, -1]),
    )
    ran = run(pairs[kind], replace(ROOMY, enable_prefix_caching=True, max_num_seqs=2), shared)
    assert ran.count("hit_tokens") == 64 + 48
    assert_answers_equal(pairs[kind], ran, shared)


@pytest.mark.parametrize("preemption", ["recompute", "swap"])
@pytest.mark.parametrize("kind", THREE)
def test_preemption_and_resumption(pairs: dict[str, Pair], kind: str, preemption: str) -> None:
    work = workload([30, 30, 30, 17], [30, 25, 34, 28])
    tight = 12 if kind == "mistral" else 17  # a window keeps few blocks
    settings = replace(ROOMY, block_size=8, num_gpu_blocks=tight, preemption=preemption, host_blocks=40)
    ran = run(pairs[kind], settings, work)
    assert ran.count("preemptions") > 0
    assert (ran.count("swaps") > 0) == (preemption == "swap")
    assert_answers_equal(pairs[kind], ran, work)


@pytest.mark.parametrize("preemption", [None, "recompute", "swap"])
@pytest.mark.parametrize("kind", THREE)
def test_copy_on_write_of_four_samples(pairs: dict[str, Pair], kind: str, preemption: str | None) -> None:
    """Each sample's answer is the greedy one after its own first token."""
    work = workload([21, 30], [16, 20], sequences=np.array([4, 2], np.int32))
    settings = replace(ROOMY, block_size=8)
    if preemption is not None:
        settings = replace(settings, num_gpu_blocks=15, preemption=preemption, host_blocks=60)
    ran = run(pairs[kind], settings, work)
    assert ran.count("cow_copies") >= 4
    assert (ran.count("preemptions") > 0) == (preemption is not None)
    for request, samples in enumerate((4, 2)):
        answers = [ran.answer(request, sample) for sample in range(samples)]
        first = pairs[kind].logits(ran.prompt(request))[-1].topk(samples).indices.tolist()
        assert [answer[0] for answer in answers] == first
        for answer in answers:
            begun = torch.cat((ran.prompt(request), torch.tensor(answer[:1])))
            assert answer[1:] == greedy(pairs[kind], begun, len(answer) - 1)
    assert worst_error(pairs[kind], ran) < TOLERANCE


@pytest.mark.parametrize("kind", THREE)
def test_beam_search_follows_the_adopted_blocks(pairs: dict[str, Pair], kind: str) -> None:
    work = workload([21, 9], [16, 12], sequences=np.array([4, 3], np.int32), beams=np.array([True, True]))
    ran = run(pairs[kind], replace(ROOMY, block_size=4), work)
    assert ran.count("cow_copies") > 20
    assert worst_error(pairs[kind], ran) < TOLERANCE


@pytest.mark.parametrize("kind", THREE)
def test_rejected_drafts_leave_no_trace(pairs: dict[str, Pair], kind: str) -> None:
    settings = replace(ROOMY, block_size=4, num_speculative_tokens=3, acceptance_rate=0.6, draft_slots=True)
    ran = run(pairs[kind], settings, workload([21, 9, 40], [30, 25, 12]))
    assert 67 / 4 < sum(len(line["tokens"]) for line in ran.lines) < 67, "some drafts taken, some not"
    assert worst_error(pairs[kind], ran) < TOLERANCE


@pytest.mark.parametrize(
    ("reservation", "placement"),
    [("max", "buddy"), ("pow2", "first-fit"), ("oracle", "best-fit"), ("grow", "buddy"), ("grow", "first-fit")],
)
def test_contiguous_layout(pairs: dict[str, Pair], reservation: str, placement: str) -> None:
    work = workload([30, 30, 12, 45], [30, 25, 14, 8], sequences=np.array([1, 1, 3, 1], np.int32))
    settings = replace(
        ROOMY, layout="contiguous", pool_slots=300, reservation=reservation, placement=placement, max_model_len=64
    )
    for kind in ("llama", "mistral"):
        ran = run(pairs[kind], settings, work)
        assert (ran.count("grow_copies") > 0) == (reservation == "grow")
        assert worst_error(pairs[kind], ran) < TOLERANCE


def test_async_scheduling(pairs: dict[str, Pair]) -> None:
    work = workload([30, 30, 30, 17], [30, 25, 34, 28])
    settings = replace(ROOMY, block_size=8, num_gpu_blocks=19, async_scheduling=True)
    ran = run(pairs["qwen3"], settings, work)
    assert ran.count("preemptions") > 0
    assert_answers_equal(pairs["qwen3"], ran, work)


@pytest.mark.parametrize("kind", THREE)
def test_permuting_the_pool_changes_no_bit(pairs: dict[str, Pair], kind: str) -> None:
    work = workload([30, 30, 30, 17], [30, 25, 34, 28], sequences=np.array([1, 2, 1, 1], np.int32))
    settings = replace(ROOMY, block_size=8, num_gpu_blocks=19, preemption="swap", host_blocks=60)
    in_order, *others = (run(pairs[kind], settings, work, shuffled=seed) for seed in (None, 1, 2))
    for other in others:
        assert [line["blocks"] for line in other.lines] != [line["blocks"] for line in in_order.lines]
        assert_answers_same = [ran.watched.seen for ran in (in_order, other)]
        for ours, theirs in zip(*assert_answers_same, strict=True):
            assert ours[:3] == theirs[:3]
            assert torch.equal(ours[4], theirs[4])
    assert worst_error(pairs[kind], others[0]) < TOLERANCE
