"""What a scenario becomes: its runs, its mapping, its paths."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kvplan.errors import InputError
from kvplan.scenario import Scenario, load_scenario

WHOLE = """\
model: {num_hidden_layers: 2, num_key_value_heads: 1,
        kv_groups: [{attention: full, layers: 1}, {attention: sliding_window, window: 64, layers: 1}]}
gpu: h100-sxm
parallel:  {tensor_parallel_size: 1, pipeline_parallel_size: 1, data_parallel_size: 1}
cache:     {layout: paged, block_size: 16, kv_cache_dtype: auto, enable_prefix_caching: true,
            gpu_memory_utilization: 0.92,
            num_gpu_blocks_override: null, kv_cache_memory_bytes: null, swap_space: 0,
            reservation: max, placement: buddy}
scheduler: {max_model_len: 8192, max_num_seqs: 256, max_num_batched_tokens: 8192,
            enable_chunked_prefill: true, scheduling_policy: fcfs,
            long_prefill_token_threshold: 0, watermark: 0.0, scheduler_reserve_full_isl: true,
            async_scheduling: false,
            batching: continuous, preemption: recompute, num_speculative_tokens: 0, acceptance_rate: 0.0}
timing: roofline
engine: {name: vllm, version: "0.33"}
slo: {ttft_s: {p99: 2.0}, tpot_s: {p95: 0.05}}
requests:
  - {id: a, arrival: 0.0, prompt: 512, output: 128, priority: 0,
     prefix: {id: system, tokens: 256},
     session: s1, n: 1, beam_width: 0}
variants: [{name: contiguous, cache: {layout: contiguous}}]
sweep: {cache.block_size: [1, 8, 16, 32, 64, 128]}
"""
"""The page of the design that settles the keys, whole."""


def load(text: str, tmp_path: Path, **overrides: object) -> Scenario:
    (tmp_path / "s.yaml").write_text(text)
    return load_scenario(tmp_path / "s.yaml", {key.replace("__", "."): v for key, v in overrides.items()})


def test_the_whole_schema_of_the_design_is_accepted(tmp_path: Path) -> None:
    scenario = load(WHOLE, tmp_path)
    assert scenario.slo.ttft_s is not None
    assert scenario.slo.ttft_s.p99 == 2.0
    assert scenario.requests is not None
    assert scenario.requests[0].prefix is not None
    assert scenario.requests[0].prefix.tokens == 256
    assert scenario.sweep == {"cache.block_size": [1, 8, 16, 32, 64, 128]}


def test_a_mapping_is_a_fixed_point(tmp_path: Path) -> None:
    scenario = load(WHOLE + "name: paged\nseed: 7\n", tmp_path)
    mapping = json.loads(json.dumps(scenario.to_mapping()))
    again = Scenario.build(mapping)
    assert again.to_mapping() == mapping
    assert again.model_dump() == scenario.model_dump()
    assert mapping["scheduler"]["batching"] == "continuous"
    assert "workload" not in mapping


@pytest.mark.parametrize(
    "more",
    [
        "workload: {file: t.csv, columns: {arrival: ts}, time_unit: ms}",
        "workload: {synthetic: {rate: 3}}",
        "timing: {constant: 0.5}",
        "timing: {roofline: {hbm_efficiency: 0.8}}",
        "timing: {profile: p.json}",
        "cache: {layout: contiguous, reservation: pow2}",
        "variants: [{name: a, timing: {constant: 1}}, {name: b, model: {layers: 3}}]",
    ],
)
def test_every_form_survives_the_way_out_and_back(more: str, tmp_path: Path) -> None:
    scenario = load(f"model: m\ngpu: g\n{more}\n", tmp_path)
    mapping = json.loads(json.dumps(scenario.to_mapping()))
    assert Scenario.build(mapping).model_dump() == scenario.model_dump()


def test_variants_replace_leaf_by_leaf_and_alternatives_whole(tmp_path: Path) -> None:
    scenario = load(
        """\
model: {num_hidden_layers: 2, head_dim: 64}
gpu: g
name: paged
cache: {block_size: 32}
timing: {profile: p.json}
requests: [{prompt: 1, output: 1}]
variants:
  - {name: small, cache: {layout: contiguous}, model: {head_dim: 128}}
  - {name: fixed, timing: {constant: 0.1}, scheduler: {max_num_seqs: 4}}
""",
        tmp_path,
        cache__swap_space=2.0,
    )
    (base_name, base), (small_name, small), (fixed_name, fixed) = scenario.runs()
    assert (base_name, small_name, fixed_name) == ("paged", "small", "fixed")
    assert (small.cache.layout, small.cache.block_size, small.cache.swap_space) == ("contiguous", 32, 2.0)
    assert small.model == {"num_hidden_layers": 2, "head_dim": 128}
    assert (fixed.timing.profile, fixed.timing.constant) == (None, 0.1)
    assert (fixed.scheduler.max_num_seqs, base.scheduler.max_num_seqs) == (4, None)
    assert all(run.requests == scenario.requests and not run.variants for _, run in scenario.runs())
    assert scenario.cache.layout == "paged"


def test_a_later_fault_of_a_variant_points_at_the_line_that_said_it(tmp_path: Path) -> None:
    text = "model: m\ngpu: g\nrequests: [{prompt: 1, output: 1}]\nvariants:\n  - {name: a, gpu: h1000}\n"
    (_, base), (_, variant) = load(text, tmp_path).runs()
    assert variant.error("gpu", "unknown", value=variant.gpu).line == 5
    assert variant.error("model", "unknown").line == 1  # said by the base
    assert base.error("gpu", "unknown").line == 2


def test_paths_of_a_file_are_relative_to_it_and_those_of_flags_to_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, here = tmp_path / "deep", tmp_path / "here"
    folder.mkdir()
    here.mkdir()
    (folder / "config.json").write_text("{}")
    (here / "other.json").write_text("{}")
    monkeypatch.chdir(here)
    text = "model: config.json\ngpu: g\nworkload: {file: t.csv}\ntiming: {profile: p.json}\n"
    (folder / "s.yaml").write_text(text)

    scenario = load_scenario(folder / "s.yaml")
    assert scenario.model_source == folder / "config.json"
    assert scenario.path("t.csv") == folder / "t.csv"
    assert scenario.profile_path == folder / "p.json"
    assert scenario.to_mapping(relative_to=here)["model"] == "../deep/config.json"
    assert scenario.to_mapping(relative_to=here)["workload"] == {"file": "../deep/t.csv"}

    flagged = load_scenario(folder / "s.yaml", {"model": "other.json", "timing": {"profile": "q.json"}})
    assert isinstance(flagged.model_source, Path)
    assert flagged.model_source.resolve() == here / "other.json"
    assert flagged.profile_path is not None
    assert flagged.profile_path.resolve() == here / "q.json"


def test_a_name_of_the_catalogue_with_a_slash_is_no_path(tmp_path: Path) -> None:
    scenario = load("model: meta-llama/Llama-3.1-8B\ngpu: g\n", tmp_path)
    assert scenario.model_source == "meta-llama/Llama-3.1-8B"
    assert load("model: nowhere.json\ngpu: g\n", tmp_path).model_source == tmp_path / "nowhere.json"


def test_a_summary_can_be_fed_back(tmp_path: Path) -> None:
    scenario = load("model: m\ngpu: g\nrequests: [{prompt: 1, output: 1}]\ncache: {block_size: 8}\n", tmp_path)
    summary = {"schema_version": 1, "kvplan": "0.1.0", "scenario": scenario.to_mapping(), "runs": []}
    (tmp_path / "summary.json").write_text(json.dumps(summary, indent=2))
    again = load_scenario(tmp_path / "summary.json")
    assert again.model_dump() == scenario.model_dump()
    summary["scenario"]["cache"]["block_size"] = 0  # type: ignore[index]
    (tmp_path / "summary.json").write_text(json.dumps(summary, indent=2))
    with pytest.raises(InputError) as caught:
        load_scenario(tmp_path / "summary.json")
    assert caught.value.field == "cache.block_size"
    lines = (tmp_path / "summary.json").read_text().splitlines()
    assert '"block_size": 0' in lines[(caught.value.line or 0) - 1]


@pytest.mark.parametrize("name", ["t.csv", "t.jsonl", "t.json", "t.parquet", "t.csv.gz", "t.jsonl.zst"])
def test_a_raw_trace_needs_a_model_and_a_gpu(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text("[]")
    with pytest.raises(InputError, match="add --model"):
        load_scenario(tmp_path / name)
    with pytest.raises(InputError, match="add --gpu"):
        load_scenario(tmp_path / name, {"model": "m"})
    scenario = load_scenario(tmp_path / name, {"model": "m", "gpu": "g", "workload.time_unit": "ms"})
    assert scenario.workload is not None
    assert scenario.workload.file == str(tmp_path / name)
    assert scenario.workload.time_unit == "ms"


def test_json_is_told_apart_by_what_it_holds(tmp_path: Path) -> None:
    scenario = {"model": "m", "gpu": "g", "requests": [{"prompt": 1, "output": 1}]}
    (tmp_path / "s.json").write_text(json.dumps(scenario))
    assert load_scenario(tmp_path / "s.json").requests
    (tmp_path / "bench.json").write_text(json.dumps({"model_id": "m", "requests": [], "backend": "vllm"}))
    with pytest.raises(InputError, match="does not say which model"):
        load_scenario(tmp_path / "bench.json")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            b'{"model": "llama-3.1-8b", "gpu": "h100-sxm",\n "requests": [{"prompt": 5},]}',
            ":2:29: is not JSON: Expecting",
        ),
        (b'{"model": "llama-3.1-8b", "gpu": "h100-sxm",\n "name": "\xff"}', ":2:11: is not UTF-8 text"),
        (b'{"model": "llama-3.1-8b", "gpu": "h100-sxm"} {}', ":1:46: is not JSON: Extra data"),
    ],
)
def test_a_broken_json_scenario_is_not_taken_for_a_trace(tmp_path: Path, text: bytes, said: str) -> None:
    path = tmp_path / "scenario.json"
    path.write_bytes(text)
    with pytest.raises(InputError, match=said):
        load_scenario(path)


def test_a_trace_given_by_flag_takes_the_place_of_the_files_requests(tmp_path: Path) -> None:
    text = "model: m\ngpu: g\nrequests: [{prompt: 1, output: 1}]\n"
    scenario = load(text, tmp_path, workload__file=str(tmp_path / "t.csv"), workload__limit=3)
    assert scenario.requests is None
    assert scenario.workload is not None
    assert (scenario.workload.file, scenario.workload.limit) == (str(tmp_path / "t.csv"), 3)


def test_null_on_the_command_line_gives_the_default_back(tmp_path: Path) -> None:
    text = "model: m\ngpu: g\ncache: {num_gpu_blocks_override: 100}\n"
    assert load(text, tmp_path, cache__num_gpu_blocks_override=None).cache.num_gpu_blocks_override is None


@pytest.mark.parametrize(("written", "tokens"), [("32K", 32768), ("25.6k", 25600), ("1M", 1048576), ("8192", 8192)])
def test_lengths_are_written_as_vllm_reads_them(written: str, tokens: int, tmp_path: Path) -> None:
    text = f"model: m\ngpu: g\nscheduler: {{max_model_len: {written}}}\n"
    assert load(text, tmp_path).scheduler.max_model_len == tokens
