"""The options of a scenario for every command that takes one: read off the schema, never written by hand."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import typing
from collections.abc import Callable, Collection, Mapping
from typing import Annotated, Any

import typer

from kvplan.errors import InputError
from kvplan.scenario import Leaf, Scenario


def scenario_options(
    *, without: Collection[str] = (), renamed: Mapping[str, str] | None = None
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command one option for each leaf of the schema.

    The command must take ``overrides``: the given leaves by dotted key, as `load_scenario` wants them.
    ``without`` names the keys that the command has no use for. ``renamed`` gives other flags to keys whose own
    flag means something else in this command: ``{"workload.format": "--trace-format"}``.
    """
    flags = renamed or {}
    chosen = [
        dataclasses.replace(leaf, flag=flags.get(leaf.key, leaf.flag))
        for leaf in Scenario.leaves()
        if leaf.key not in without
    ]

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(command)
        def with_options(**given: Any) -> None:
            overrides = {
                leaf.key: leaf.parse(word) for leaf in chosen if (word := given.pop(leaf.parameter)) is not None
            }
            command(**given, overrides=overrides)

        own = inspect.signature(command)
        hints = typing.get_type_hints(command, include_extras=True)
        parameters = [
            parameter.replace(annotation=hints[name], kind=inspect.Parameter.KEYWORD_ONLY)
            for name, parameter in own.parameters.items()
            if name != "overrides"
        ]
        parameters += [_parameter(leaf) for leaf in chosen]
        with_options.__dict__["__signature__"] = inspect.Signature(parameters)
        with_options.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        return with_options

    return decorate


def _parameter(leaf: Leaf) -> inspect.Parameter:
    word: Any = bool if leaf.kind == "boolean" else str
    flag = f"{leaf.flag}/--no-{leaf.flag[2:]}" if leaf.kind == "boolean" else leaf.flag
    option = typer.Option(
        flag,
        help=leaf.help,
        metavar=None if leaf.kind == "boolean" else leaf.metavar,
        rich_help_panel=leaf.section.capitalize(),
        show_default=False,
    )
    return inspect.Parameter(
        leaf.parameter,
        inspect.Parameter.KEYWORD_ONLY,
        default=None,
        annotation=Annotated[word | None, option],
    )


def whole_numbers(text: str, flag: str) -> tuple[int, ...]:
    """The numbers of a list with commas.

    Raises:
        InputError: there is none, or one is no whole number from 1.
    """
    try:
        numbers = tuple(int(word) for word in text.split(","))
    except ValueError:
        numbers = ()
    if not numbers or min(numbers) < 1:
        raise InputError("whole numbers from 1, with commas", field=flag, value=text)
    return numbers
