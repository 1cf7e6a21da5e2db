"""The catalogue's models against the shapes, parameter counts and cache sizes of the reference table."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from kvplan.catalog import load_model, model_names
from kvplan.catalog.lookup import load_table
from kvplan.errors import InputError
from kvplan.memory import active_params, kv_bytes_per_token, total_params

REFERENCE = Path(__file__).resolve().parents[2].parent / "shared" / "data" / "reference" / "models_gpus.md"

# The table's name to the catalogue's; what is not here is spelt alike.
NAMES = {
    "Mistral-7B v0.1": ["mistral-7b"],
    "DeepSeek-V3/R1": ["deepseek-v3"],
    "OPT-13B": ["opt-13b", "opt-66b", "opt-175b"],
}


def rows() -> list[list[str]]:
    if not REFERENCE.exists():
        return []
    lines = [line for line in REFERENCE.read_text(encoding="utf-8").splitlines() if line.startswith("|")]
    table = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    end = next(index for index, row in enumerate(table) if row[0] == "GPU")
    return table[2:end]


def numbers(cell: str) -> list[float]:
    return [float(part) for part in re.findall(r"\d+(?:\.\d+)?", cell.replace(",", ""))]


@pytest.mark.skipif(not REFERENCE.exists(), reason="needs ../shared/data/reference/models_gpus.md")
@pytest.mark.parametrize("row", rows(), ids=lambda row: row[0])
def test_every_row_of_the_reference_table(row: list[str]) -> None:
    title = re.sub(r"\s*\(.*", "", row[0])
    names = NAMES.get(title.split(" / ")[0], [title.lower()])
    counts = row[7].split("/") if len(names) > 1 else [row[7]]
    caches = row[8].split("/") if len(names) > 1 else [row[8]]
    for name, count, cache in zip(names, counts, caches, strict=True):
        model = load_model(name)
        billions = numbers(count)[0]
        digits = len(count.strip().split(".")[1]) if "." in count else 0
        assert total_params(model) / 1e9 == pytest.approx(billions, rel=0.01, abs=0.5 * 10**-digits), name
        assert kv_bytes_per_token(model) / 1024 == pytest.approx(numbers(cache)[0], rel=0.001), name
    if len(names) == 1:
        model = load_model(names[0])
        full = re.search(r"\(([\d]+) full", row[1])
        assert model.num_hidden_layers == numbers(row[1])[0]
        assert model.max_position_embeddings == numbers(row[6])[0]
        assert abs(model.vocab_size - numbers(row[5])[0]) <= 64
        assert model.hidden_size == numbers(row[4])[0]
        if full:
            assert sum(group.layers for group in model.kv_groups if group.attention == "full") == int(full[1])


def test_every_model_states_its_source_and_the_parameters_it_claims() -> None:
    for name, entry in load_table("models.yaml").items():
        assert entry["source"]
        if "params_b" in entry:
            assert total_params(load_model(name)) / 1e9 == pytest.approx(entry["params_b"], rel=0.01), name


@pytest.mark.parametrize(
    ("name", "total", "active"),
    [  # what the names of these checkpoints promise, in billions
        ("qwen3-30b-a3b", 30.5, 3.3),
        ("qwen3-235b-a22b", 235, 22),
        ("qwen3.5-397b-a17b", 397, 17),
        ("llama-4-scout", 109, 17),
        ("nemotron-3-nano-30b", 31.6, 3.6),
        ("deepseek-v3", 671, 37),
        ("kimi-k2", 1026, 32),
        ("mixtral-8x7b", 46.7, 12.9),
    ],
)
def test_mixtures_of_experts_count_all_experts_and_use_few(name: str, total: float, active: float) -> None:
    model = load_model(name)
    assert total_params(model) / 1e9 == pytest.approx(total, rel=0.02)
    assert active_params(model) / 1e9 == pytest.approx(active, rel=0.12)


@pytest.mark.parametrize(
    "spelling", ["Meta-Llama/Llama-3.1-8B-Instruct", "llama_3.1_8b", "LLAMA-3.1-8B", "llama-3.1-8b"]
)
def test_a_model_has_many_spellings(spelling: str) -> None:
    assert load_model(spelling) == load_model("llama-3.1-8b")


def test_an_unknown_name_lists_the_nearest() -> None:
    with pytest.raises(InputError, match="nearest: qwen3-14b"):
        load_model("qwen3-14")


def test_no_alias_means_two_models() -> None:
    seen: dict[str, str] = {}
    for name, entry in load_table("models.yaml").items():
        for alias in entry.get("aliases", ()):
            assert seen.setdefault(alias.lower(), name) == name
            assert alias.lower() not in model_names()
