"""A command group that imports a command's module only when that command is called."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup


@dataclass(frozen=True)
class Target:
    """``home``: ``"module:name"`` of a function, or of a `typer.Typer` with commands of its own.
    ``summary``: one line for ``kvplan --help``.
    """

    home: str
    summary: str

    def load(self, name: str) -> Any:
        module, _, attribute = self.home.partition(":")
        found = getattr(importlib.import_module(module), attribute)
        if not isinstance(found, typer.Typer):
            app = typer.Typer(add_completion=False, rich_markup_mode=None)
            app.command(name, cls=SectionedCommand)(found)
            found = app
        command = typer.main.get_command(found)
        command.name = name
        return command


class SectionedCommand(TyperCommand):
    """Help as plain text, options under the panel they name: rich's tables cut long flags short."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        sections: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is not None:
                panel = getattr(parameter, "rich_help_panel", None)
                title = panel or ("Arguments" if parameter.param_type_name == "argument" else "Options")
                sections.setdefault(title, []).append(record)
        for title, records in sections.items():
            with formatter.section(title):
                formatter.write_dl(records)


class LazyGroup(TyperGroup):
    """Shows a name and a summary for each of its ``targets``, and loads the one that is called."""

    _targets: Mapping[str, Target]

    @property
    def targets(self) -> Mapping[str, Target]:
        return self._targets

    @targets.setter
    def targets(self, targets: Mapping[str, Target]) -> None:
        self._targets = targets
        self.commands = {name: TyperCommand(name, help=target.summary) for name, target in targets.items()}

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name, command, rest = super().resolve_command(ctx, args)
        return name, command and self._targets[args[0]].load(args[0]), rest
