"""`treadle migrate`: bring the tables of a store to this version."""

from __future__ import annotations

from typing import Annotated

import typer

from treadle.backend import store_name
from treadle.errors import SchemaError

from .load import apply_schema
from .shell import AppOption, Shell, UrlOption, fail, run_command


def register(commands: typer.Typer) -> None:
    commands.command()(migrate)


def migrate(
    store: Annotated[
        str | None,
        typer.Argument(metavar="[URL]", help="the store; default: --app, --url, or as they default"),
    ] = None,
    app: AppOption = None,
    url: UrlOption = None,
) -> None:
    """Migrate a store's tables to this version. It may run many times, and from many processes at once."""
    if url and store:
        fail("the store is given twice: as an argument, and with --url")
    given = {"app": app, "url": url or store, "tenant": None, "json": False}
    raise typer.Exit(run_command(_migrate, {}, given, connect=False))


async def _migrate(shell: Shell) -> None:
    done = "up to date"
    try:
        await shell.backend.open()
        await shell.backend.close()
    except SchemaError as error:
        if error.found is not None and error.found > error.wanted:
            raise
        done = f"made, version {error.wanted}"
        if error.found is not None:
            done = f"migrated from version {error.found} to {error.wanted}"
    # Also if the version is the same: functions in the database may be those of an earlier release.
    apply_schema(shell.backend, True)
    await shell.connect()
    shell.print(f"the schema of {store_name(shell.backend)} is {done}")
