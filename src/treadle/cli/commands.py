"""The commands, on typer."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from typing import Annotated, NoReturn

import typer

from treadle.app import Treadle
from treadle.cli.child import USAGE_ERROR, Orders
from treadle.cli.load import CannotLoad, load
from treadle.cli.reload import Watcher
from treadle.cli.supervisor import Supervisor
from treadle.clock import SystemClock
from treadle.connect import connect
from treadle.errors import TreadleError
from treadle.operator import core_of

commands = typer.Typer(
    name="treadle", no_args_is_help=True, add_completion=False, pretty_exceptions_show_locals=False
)

App = Annotated[str, typer.Argument(help="where the app is: package.module:name", metavar="MODULE:APP")]


@commands.command()
def worker(
    app: App,
    queues: Annotated[str, typer.Option(help="only these, separated by commas")] = "",
    tenants: Annotated[str, typer.Option(help="only these, separated by commas")] = "",
    concurrency: Annotated[
        int, typer.Option(min=0, help="at most so many at once, per process; 0: as the app says")
    ] = 0,
    processes: Annotated[int, typer.Option(min=1, help="how many worker processes")] = 1,
    burst: Annotated[bool, typer.Option(help="run what is due to its end, then exit")] = False,
    reload: Annotated[bool, typer.Option(help="restart when a file of the project changes")] = False,
    max_block: Annotated[
        float, typer.Option(help="kill a process whose event loop stands still for so long")
    ] = 60.0,
) -> None:
    """Run workers: a supervisor, and the processes that it keeps alive.

    SIGTERM or Ctrl-C lets handlers finish (for the app's `drain` seconds); a second one ends them. Exits
    with 0 when stopped, with 2 if the app cannot be loaded.
    """
    logging.basicConfig(
        level=os.environ.get("TREADLE_LOG", "INFO"), format="%(asctime)s %(name)s %(message)s"
    )
    opened = _load(app)
    settings = core_of(opened).settings
    orders = Orders(
        app=app,
        worker="",
        tick="",
        queues=_names(queues),
        tenants=_names(tenants),
        concurrency=concurrency or None,
        burst=burst,
    )
    supervisor = Supervisor(
        opened.backend,
        orders,
        processes=processes,
        lease=settings.lease,
        heartbeat=settings.heartbeat,
        drain=settings.drain,
        max_block=max_block,
    )
    sys.exit(asyncio.run(_supervise(supervisor, reload)))


async def _supervise(supervisor: Supervisor, reload: bool) -> int:
    if not reload:
        return await supervisor.run()
    watching = asyncio.ensure_future(Watcher().run(supervisor.restart))
    try:
        return await supervisor.run()
    finally:
        watching.cancel()


@commands.command()
def migrate(url: Annotated[str, typer.Argument(help="sqlite:///work.db, postgresql://...")]) -> None:
    """Bring a store's tables to this version. Safe to run many times, and from many places at once."""
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
    """Print the tables as SQL, for those who run their migrations themselves."""
    if kind == "sqlite":
        from treadle.backends.sqlite import schema_sql
    elif kind in ("postgres", "postgresql"):
        from treadle.backends.postgres import schema_sql
    else:
        _fail(f"{kind!r} has no schema: sqlite or postgres")
    typer.echo(schema_sql())


def _load(app: str) -> Treadle:
    try:
        return load(app)
    except CannotLoad as error:
        _fail(str(error))


def _names(given: str) -> tuple[str, ...] | None:
    names = tuple(name.strip() for name in given.split(",") if name.strip())
    return names or None


def _fail(message: str) -> NoReturn:
    typer.echo(f"treadle: {message}", err=True)
    raise typer.Exit(USAGE_ERROR)
