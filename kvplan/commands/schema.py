"""``kvplan schema``."""

from __future__ import annotations

import json

import typer

from kvplan.scenario import Scenario


def schema() -> None:
    """Print the JSON schema of a scenario: every key, its meaning, its unit and its flag."""
    typer.echo(json.dumps(Scenario.json_schema(), indent=2))
