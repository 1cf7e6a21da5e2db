"""The front door opens at once and shows every room."""

from __future__ import annotations

import importlib
import inspect
import json
from collections.abc import Callable
from typing import Any

import pytest
import typer

import kvplan as package
from kvplan.cli import COMMANDS
from kvplan.scenario import Scenario
from tests.cli.conftest import Ended

Cli = Callable[..., Ended]

HEAVY = ("pandas", "numpy", "numba", "plotly", "torch", "simpy", "pyarrow", "pydantic", "yaml", "jinja2")


@pytest.mark.parametrize(
    "code", ["import kvplan", "import kvplan.cli", "from kvplan.cli import main; main(['--help'])"]
)
def test_nothing_heavy_is_imported_before_it_is_used(code: str, kvplan_apart: Cli) -> None:
    loaded = f"{code}\nimport sys; print([m for m in {HEAVY!r} if m in sys.modules], file=sys.stderr)"
    assert kvplan_apart(code=loaded).err == "[]\n"


def test_help_of_simulate_needs_no_simulator(kvplan_apart: Cli) -> None:
    code = "from kvplan.cli import main; main(['simulate', '--help'])\nimport sys\n"
    heavy = [name for name in HEAVY if name not in ("pydantic", "yaml")]
    ended = kvplan_apart(code=code + f"print([m for m in {heavy!r} if m in sys.modules], file=sys.stderr)")
    assert ended.err == "[]\n"


def test_help_lists_each_command_with_its_line(kvplan: Cli) -> None:
    ended = kvplan("--help")
    assert ended.code == 0
    for name, target in COMMANDS.items():
        assert f"  {name} " in ended.out
        assert target.summary in ended.out


@pytest.mark.parametrize("name", COMMANDS)
def test_each_command_of_the_table_exists_and_explains_itself(name: str, kvplan: Cli) -> None:
    module, _, attribute = COMMANDS[name].home.partition(":")
    found = getattr(importlib.import_module(module), attribute)
    assert isinstance(found, typer.Typer) or inspect.getdoc(found)
    ended = kvplan(name, "--help")
    assert ended.code == 0
    assert ended.out.startswith(f"Usage: kvplan {name}")


@pytest.mark.parametrize("name", COMMANDS)
def test_no_command_has_two_meanings_for_one_flag(name: str) -> None:
    def check(command: Any) -> None:
        words = [word for parameter in command.params for word in (*parameter.opts, *parameter.secondary_opts)]
        assert len(set(words)) == len(words)
        for inner in getattr(command, "commands", {}).values():
            check(inner)

    check(COMMANDS[name].load(name))


def test_help_shows_every_flag_whole(kvplan: Cli) -> None:
    shown = kvplan("simulate", "--help").out.split()
    for leaf in Scenario.leaves():
        assert leaf.flag in shown
        assert (f"--no-{leaf.flag[2:]}" in shown) == (leaf.kind == "boolean")


def test_the_version_is_the_packages(kvplan: Cli) -> None:
    assert kvplan("--version").out == f"kvplan {package.__version__}\n"


def test_schema_prints_json_and_nothing_else(kvplan: Cli) -> None:
    ended = kvplan("schema")
    assert ended.code == 0
    schema = json.loads(ended.out)
    assert schema["additionalProperties"] is False
    assert set(schema["properties"]) == set(Scenario.model_fields)
    assert ended.err == ""


def test_what_the_package_exports_is_what_it_says() -> None:
    assert set(package.__all__) <= set(dir(package))
    assert package.Scenario is Scenario
    with pytest.raises(AttributeError, match="no attribute 'simulat'"):
        package.simulat  # noqa: B018
