"""One row a mistake: what the person reads, to the line and column."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvplan.errors import InputError
from kvplan.scenario import Scenario, load_scenario

GOOD = """\
model: llama-3.1-8b
gpu: h100-sxm
requests:
  - {arrival: 0.0, prompt: 512, output: 128}
"""


def refusal(text: str, tmp_path: Path, overrides: dict[str, object] | None = None) -> InputError:
    path = tmp_path / "s.yaml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(InputError) as caught:
        load_scenario(path, overrides).runs()
    return caught.value


MISTAKES = [
    # what is added after line 4, place, field, value shown, words
    ("cache: {block_sice: 16}", (5, 9), "cache.block_sice", None, "did you mean 'block_size'"),
    ("block_size: 16", (5, 1), "block_size", None, "belongs at cache.block_size"),
    ("quantum: 1", (5, 1), "quantum", None, "known here: name, model, gpu"),
    ("cache: {block_size: 0}", (5, 21), "cache.block_size", 0, "at least 1"),
    ("cache: {block_size: 16.5}", (5, 21), "cache.block_size", 16.5, "whole number"),
    ("cache: {block_size: true}", (5, 21), "cache.block_size", True, "whole number"),
    ("cache: {block_size: '16'}", (5, 21), "cache.block_size", "16", "whole number"),
    ("cache: {layout: pagd}", (5, 17), "cache.layout", "pagd", "did you mean 'paged'"),
    ("cache: {placement: bestfit}", (5, 20), "cache.placement", "bestfit", "did you mean 'best-fit'"),
    ("cache: {gpu_memory_utilization: 1.5}", (5, 33), "cache.gpu_memory_utilization", 1.5, "at most 1"),
    ("cache: {gpu_memory_utilization: .nan}", (5, 33), "cache.gpu_memory_utilization", ..., "finite"),
    ("cache: {num_gpu_blocks_override: 1}", (5, 34), "cache.num_gpu_blocks_override", 1, "at least 2"),
    ("cache: {enable_prefix_caching: yes}", (5, 32), "cache.enable_prefix_caching", "yes", "true or false"),
    ("cache: 16", (5, 8), "cache", 16, "must be a mapping"),
    ("scheduler: {max_model_len: 1.3k}", None, None, None, None),  # vLLM's 1,300: fine
    ("scheduler: {max_model_len: 1.0001k}", (5, 28), "scheduler.max_model_len", ..., "whole number"),
    ("scheduler: {watermark: 1.0}", (5, 24), "scheduler.watermark", 1.0, "less than 1"),
    ("engine: {version: 0.10}", (5, 19), "engine.version", 0.1, 'in quotes: "0.1"'),
    ("timing: measured", (5, 9), "timing", "measured", "{profile: FILE}"),
    ("timing: {constant: 0.0}", (5, 20), "timing.constant", 0.0, "more than 0"),
    ("timing: {constant: 1, profile: p.json}", (5, 9), "timing", ..., "exactly one"),
    ("slo: {ttft_s: {p98: 1}}", (5, 16), "slo.ttft_s.p98", None, "did you mean 'p9"),
    ("slo: {ttft: {p99: 1}}", (5, 7), "slo.ttft", None, "did you mean 'ttft_s'"),
    ("workload: {file: t.csv}", (5, 11), "workload", None, "exclude each other"),
    ("scheduler: {preemption: swap}", (5, 25), "scheduler.preemption", "swap", "swap_space"),
    ("parallel: {data_parallel_size: 2}", (5, 32), "parallel.data_parallel_size", 2, "not simulated yet"),
    ("sweep: {cache.block_size: [1, 2]}", (5, 8), "sweep", ..., "kvplan sweep"),
    ("sweep: {block_size: [1]}", (5, 9), "sweep.block_size", None, "did you mean 'cache.block_size'"),
    ("sweep: {cache.block_sise: [1]}", (5, 9), "sweep.cache.block_sise", None, "'cache.block_size'"),
    ("sweep: {cache.block_size: []}", (5, 27), "sweep.cache.block_size", [], "no values"),
    ("sweep: {cache.block_size: [1, 0]}", (5, 31), "sweep.cache.block_size[1]", 0, "at least 1"),
    ("variants: [{cache: {block_size: 1}}]", (5, 12), "variants[0].name", None, "required"),
    ("variants: [{name: a}, {name: a}]", (5, 30), "variants[1].name", "a", "two runs"),
    ("variants: [{name: base}]", (5, 19), "variants[0].name", "base", "two runs"),
    ("variants: [{name: a, cache: {layot: paged}}]", (5, 30), "variants[0].cache.layot", None, "'layout'"),
    ("variants: [{name: a, requests: []}]", (5, 22), "variants[0].requests", None, "unknown key"),
    (
        "variants: [{name: a, scheduler: {preemption: swap}}]",
        (5, 46),
        "scheduler.preemption",
        "swap",
        "swap_space",
    ),
    (
        "variants: [{name: a, parallel: {data_parallel_size: 4}}]",
        (5, 53),
        "parallel.data_parallel_size",
        4,
        "not simulated yet",
    ),
    ("  - {prompt: 0, output: 1}", (5, 14), "requests[1].prompt", 0, "at least 1"),
    ("  - {prompt: 1, output: 0}", (5, 25), "requests[1].output", 0, "at least 1"),
    ("  - {prompt: 1}", (5, 5), "requests[1].output", None, "required"),
    ("  - {prompt: -5, output: 1}", (5, 14), "requests[1].prompt", -5, "at least 1"),
    ("  - {prompt: .nan, output: 1}", (5, 14), "requests[1].prompt", ..., "whole number"),
    ("  - {prompt: 1, output: 1, arrival: -0.5}", (5, 37), "requests[1].arrival", -0.5, "at least 0"),
    ("  - {prompt: 1, output: 1, arrival: .inf}", (5, 37), "requests[1].arrival", ..., "finite"),
    ("  - {prompt: 1, outputs: 1, output: 1}", (5, 17), "requests[1].outputs", None, "'output'"),
    ("  - {prompt: 1, output: 1, prefix: {id: a}}", (5, 36), "requests[1].prefix.tokens", None, "required"),
    ("  - 7", (5, 5), "requests[1]", 7, "must be a mapping"),
    ("seed: -1", (5, 7), "seed", -1, "at least 0"),
]


@pytest.mark.parametrize(("line", "place", "field", "shown", "words"), MISTAKES, ids=lambda x: str(x)[:50])
def test_a_mistake_is_named_with_its_place(
    line: str, place: tuple[int, int] | None, field: str, shown: object, words: str, tmp_path: Path
) -> None:
    if place is None:
        (tmp_path / "s.yaml").write_text(GOOD + line)
        assert load_scenario(tmp_path / "s.yaml")
        return
    error = refusal(GOOD + line + "\n", tmp_path)
    message = str(error)
    assert (error.line, error.column) == place, message
    assert message.startswith(f"{tmp_path / 's.yaml'}:{place[0]}:{place[1]}: {field}: ")
    assert words in message
    if shown is not ...:
        assert error.has_value == (shown is not None)
        assert error.value == shown


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "a scenario is a mapping"),
        ("[1, 2]", "a scenario is a mapping"),
        ("just words", "a scenario is a mapping"),
        ("gpu: h100-sxm\nrequests: [{prompt: 1, output: 1}]", "model: is required"),
        ("model: m\nrequests: [{prompt: 1, output: 1}]", "gpu: is required"),
        ("model: m\ngpu: g\nrequests: []", "requests: is empty"),
        ("model: m\ngpu: g\nworkload: {}", "either file or synthetic"),
        ("model: m\ngpu: g\nworkload: {synthetic: {}, limit: 3}", "limit goes with file"),
        ("model: ''\ngpu: g", "must be a name or a mapping"),
        ("model: 7\ngpu: g", "must be a name or a mapping"),
    ],
)
def test_what_is_missing_is_said(text: str, words: str, tmp_path: Path) -> None:
    assert words in str(refusal(text, tmp_path))


def test_nothing_asked_of_the_model_is_an_error_of_the_trace(tmp_path: Path) -> None:
    (tmp_path / "s.yaml").write_text("model: m\ngpu: g\n")
    with pytest.raises(InputError, match="nothing is asked"):
        load_scenario(tmp_path / "s.yaml").trace()


def test_the_first_mistake_is_told_and_the_others_are_listed(tmp_path: Path) -> None:
    error = refusal(GOOD + "cache: {block_sice: 1}\nscheduler: {watermark: 2}\nseed: -1\n", tmp_path)
    assert error.line == 5
    assert "also wrong: scheduler.watermark (line 6), seed (line 7)" in str(error)


def test_a_mistake_on_the_command_line_names_the_flag_and_no_line(tmp_path: Path) -> None:
    error = refusal(GOOD, tmp_path, {"cache.block_size": 0})
    assert str(error) == "--block-size: must be at least 1 (got 0)"
    error = refusal(GOOD, tmp_path, {"slo": {"ttft_s": {"p99": -1}}})
    assert str(error) == "--slo ttft_s.p99: must be more than 0.0 (got -1)"
    error = refusal(GOOD, tmp_path, {"scheduler.preemption": "swap"})
    assert str(error).startswith("--preemption: swap needs host memory")


def test_a_mistake_in_the_file_beside_a_flag_keeps_its_line(tmp_path: Path) -> None:
    error = refusal(GOOD + "slo: {ttft_s: {p98: 1}}\n", tmp_path, {"slo": {"ttft_s": {"p99": 1.0}}})
    assert (error.line, error.field) == (5, "slo.ttft_s.p98")


def test_an_unknown_override_is_refused(tmp_path: Path) -> None:
    assert "did you mean 'cache.block_size'" in str(refusal(GOOD, tmp_path, {"cache.blok_size": 1}))


def test_a_mapping_in_python_is_refused_without_a_place() -> None:
    with pytest.raises(InputError) as caught:
        Scenario.build({"model": "m", "gpu": "g", "cache": {"block_size": 0}})
    assert str(caught.value) == "cache.block_size: must be at least 1 (got 0)"


def test_a_missing_file_names_the_nearest(tmp_path: Path) -> None:
    (tmp_path / "trace.yaml").write_text(GOOD)
    with pytest.raises(InputError, match=r"did you mean .*trace\.yaml"):
        load_scenario(tmp_path / "trase.yaml")
    (tmp_path / "folder.yaml").mkdir()
    with pytest.raises(InputError, match="cannot be read"):
        load_scenario(tmp_path / "folder.yaml")


def test_a_fault_found_elsewhere_gets_the_line_of_the_scenario(tmp_path: Path) -> None:
    (tmp_path / "s.yaml").write_text(GOOD + "cache: {block_size: 7}\n")
    scenario = load_scenario(tmp_path / "s.yaml", {"cache.kv_cache_dtype": "q4_0"})

    def shown(field: str | None) -> str:
        return str(scenario.located(InputError("no", field=field, value=1))).replace(str(tmp_path), "")

    assert shown("model") == "/s.yaml:1:8: model: no (got 1)"
    assert shown("cache.block_size") == "/s.yaml:5:21: cache.block_size: no (got 1)"
    assert shown("block_size") == "/s.yaml:5:21: cache.block_size: no (got 1)"
    assert shown("requests[0].prompt") == "/s.yaml:4:28: requests[0].prompt: no (got 1)"
    assert shown("kv_cache_dtype") == "--kv-cache-dtype: no (got 1)"
    assert shown("hidden_size") == "hidden_size: no (got 1)"
    assert shown(None) == "no (got 1)"
    placed = InputError("no", field="model", source="config.json", line=3)
    assert scenario.located(placed) is placed
