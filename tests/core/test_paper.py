"""The PagedAttention paper's own numbers (Kwon et al., SOSP 2023) from the lengths of its figure 11.

Findings, each asserted below:

* Figure 13's batches and figure 2's memory come out of a *saturated* queue with steps of equal length: 7.00 / 9.7 /
  13.6 for the paper's 7.00 / 9.81 / 13.62. Its lengths are those with prompt and output >= 4 and a sum <= 2048: then
  the mean prompt is 160 (figure 11 prints 161.31). The released benchmark's further filter, prompt <= 1024, gives
  122 tokens and an oracle batch about 5% too large. The reservation holds all of prompt + output (the last token
  included), rounded up to a buddy block; what rounding adds is external, as is free memory that is in the wrong place.
* Figure 15 counts blocks over time: sharing saves shared / (held + shared), held being whole blocks.
* Beams: one goes on from itself with probability 0.9 a step (`Settings.beam_survival`), else from a survivor.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from kvplan.core.replica import Replica, Workload
from kvplan.core.settings import Settings
from kvplan.timing import constant
from tests.conftest import SHARED_DATA

SLOTS = 15_728
"""Token slots of OPT-13B on an A100 40 GB: the paper's table 1 says 15.7K."""

Lengths = tuple[NDArray[np.int64], NDArray[np.int64]]


def paper() -> dict[str, Any]:
    path = SHARED_DATA / "reference/paged_attention_paper.json"
    if not path.exists():
        pytest.skip("the reference data folder ../shared/data is not beside this repository")
    found: dict[str, Any] = json.loads(path.read_text())
    return found


def lengths(name: str, requests: int, *, longest_prompt: int = 2048) -> Lengths:
    """Prompt and output lengths drawn from figure 11 (integers within a bin alike), within the paper's filter."""
    figure = json.loads((SHARED_DATA / "reference/paper_fig11.json").read_text())
    rng = np.random.default_rng(0)
    prompt, output = (_draw(figure[f"{name}_{side}"], 2 * requests, rng) for side in ("input", "output"))
    fits = (prompt >= 4) & (output >= 4) & (prompt <= longest_prompt) & (prompt + output <= 2048)
    return prompt[fits][:requests], output[fits][:requests]


def _draw(histogram: dict[str, Any], count: int, rng: np.random.Generator) -> NDArray[np.int64]:
    values = np.arange(histogram["lo"], histogram["hi"] + 1)
    width = (histogram["hi"] - histogram["lo"]) / histogram["bins"]
    place = np.minimum(((values - histogram["lo"]) / width).astype(int), histogram["bins"] - 1)
    chance = np.array(histogram["counts"])[place] / np.bincount(place)[place]
    return rng.choice(values, count, p=chance / chance.sum())


def saturated(chosen: Settings, workload: Workload) -> tuple[float, dict[str, float]]:
    """Mean batch and percent of the pool while anybody waits, all steps of equal length."""
    replica = Replica(chosen, workload)
    replica.run(constant(1.0).compiled())
    timeline = replica.record.timeline
    timeline = timeline[: np.flatnonzero(timeline["waiting_max"] > 0)[-1]]
    busy = timeline["busy_s"].sum()
    share = {
        part: float(100 * timeline[part].sum() / busy / chosen.total_slots)
        for part in ("used", "reserved", "internal", "external", "free")
    }
    return float(timeline["running"].sum() / busy), share


def orca(reservation: str, drawn: Lengths) -> tuple[float, dict[str, float]]:
    chosen = Settings(
        layout="contiguous",
        reservation=reservation,
        pool_slots=SLOTS,
        max_model_len=2048,
        max_num_batched_tokens=1 << 20,
    )
    return saturated(chosen, Workload(np.zeros(len(drawn[0])), *drawn))


@pytest.mark.parametrize(("column", "reservation"), [(0, "max"), (1, "pow2"), (2, "oracle")])
@pytest.mark.parametrize("name", ["sharegpt", "alpaca"])
def test_figure_13_mean_batch_of_orca(name: str, column: int, reservation: str) -> None:
    """Within 5% of the paper: ShareGPT 7.00, 9.81, 13.62; Alpaca 7.00, 43.24, 72.75."""
    figure = paper()["fig13_mean_batched_requests"]
    expected = figure["13b_sharegpt_2_req_s" if name == "sharegpt" else "13b_alpaca_30_req_s"][column]
    batch, _ = orca(reservation, lengths(name, 6000))
    assert batch == pytest.approx(expected, rel=0.05)


@pytest.mark.parametrize("reservation", ["max", "pow2", "oracle"])
def test_figure_2_memory_of_orca(reservation: str) -> None:
    """Token states, reservation, internal, external and other: within 5 points of the paper."""
    _, share = orca(reservation, lengths("sharegpt", 6000))
    found = [share["used"], share["reserved"], share["internal"], share["external"] + share["free"]]
    assert found == pytest.approx(paper()["fig2_percent_of_kv_memory"][f"orca_{reservation}"], abs=5)


def test_figure_2_memory_of_vllm() -> None:
    """Block 16, all of the known sequence or nothing, newest preempted first: the paper's 96.3% within a point."""
    drawn = lengths("sharegpt", 4000)
    chosen = Settings(num_gpu_blocks=SLOTS // 16 + 1, max_model_len=2048, max_num_batched_tokens=1 << 20)
    _, share = saturated(chosen, Workload(np.zeros(len(drawn[0])), *drawn))
    found = [share["used"], share["reserved"], share["internal"], share["external"] + share["free"]]
    assert found == pytest.approx(paper()["fig2_percent_of_kv_memory"]["vllm"], abs=1.1)


def test_figure_11_says_which_lengths_were_run(shared_data: Path) -> None:
    """With prompt <= 1024 the mean prompt is 122, without it 160; the figure prints 161.31."""
    printed = paper()["fig11_mean_lengths"]["sharegpt"]["input"]
    assert lengths("sharegpt", 50_000)[0].mean() == pytest.approx(printed, rel=0.01)
    assert lengths("sharegpt", 50_000, longest_prompt=1024)[0].mean() == pytest.approx(122, abs=2)


def saved_percent(sequences: int, drawn: Lengths, *, beams: bool, survival: float = 0.9) -> float:
    """Percent of blocks that sharing saves, over the whole run, in a pool where nothing is preempted."""
    count = len(drawn[0])
    chosen = Settings(num_gpu_blocks=40_000, max_model_len=2048, max_num_batched_tokens=1 << 20, beam_survival=survival)
    several = {"sequences": np.full(count, sequences, np.int32), "beams": np.full(count, beams)}
    replica = Replica(chosen, Workload(np.zeros(count), *drawn, **several))
    replica.run(constant(1.0).compiled())
    assert replica.core.scalars["preemptions"][0] == 0
    timeline = replica.record.timeline
    held, shared = (
        sum(float(timeline[part].sum()) for part in parts) for parts in (("used", "reserved", "internal"), ("shared",))
    )
    return 100 * shared / (held + shared)


def test_figure_15_blocks_saved_by_parallel_sampling() -> None:
    """Alpaca, n = 2, 4, 6: 6.09, 8.53, 9.79% within a point."""
    drawn = lengths("alpaca", 5000)
    found = [saved_percent(n, drawn, beams=False) for n in (2, 4, 6)]
    assert found == pytest.approx(paper()["fig15_percent_blocks_saved_by_sharing"]["alpaca_parallel_2_4_6"], abs=1.0)


@pytest.mark.slow
def test_figure_15_blocks_saved_by_beam_search() -> None:
    """Alpaca, widths 2, 4, 6: 37.56, 53.13, 55.16% within 5 points by the stated survival rule (found: within 2)."""
    drawn = lengths("alpaca", 1500)
    found = [saved_percent(n, drawn, beams=True) for n in (2, 4, 6)]
    expected = paper()["fig15_percent_blocks_saved_by_sharing"]["alpaca_beam_2_4_6"]
    assert found == pytest.approx(expected, abs=2.5)


@pytest.mark.slow
def test_figure_15_ranges_of_sharegpt() -> None:
    """The paper gives ranges over 2, 4, 6: parallel 16.2 to 30.5%, beams 44.3 to 66.3%.

    Within 5 points, save for width 6: over ShareGPT's long outputs the rule's beams go on meeting at the rate that
    Alpaca's short ones show, and share 77%. A survival of 0.98 would give 43.8 to 67.9% here and 26 to 38% there.
    """
    drawn = lengths("sharegpt", 300)
    parallel = [saved_percent(n, drawn, beams=False) for n in (2, 6)]
    beams = [saved_percent(n, drawn, beams=True) for n in (2, 6)]
    patient = saved_percent(6, drawn, beams=True, survival=0.98)
    figure = paper()["fig15_percent_blocks_saved_by_sharing"]
    assert parallel == pytest.approx(figure["sharegpt_parallel_range"], abs=5)
    assert [beams[0], patient] == pytest.approx(figure["sharegpt_beam_range"], abs=5)
    assert beams[1] == pytest.approx(77, abs=2)
