"""The words of the schema are the words of those who obey them."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import pytest

from kvplan.catalog.gpu import load_gpu
from kvplan.catalog.model import load_model
from kvplan.errors import InputError
from kvplan.memory.defaults import ENGINES, engine_defaults
from kvplan.memory.kv_dtype import kv_format
from kvplan.scenario import Scenario, load_scenario, shipped_workloads
from kvplan.scenario.deployment import Engine, KvCacheDtype


@pytest.mark.parametrize("dtype", get_args(KvCacheDtype))
def test_every_kv_cache_dtype_has_bytes(dtype: str) -> None:
    assert kv_format(dtype, "bfloat16").element_bytes > 0


def test_every_engine_has_defaults() -> None:
    names = get_args(Engine.model_fields["name"].annotation)
    assert set(names) == set(ENGINES)
    assert engine_defaults(Engine().name, Engine().version, load_gpu("h100-sxm"), load_model("llama-3.1-8b"))


@pytest.mark.parametrize("name", shipped_workloads())
def test_every_shipped_workload_is_a_scenario_of_known_things(name: str) -> None:
    scenario = load_scenario(name)
    for _, run in scenario.runs():
        assert load_model(run.model_source)
        assert load_gpu(run.gpu)
    assert len(scenario.trace()) == len(scenario.trace().arrival_s) > 1000


def test_a_shipped_workload_is_found_by_name_and_by_path() -> None:
    assert set(shipped_workloads()) >= {"azure-conversation"}
    by_name, by_path = load_scenario("azure-conversation"), load_scenario("workloads/azure-conversation.yaml")
    assert by_name.to_mapping() == by_path.to_mapping()


def test_a_fault_in_a_generator_names_the_line(tmp_path: Path) -> None:
    path = tmp_path / "s.yaml"
    path.write_text("model: m\ngpu: g\nworkload:\n  synthetic:\n    requests: 0\n")
    with pytest.raises(InputError) as caught:
        load_scenario(path).trace()
    assert (caught.value.line, caught.value.field) == (5, "workload.synthetic.requests")


def test_the_seed_of_the_scenario_is_that_of_its_generator() -> None:
    mapping = {
        "model": "m",
        "gpu": "g",
        "workload": {
            "synthetic": {"requests": 50, "arrivals": 1, "prompt": {"quantiles": {"0": 1, "1": 999}}, "output": 5}
        },
    }
    first, again = Scenario.build(mapping).trace(), Scenario.build(mapping).trace()
    other = Scenario.build({**mapping, "seed": 1}).trace()
    assert first.prompt_tokens.tolist() == again.prompt_tokens.tolist() != other.prompt_tokens.tolist()
