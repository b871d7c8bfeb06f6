"""The commands of the command line, built with typer."""

from __future__ import annotations

from typing import Annotated

import typer

from treadle import __version__
from treadle.cli import (
    audit,
    bulk,
    check,
    dead,
    doctor,
    fleet,
    group,
    items,
    migrate,
    pause,
    run,
    schedules,
    status,
    tail,
    verbs,
    web,
    why,
)
from treadle.cli.shell import fail
from treadle.cli.usage import OneLineErrors
from treadle.cli.worker import worker

commands = typer.Typer(
    name="treadle", cls=OneLineErrors, no_args_is_help=True, pretty_exceptions_enable=False
)

commands.command()(worker)
status.register(commands)
items.register(commands)
group.register(commands)
tail.register(commands)
why.register(commands)
check.register(commands)
migrate.register(commands)
doctor.register(commands)
fleet.register(commands)
schedules.register(commands)
run.register(commands)
verbs.register(commands)
dead.register(commands)
pause.register(commands)
bulk.register(commands)
audit.register(commands)
web.register(commands)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"treadle {__version__}")
        raise typer.Exit


@commands.callback()
def main(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="show the version")
    ] = False,
) -> None:
    """A durable work queue and workflow engine."""


@commands.command()
def schema(kind: Annotated[str, typer.Argument(help="sqlite or postgres")]) -> None:
    """Print the tables as SQL, to run migrations with another tool."""
    if kind == "sqlite":
        from treadle.backends.sqlite import schema_sql
    elif kind in ("postgres", "postgresql"):
        from treadle.backends.postgres import schema_sql
    else:
        fail(f"{kind!r} has no schema: sqlite or postgres")
    typer.echo(schema_sql())
