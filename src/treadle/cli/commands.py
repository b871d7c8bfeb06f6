"""The commands of the command line, built with typer."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from treadle import __version__
from treadle.backend import store_name
from treadle.base.wording import plain
from treadle.errors import SchemaError

from . import (
    audit,
    bulk,
    check,
    dead,
    doctor,
    fleet,
    group,
    items,
    move,
    pause,
    promote,
    rebalance,
    run,
    schedules,
    status,
    steps,
    stores,
    tail,
    verbs,
    watch,
    web,
    why,
)
from .exit_codes import REFUSED, USAGE
from .load import apply_schema
from .shell import AppOption, Shell, UrlOption, fail, run_command
from .worker import worker


class OneLineErrors(TyperGroup):
    """The group of all commands. It says in one line what is wrong with a call, and where the help is."""

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        windows_expand_args: bool = True,
        **extra: Any,
    ) -> Any:
        if not standalone_mode:
            return super().main(args, prog_name, complete_var, False, windows_expand_args, **extra)
        try:
            code = super().main(args, prog_name, complete_var, False, windows_expand_args, **extra)
        except typer.Abort:
            typer.echo("treadle: stopped", err=True)
            sys.exit(REFUSED)
        except Exception as error:
            # By its method, since typer may have a click of its own.
            format_message = getattr(error, "format_message", None)
            if format_message is None:
                raise
            if type(error).__name__ == "NoArgsIsHelpError":
                typer.echo(format_message(), err=True)
                sys.exit(USAGE)
            typer.echo(f"treadle: {_one_line(error, format_message())}", err=True)
            sys.exit(USAGE)
        sys.exit(code if isinstance(code, int) else 0)


def _one_line(error: Exception, message: str) -> str:
    """What is wrong, and which help says more."""
    context = getattr(error, "ctx", None)
    path = "treadle" if context is None else context.command_path.replace("python -m treadle", "treadle")
    text = " ".join(message.split())
    text = text[:1].lower() + text[1:].rstrip(".")
    if text.startswith("no such command 'dashboard'"):
        text += ": `treadle web` serves it"
    return f"{plain(text)}{'' if text.endswith('?') else '.'} See `{path} --help`"


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
commands.command()(migrate)
doctor.register(commands)
fleet.register(commands)
schedules.register(commands)
run.register(commands)
verbs.register(commands)
steps.register(commands)
dead.register(commands)
pause.register(commands)
bulk.register(commands)
promote.register(commands)
move.register(commands)
rebalance.register(commands)
stores.register(commands)
audit.register(commands)
watch.register(commands)
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
