"""Keys and flags are one list: what a key can say, its flag can say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kvplan.scenario import Leaf, Scenario, load_scenario

# A value for every leaf, as a word on the command line and as the scenario holds it.
WORDS: dict[str, tuple[str | bool, Any]] = {
    "name": ("night", "night"),
    "model": ("qwen3-8b", "qwen3-8b"),
    "gpu": ("{memory_bytes: 1024}", {"memory_bytes": 1024}),
    "parallel.tensor_parallel_size": ("2", 2),
    "parallel.pipeline_parallel_size": ("3", 3),
    "parallel.data_parallel_size": ("4", 4),
    "cache.layout": ("contiguous", "contiguous"),
    "cache.block_size": ("32", 32),
    "cache.kv_cache_dtype": ("fp8", "fp8"),
    "cache.enable_prefix_caching": (False, False),
    "cache.gpu_memory_utilization": ("0.85", 0.85),
    "cache.num_gpu_blocks_override": ("100", 100),
    "cache.kv_cache_memory_bytes": ("8G", 8 * 2**30),
    "cache.swap_space": ("4", 4.0),
    "cache.reservation": ("pow2", "pow2"),
    "cache.placement": ("first-fit", "first-fit"),
    "scheduler.max_model_len": ("32K", 32768),
    "scheduler.max_num_seqs": ("64", 64),
    "scheduler.max_num_batched_tokens": ("2_048", 2048),
    "scheduler.enable_chunked_prefill": (True, True),
    "scheduler.scheduling_policy": ("priority", "priority"),
    "scheduler.long_prefill_token_threshold": ("512", 512),
    "scheduler.watermark": ("1e-2", 0.01),
    "scheduler.scheduler_reserve_full_isl": (False, False),
    "scheduler.async_scheduling": (True, True),
    "scheduler.batching": ("static", "static"),
    "scheduler.preemption": ("recompute", "recompute"),
    "scheduler.num_speculative_tokens": ("3", 3),
    "scheduler.acceptance_rate": ("0.7", 0.7),
    "scheduler.admission": ("max_utilization", "max_utilization"),
    "timing": ("constant=0.02", "constant=0.02"),
    "engine.name": ("sglang", "sglang"),
    "engine.version": ("0.10", "0.10"),
    "engine.memory_overrides": ("measured.yaml", "measured.yaml"),
    "slo": ("ttft_s.p99=2,tpot_s.p95=0.05", ...),
    "workload.file": ("t.csv", "t.csv"),
    "workload.synthetic": ("{rate: 2}", {"rate": 2}),
    "workload.format": ("csv", "csv"),
    "workload.time_unit": ("ms", "ms"),
    "workload.columns": ("arrival=ts,prompt=in", {"arrival": "ts", "prompt": "in"}),
    "workload.on_bad_row": ("skip", "skip"),
    "workload.limit": ("10", 10),
    "workload.output_tokens": ("256", 256),
    "workload.block_size": ("512", 512),
    "workload.tokenizer": ("some-folder", "some-folder"),
    "seed": ("7", 7),
}


def test_every_leaf_is_tried_here() -> None:
    assert [leaf.key for leaf in Scenario.leaves()] == list(WORDS)


@pytest.mark.parametrize("leaf", Scenario.leaves(), ids=lambda leaf: leaf.key)
def test_a_flag_reaches_its_key(leaf: Leaf, tmp_path: Path) -> None:
    word, expected = WORDS[leaf.key]
    source = "requests: [{prompt: 1, output: 1}]" if leaf.section != "workload" else "workload: {file: t.csv}"
    (tmp_path / "s.yaml").write_text(f"model: m\ngpu: g\n{source}\n")
    scenario: Any = load_scenario(tmp_path / "s.yaml", {leaf.key: leaf.parse(word)})
    found = scenario
    for step in leaf.key.split("."):
        found = getattr(found, step)
    if leaf.key == "timing":
        assert found.constant == 0.02
    elif leaf.key == "slo":
        assert (found.ttft_s.p99, found.tpot_s.p95) == (2.0, 0.05)
    elif leaf.key == "workload.file":
        assert scenario.path(found).resolve() == Path(expected).resolve()
    else:
        assert found == expected
        assert type(found) is type(expected)


def test_flags_bear_the_names_of_their_keys_and_no_two_are_the_same() -> None:
    flags = [leaf.flag for leaf in Scenario.leaves()]
    assert len(set(flags)) == len(flags)
    renamed = {
        leaf.key: leaf.flag
        for leaf in Scenario.leaves()
        if leaf.flag != "--" + leaf.key.rpartition(".")[2].replace("_", "-")
    }
    assert renamed == {
        "name": "--run-name",
        "engine.name": "--engine-name",
        "engine.version": "--engine-version",
        "workload.file": "--workload-file",
        "workload.block_size": "--workload-block-size",
    }


def test_only_lists_have_no_flag() -> None:
    reached = {leaf.key.partition(".")[0] for leaf in Scenario.leaves()}
    assert set(Scenario.model_fields) - reached == {"requests", "variants", "sweep"}


def test_every_leaf_says_what_it_is_and_the_schema_names_its_flag() -> None:
    schema = Scenario.json_schema()
    for leaf in Scenario.leaves():
        section, _, name = leaf.key.rpartition(".")
        home = schema["$defs"][section.capitalize()] if section else schema
        assert leaf.description
        assert home["properties"][name]["description"].endswith(f"({leaf.flag})")
