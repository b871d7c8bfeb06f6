"""The commands of the command line, built with typer."""

from __future__ import annotations

import asyncio
from typing import Annotated, NoReturn

import typer

from treadle import __version__
from treadle.cli import (
    check,
    dead,
    delete,
    doctor,
    enqueue,
    fleet,
    items,
    reasons,
    status,
    switches,
    tail,
    trees,
    verbs,
)
from treadle.cli.exit_codes import USAGE
from treadle.cli.usage import OneLineErrors
from treadle.cli.worker import worker
from treadle.clock import SystemClock
from treadle.connect import connect
from treadle.errors import TreadleError

commands = typer.Typer(
    name="treadle", cls=OneLineErrors, no_args_is_help=True, pretty_exceptions_enable=False
)

commands.command()(worker)
status.register(commands)
items.register(commands)
trees.register(commands)
tail.register(commands)
reasons.register(commands)
check.register(commands)
doctor.register(commands)
workers_commands, schedules_commands = fleet.register(commands)
enqueue.register(commands)
verbs.register(commands)
delete.register(commands)
dead.register(commands)
switches.register(commands, schedules_commands)


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
def migrate(url: Annotated[str, typer.Argument(help="sqlite:///work.db, postgresql://...")]) -> None:
    """Migrate a store's tables to this version. It may run many times, and from many processes at once."""
    try:
        asyncio.run(_migrate(url))
    except TreadleError as error:
        _fail(str(error))
    typer.echo("the schema is up to date")


async def _migrate(url: str) -> None:
    backend = connect(url, clock=SystemClock())
    await backend.open()
    await backend.close()


@commands.command()
def schema(kind: Annotated[str, typer.Argument(help="sqlite or postgres")]) -> None:
    """Print the tables as SQL, to run migrations with another tool."""
    if kind == "sqlite":
        from treadle.backends.sqlite import schema_sql
    elif kind in ("postgres", "postgresql"):
        from treadle.backends.postgres import schema_sql
    else:
        _fail(f"{kind!r} has no schema: sqlite or postgres")
    typer.echo(schema_sql())


def _fail(message: str) -> NoReturn:
    typer.echo(f"treadle: {message}", err=True)
    raise typer.Exit(USAGE)
