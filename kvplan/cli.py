"""The command line: which commands there are, and how each of them may end.

Exit codes: 0 done, 2 input that is not understood, 3 a configuration that cannot work, 4 a tolerance
exceeded, 130 interrupted, 1 anything else. Results go to standard output, all that is said about them to
standard error.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from kvplan import __version__
from kvplan.commands.lazy import LazyGroup, Target
from kvplan.environment import debug_wanted
from kvplan.errors import KvplanError

COMMANDS = {
    "simulate": Target("kvplan.commands.simulate:simulate", "Replay a trace and say where the KV memory went"),
    "engine": Target("kvplan.commands.engine:engine", "Run a trace on a real paged-attention engine"),
    "report": Target("kvplan.commands.report:report", "Make the capacity report: a page, Markdown, CSV or a picture"),
    "diagnose": Target("kvplan.commands.diagnose:diagnose", "Say what holds a deployment back, and what would help"),
    "plan": Target("kvplan.commands.plan:plan", "Find the least hardware that carries a traffic within its SLO"),
    "sweep": Target("kvplan.commands.sweep:sweep", "Simulate every combination of some settings"),
    "memory": Target("kvplan.commands.memory:memory", "Say how many blocks a server will have, term by term"),
    "reconcile": Target("kvplan.commands.reconcile:reconcile_log", "Explain the memory figures a server logged"),
    "models": Target("kvplan.commands.catalog:models", "List the models of the catalogue"),
    "gpus": Target("kvplan.commands.catalog:gpus", "List the GPUs of the catalogue"),
    "trace": Target("kvplan.commands.trace:app", "Read, describe, convert, cut, merge and generate traces"),
    "profile": Target("kvplan.commands.profile:app", "Import and show measured step times"),
    "validate": Target("kvplan.commands.validate:validate", "Compare the simulator with a run that was measured"),
    "schema": Target("kvplan.commands.schema:schema", "Print the JSON schema of a scenario"),
}
"""Name to where it is and what it does. A command's module is imported when it is called, not before."""

A_BUG = "this is a bug: please report it with the command and its input (KVPLAN_DEBUG=1 shows where it happened)"


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"kvplan {__version__}")
        raise typer.Exit


def _root(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_version, is_eager=True)
    ] = False,
) -> None:
    """How many requests fit on this GPU, what wastes the rest of its memory, and what would help."""


def build() -> LazyGroup:
    """The whole command line as one command object."""
    app = typer.Typer(name="kvplan", cls=LazyGroup, no_args_is_help=True, rich_markup_mode=None)
    app.callback()(_root)
    group = typer.main.get_command(app)
    assert isinstance(group, LazyGroup)
    group.targets = COMMANDS
    return group


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command line; its exit code. Raises nothing, but under KVPLAN_DEBUG what should not happen."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")
    try:
        try:
            build().main(args=list(sys.argv[1:] if arguments is None else arguments), prog_name="kvplan")
        finally:
            sys.stdout.flush()
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 0 if end.code is None else 1
    except KvplanError as error:
        return _say(str(error), error.exit_code)
    except KeyboardInterrupt:
        return _say("interrupted", 130)
    except BrokenPipeError:
        _abandon_stdout()
        return 1
    except OSError as error:
        if debug_wanted():
            raise
        return _say(str(error), 1)
    except Exception as error:
        if debug_wanted():
            raise
        return _say(f"{type(error).__name__}: {error}\n  {A_BUG}", 1)
    return 0


def _say(message: str, code: int) -> int:
    print(f"kvplan: {message}", file=sys.stderr)
    return code


def _abandon_stdout() -> None:
    """Whoever read us is gone (``| head``): let the interpreter's last flush go nowhere, in silence."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
