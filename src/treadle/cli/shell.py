"""Shell: what all operator commands share: where the items are, how answers are printed, the exit codes."""

from __future__ import annotations

import asyncio
import functools
import inspect
import os
import sys
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Annotated, Any, NoReturn

import msgspec
import typer
from rich.console import Console
from rich.table import Table

from treadle.app import Treadle
from treadle.cli.load import CannotLoad, load, report
from treadle.client import Client
from treadle.errors import InputError, StoreUnavailable, TreadleError
from treadle.operator import core_of

REFUSED = 1
"""Exit code: the store refused it (no such item, it has ended, ...)."""
USAGE = 2
"""Exit code: the command was called in a wrong way, or the app cannot be loaded."""
AWAY = 3
"""Exit code: the store does not answer."""
UNHEALTHY = 4
"""Exit code of `status` and `check`: it was carried out, and what it found is not healthy."""

AppOption = Annotated[
    str | None,
    typer.Option("--app", metavar="MODULE:APP", help="the app, as package.module:name; default: TREADLE_APP"),
]
UrlOption = Annotated[
    str | None,
    typer.Option("--url", help="the store, without the code of an app; default: TREADLE_URL"),
]
TenantOption = Annotated[str | None, typer.Option("--tenant", help="only items of this tenant")]
JsonOption = Annotated[bool, typer.Option("--json", help="one JSON object per line, for programs")]


class Shell:
    """One call of an operator command: the client, and how to answer."""

    def __init__(self, client: Client, *, json: bool, app: Treadle | None) -> None:
        self.client = client
        """Bound to the tenant of `--tenant`, if that is given."""
        self.json = json
        self.app = app
        """The app of `--app`. None with `--url`: then types, codecs and limits are unknown."""
        self.console = Console(highlight=False, soft_wrap=True)

    def print(self, text: str) -> None:
        """Print a line for a person. With `--json`, nothing."""
        if not self.json:
            self.console.print(text, markup=False)

    def emit(self, value: object) -> None:
        """Print one JSON object on a line of its own."""
        sys.stdout.write(msgspec.json.encode(value, enc_hook=str).decode() + "\n")

    def table(self, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
        """Print a table for a person."""
        table = Table(box=None, pad_edge=False, header_style="bold")
        for column in columns:
            table.add_column(column, overflow="fold")
        for row in rows:
            table.add_row(*(_plain(cell) for cell in row))
        self.console.print(table)

    def warn(self, text: str) -> None:
        """Print a line to standard error."""
        typer.echo(f"treadle: {text}", err=True)


def _plain(cell: str) -> Any:
    """Text as it is: no markup, no control characters."""
    from rich.text import Text

    return Text("".join(each if each.isprintable() else repr(each)[1:-1] for each in cell))


Command = Callable[..., Awaitable[int | None]]


def operator_command(
    commands: typer.Typer, name: str | None = None, **settings: Any
) -> Callable[[Command], Command]:
    """Register `async def command(shell, ...)`. It gets the options `--app`, `--url`, `--tenant` and `--json`
    besides its own. What it returns is the exit code. Errors of the store and of usage become one line."""

    def register(function: Command) -> Command:
        @functools.wraps(function)
        def call(
            *args: Any, app: str | None, url: str | None, tenant: str | None, json: bool, **given: Any
        ) -> None:
            raise typer.Exit(_run(function, app, url, tenant, json, given))

        own = list(inspect.signature(function, eval_str=True).parameters.values())[1:]
        call.__signature__ = inspect.Signature([*own, *_shared_options()])  # type: ignore[attr-defined]
        del call.__wrapped__  # typer would look at the function instead
        call.__annotations__ = {each.name: each.annotation for each in [*own, *_shared_options()]}
        commands.command(name, **settings)(call)
        return function

    return register


def _shared_options() -> list[inspect.Parameter]:
    kind = inspect.Parameter.KEYWORD_ONLY
    return [
        inspect.Parameter("app", kind, default=None, annotation=AppOption),
        inspect.Parameter("url", kind, default=None, annotation=UrlOption),
        inspect.Parameter("tenant", kind, default=None, annotation=TenantOption),
        inspect.Parameter("json", kind, default=False, annotation=JsonOption),
    ]


def _run(
    function: Command, app: str | None, url: str | None, tenant: str | None, json: bool, given: dict[str, Any]
) -> int:
    try:
        if not app and not url:
            app, url = os.environ.get("TREADLE_APP"), os.environ.get("TREADLE_URL")
            url = None if app else url
        loaded = _load_app(app, url)
        client: Client = loaded if loaded is not None else Client(url or "")
        bound = client if tenant is None else client.tenant(tenant)
        return asyncio.run(_call(function, Shell(bound, json=json, app=loaded), given)) or 0
    except CannotLoad as error:
        report(error)
        return USAGE
    except InputError as error:
        return _say(error, USAGE)
    except StoreUnavailable as error:
        return _say(error, AWAY)
    except TreadleError as error:
        return _say(error, REFUSED)
    except BrokenPipeError:  # the reader of a pipe has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        return 130


async def _call(function: Command, shell: Shell, given: dict[str, Any]) -> int | None:
    try:
        await shell.client.connect()
        return await function(shell, **given)
    finally:
        await core_of(shell.client).close()


def _load_app(app: str | None, url: str | None) -> Treadle | None:
    if app and url:
        raise InputError("--app and --url exclude each other: the app knows its store")
    if not app and not url:
        raise InputError(
            "say where the items are: --app shop.jobs:app, or --url postgresql://... (or set TREADLE_APP or "
            "TREADLE_URL)"
        )
    return load(app) if app else None


def _say(error: TreadleError, code: int) -> int:
    typer.echo(f"treadle: {error}", err=True)
    return code


def fail(message: str, code: int = USAGE) -> NoReturn:
    """End the command with one line on standard error."""
    typer.echo(f"treadle: {message}", err=True)
    raise typer.Exit(code)
