"""When a waiting request may start: vLLM's rule, its watermark, and TensorRT-LLM's two. Tiny stories."""

from __future__ import annotations

import numpy as np
import pytest

from kvplan.core.replica import Replica, Workload
from kvplan.core.settings import Settings
from kvplan.errors import InputError
from kvplan.timing import constant


def run(settings: Settings, *requests: tuple[float, int, int]) -> Replica:
    """Requests as (arrival, prompt, output), one second a step."""
    arrival, prompt, output = zip(*requests, strict=True)
    replica = Replica(settings, Workload(np.array(arrival), np.array(prompt), np.array(output)))
    assert replica.run(constant(1.0).compiled())
    return replica


def story(replica: Replica) -> list[tuple[float, float, int]]:
    """(first scheduled, finished, preemptions) of each request."""
    rows = replica.core.requests
    return list(
        zip(
            rows["first_scheduled_s"].tolist(),
            rows["finish_s"].tolist(),
            rows["preemptions"].tolist(),
            strict=True,
        )
    )


# Two requests that end with 4 blocks each, in 6 usable blocks of 4.
TWO = [(0.0, 8, 9), (0.0, 8, 9)]


def test_vllm_admits_what_is_known_and_preempts_the_last_when_it_grows() -> None:
    """Both prompts fit (2 + 2). When both need a fourth block (step 5) the second gives way; at 9 s it computes its 13
    known tokens again."""
    replica = run(Settings(block_size=4, num_gpu_blocks=7), *TWO)
    assert story(replica) == [(0.0, 9.0, 0), (0.0, 13.0, 1)]


def test_guaranteed_no_evict_waits_until_the_end_fits() -> None:
    """4 + 4 blocks at their ends are more than 6: the second starts when the first is gone, and nobody is preempted."""
    replica = run(Settings(block_size=4, num_gpu_blocks=7, admission="guaranteed_no_evict"), *TWO)
    assert story(replica) == [(0.0, 9.0, 0), (9.0, 18.0, 0)]


def test_guaranteed_no_evict_never_preempts_whatever_comes() -> None:
    rng = np.random.default_rng(5)
    requests = [(float(i // 7), int(rng.integers(1, 60)), int(rng.integers(1, 60))) for i in range(300)]
    settings = Settings(block_size=4, num_gpu_blocks=40, admission="guaranteed_no_evict", max_model_len=128)
    replica = run(settings, *requests)
    s = replica.core.scalars[0]
    assert (int(s["preemptions"]), int(s["finished"])) == (0, 300)


def test_max_utilization_admits_by_the_next_chunk_alone() -> None:
    """A prompt of 24 tokens (6 blocks) beside one of 8: with a budget of 12 its first chunk (1 block) is let in at
    once, though the whole does not fit; vLLM's rule makes it wait for the first to end."""
    requests = [(0.0, 8, 6), (0.0, 24, 1)]
    settings = {"block_size": 4, "num_gpu_blocks": 8, "max_num_batched_tokens": 12}
    assert run(Settings(**settings), *requests).core.requests["first_scheduled_s"].tolist() == [0.0, 6.0]
    eager = run(Settings(**settings, admission="max_utilization"), *requests)
    assert eager.core.requests["first_scheduled_s"].tolist() == [0.0, 0.0]


def test_a_watermark_keeps_blocks_free_while_anything_runs() -> None:
    """8 usable blocks, 2 of them kept free: of two prompts of 4 blocks the second waits for the first."""
    requests = [(0.0, 16, 2), (0.0, 16, 2)]
    settings = {"block_size": 4, "num_gpu_blocks": 9}
    assert run(Settings(**settings), *requests).core.requests["first_scheduled_s"].tolist() == [0.0, 0.0]
    kept = run(Settings(**settings, watermark=0.25), *requests)
    assert kept.core.requests["first_scheduled_s"].tolist() == [0.0, 2.0]


@pytest.mark.parametrize(
    ("settings", "field"),
    [
        ({"layout": "contiguous", "pool_slots": 100, "enable_prefix_caching": True}, "enable_prefix_caching"),
        ({"num_gpu_blocks": 9, "preemption": "swap", "async_scheduling": True}, "preemption"),
        ({"num_gpu_blocks": 9, "batching": "static", "enable_prefix_caching": True}, "batching"),
        (
            {"num_gpu_blocks": 9, "enable_chunked_prefill": False, "max_num_batched_tokens": 100},
            "max_num_batched_tokens",
        ),
        ({"num_gpu_blocks": 1}, "num_gpu_blocks"),
        ({"num_gpu_blocks": 9, "placement": "worst-fit"}, "placement"),
    ],
)
def test_settings_that_contradict_one_another_are_refused(settings: dict[str, object], field: str) -> None:
    with pytest.raises(InputError) as error:
        Settings(**settings)  # type: ignore[arg-type]
    assert error.value.field == field
