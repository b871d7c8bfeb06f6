"""The commands of the command line, built with typer."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from typing import Annotated, NoReturn

import typer

from treadle.cli import dead, enqueue, fleet, items, status, switches, tail, trees, verbs
from treadle.cli.child import USAGE_ERROR, ChildOptions
from treadle.cli.load import CannotLoad, load, report
from treadle.cli.reload import FileWatcher
from treadle.cli.supervisor import Supervisor
from treadle.clock import SystemClock
from treadle.connect import connect
from treadle.errors import TreadleError
from treadle.operator import core_of

commands = typer.Typer(name="treadle", no_args_is_help=True, pretty_exceptions_show_locals=False)

App = Annotated[str, typer.Argument(help="the app, as package.module:name", metavar="MODULE:APP")]


status.register(commands)
items.register(commands)
trees.register(commands)
tail.register(commands)
workers_commands, schedules_commands = fleet.register(commands)
enqueue.register(commands)
verbs.register(commands)
dead.register(commands)
switches.register(commands, schedules_commands)


@commands.command()
def worker(
    app: App,
    queues: Annotated[str, typer.Option(help="serve only these queues, separated by commas")] = "",
    tenants: Annotated[str, typer.Option(help="serve only these tenants, separated by commas")] = "",
    concurrency: Annotated[
        int, typer.Option(min=0, help="the most items at once, per process; 0: as the app is set")
    ] = 0,
    processes: Annotated[int, typer.Option(min=1, help="the number of worker processes")] = 1,
    burst: Annotated[bool, typer.Option(help="run the items that are due, then exit")] = False,
    reload: Annotated[bool, typer.Option(help="restart when a Python file of the project changes")] = False,
    max_block: Annotated[
        float, typer.Option(min=1.0, help="kill a process whose event loop is blocked for this many seconds")
    ] = 60.0,
) -> None:
    """Run workers: a supervisor, and the worker processes that it starts.

    SIGTERM or Ctrl-C lets handlers finish (for the app's `drain` seconds). A second one kills the processes.
    The exit code is 0 when stopped, 1 if a burst failed, 2 if the app cannot be loaded.
    """
    logging.basicConfig(
        level=os.environ.get("TREADLE_LOG", "INFO"), format="%(asctime)s %(name)s %(message)s"
    )
    try:
        opened = load(app)
    except CannotLoad as error:
        report(error)
        raise typer.Exit(USAGE_ERROR) from None
    from treadle.backends.memory import MemoryBackend

    if processes > 1 and isinstance(opened.backend, MemoryBackend):
        _fail(
            f"{app} keeps its items in memory, and processes share no memory: each of the {processes} would "
            "have a store of its own. Use a sqlite:// or postgresql:// store, or --processes 1"
        )
    options = ChildOptions(
        app=app,
        worker="",
        liveness="",
        queues=_names(queues),
        tenants=_names(tenants),
        concurrency=concurrency or None,
        burst=burst,
    )
    settings = core_of(opened).settings
    supervisor = Supervisor(opened.backend, settings, options, processes=processes, max_block=max_block)
    sys.exit(asyncio.run(_supervise(supervisor, reload)))


async def _supervise(supervisor: Supervisor, reload: bool) -> int:
    if not reload:
        return await supervisor.run()
    watcher = asyncio.ensure_future(FileWatcher().run(supervisor.restart))
    try:
        return await supervisor.run()
    finally:
        watcher.cancel()


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


def _names(given: str) -> tuple[str, ...] | None:
    names = tuple(name.strip() for name in given.split(",") if name.strip())
    return names or None


def _fail(message: str) -> NoReturn:
    typer.echo(f"treadle: {message}", err=True)
    raise typer.Exit(USAGE_ERROR)
