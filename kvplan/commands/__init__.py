"""One module a command: plain functions with typer's annotations, named in `kvplan.cli.COMMANDS`."""
