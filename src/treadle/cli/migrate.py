"""`treadle migrate`: bring the tables of a store to this version."""

from __future__ import annotations

from typing import Annotated

import typer

from treadle.backend import store_name
from treadle.errors import InputError, SchemaError

from .shell import AppOption, Shell, UrlOption, run_command


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
    given = {"app": app, "url": url or store, "tenant": None, "json": False, "twice": bool(url and store)}
    raise typer.Exit(run_command(_migrate, {}, given, connect=False))


async def _migrate(shell: Shell, twice: bool) -> None:
    if twice:
        raise InputError("the store is given twice: as an argument, and with --url")
    name = store_name(shell.backend)
    try:
        await shell.client.connect()
        shell.print(f"the schema of {name} is up to date")
    except SchemaError as error:
        if error.found is not None and error.found > error.wanted:
            raise
        if hasattr(shell.backend, "apply_schema"):  # as every store that has a schema
            shell.backend.apply_schema = True  # pyright: ignore[reportAttributeAccessIssue]
        await shell.client.connect()
        done = f"made, version {error.wanted}"
        if error.found is not None:
            done = f"migrated from version {error.found} to {error.wanted}"
        shell.print(f"the schema of {name} is {done}")
