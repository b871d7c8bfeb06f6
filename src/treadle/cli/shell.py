"""Shell: what all operator commands share: where the items are, how answers are printed, the exit codes."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import functools
import getpass
import inspect
import os
import socket
import sys
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Final, NoReturn, TypeVar

import typer

from treadle.backend import all_stores, missing_stores, store_name
from treadle.base.wording import listed, plain
from treadle.errors import (
    AccessDenied,
    DefinitionError,
    InputError,
    NotFound,
    SchemaError,
    StoreUnavailable,
    TreadleError,
    message_of,
)
from treadle.operate.operator import note_of, tenant_of
from treadle.store.audit_note import checked_note, noted_about, noted_for

from .exit_codes import AWAY, INTERRUPTED, REFUSED, USAGE
from .text import fact_lines, json_line, styled, table_lines, terminal_width

if TYPE_CHECKING:
    from treadle.app import Treadle
    from treadle.backend import Backend
    from treadle.client import Client
    from treadle.item import AuditNote

T = TypeVar("T")

AppOption = Annotated[
    str | None,
    typer.Option("--app", metavar="MODULE:APP", help="the app, as package.module:name; default: TREADLE_APP"),
]
UrlOption = Annotated[
    str | None,
    typer.Option("--url", help="the store, without the code of an app; default: TREADLE_URL"),
]
TenantOption = Annotated[str | None, typer.Option("--tenant", help="only items of this tenant")]
BecauseOption = Annotated[str, typer.Option("--because", metavar="TEXT", help="why, for `treadle audit`")]
JsonOption = Annotated[bool, typer.Option("--json", help="one JSON object per line, for programs")]


class Shell:
    """One call of an operator command: the client, and how to answer."""

    def __init__(self, client: Client, *, json: bool, app: Treadle | None) -> None:
        self.client = client
        """Bound to the tenant of `--tenant`, if that is given."""
        self.tenant = tenant_of(client)
        """The tenant that the command is bound to. None: all tenants."""
        self.json = json
        self.app = app
        """The app of `--app`. None with `--url`: then types, codecs and limits are unknown."""

    def note_changes(self, because: str) -> None:
        """Let the audit say who changes something with this shell, if the store can keep it."""
        if "recording" in self.backend.capabilities:
            self.client = named_by_host(self.client, because)

    def note_about(self, about: str) -> None:
        """Let the audit say what was asked for, if not ids."""
        from treadle.client import noted

        self.client = noted(self.client, noted_about(note_of(self.client), about))

    @property
    def note(self) -> AuditNote | None:
        """Who changes something, for methods of the store."""
        return noted_for(note_of(self.client), self.tenant)

    async def connect(self, url: str | None = None) -> None:
        """Open the store. url: another store than that of the app, for the code of the app."""
        if url is not None:
            from .load import apply_schema

            self.client = self.client.elsewhere(url)
            apply_schema(self.client.backend, False)
        await self.client.connect()

    @property
    def backend(self) -> Backend:
        """The store. It knows no tenant: pass `shell.tenant` to its methods."""
        return self.client.backend

    async def now(self) -> float:
        """The time of the store's clock."""
        return await self.client.backend.now()

    def print(self, text: str = "", style: str = "") -> None:
        """Print a line for a person. With `--json`, nothing."""
        if not self.json:
            self.lines([plain(text)], style)

    def lines(self, lines: Iterable[str], style: str = "") -> None:
        """Print lines that are safe to print. With `--json`, nothing."""
        if not self.json:
            for line in lines:
                sys.stdout.write(styled(line, style) + "\n")

    def emit(self, value: object) -> None:
        """Print one JSON object on a line of its own."""
        sys.stdout.write(json_line(value) + "\n")

    def flush(self) -> None:
        """Let a reader at the other end of a pipe see what was printed."""
        sys.stdout.flush()

    def table(
        self,
        columns: Sequence[str],
        rows: Iterable[Sequence[str]],
        *,
        numbers: Sequence[str] = (),
        keep: Sequence[str] = (),
        drop: Sequence[str] = (),
    ) -> None:
        """Print a table for a person: see `table_lines`. On a terminal it is cut to its width."""
        width = terminal_width()
        self.lines(table_lines(columns, rows, width=width, numbers=numbers, keep=keep, drop=drop))

    def facts(self, facts: Iterable[tuple[str, Any]]) -> None:
        """Print names and texts in two columns."""
        self.lines(fact_lines(facts))

    def warn(self, text: str) -> None:
        """Print a line to standard error."""
        _report(text)


class PatientReader:
    """Reads from a store that may go away meanwhile. It says so once, and once that the store is back."""

    def __init__(self, shell: Shell) -> None:
        self._shell = shell
        self._away = False

    async def read(self, reading: Callable[[], Awaitable[T]]) -> T | None:
        """What `reading` returns. None: the store does not answer."""
        try:
            with all_stores():
                found = await reading()
        except AccessDenied:
            raise
        except StoreUnavailable as error:
            if not self._away:
                self._shell.warn(f"the store does not answer, trying again: {error}")
            self._away = True
            return None
        if self._away:
            self._shell.warn("the store answers again")
        self._away = False
        return found


Command = Callable[..., Awaitable[int | None]]


def operator_command(
    commands: typer.Typer,
    name: str | None = None,
    *,
    connect: bool = True,
    changes: bool = False,
    logs: bool = False,
    **settings: Any,
) -> Callable[[Command], Command]:
    """Register `async def command(shell, ...)`. It gets the options `--app`, `--url`, `--tenant` and `--json`
    besides its own. What it returns is the exit code. Errors of the store and of usage become one line.

    A parameter that is annotated with a dataclass, such as `ItemFilters`, stands for an option per field.
    connect: open the store first. False: the command calls `shell.connect`.
    changes: it changes something. Then it has the option `--because`, and what its client changes is noted.
    logs: write the log to standard error.
    """

    def register(function: Command) -> Command:
        called = _typer_function(function, connect=connect, changes=changes, logs=logs)
        commands.command(name, **settings)(called)
        return function

    return register


def operator_group(commands: typer.Typer, name: str, **settings: Any) -> Callable[[Command], typer.Typer]:
    """Register a command that also has commands of its own: `treadle schedules`, `treadle schedules pause`.
    Returns what those are registered with. Options may stand before or after the name of the inner one."""

    def register(function: Command) -> typer.Typer:
        group = typer.Typer(**settings)
        group.callback(invoke_without_command=True)(_typer_function(function, connect=True))
        commands.add_typer(group, name=name)
        return group

    return register


def _typer_function(
    function: Command, *, connect: bool, changes: bool = False, logs: bool = False
) -> Callable[..., None]:
    """The function that typer calls: with the options of the command, and those that all commands share."""
    own, made_of = _own_options(function)
    options = [*own, *([_BECAUSE] if changes else []), *_shared_options()]

    @functools.wraps(function)
    def call(context: typer.Context, **given: Any) -> None:
        if context.invoked_subcommand is None:  # that one runs instead
            because = given.pop("because", None)
            arguments = _with_outer(context, given)
            code = run_command(function, made_of, arguments, connect=connect, because=because, logs=logs)
            raise typer.Exit(code)

    call.__signature__ = inspect.Signature(options)  # type: ignore[attr-defined]
    del call.__wrapped__  # typer would look at the function instead
    call.__annotations__ = {each.name: each.annotation for each in options}
    return call


def _with_outer(context: typer.Context, given: dict[str, Any]) -> dict[str, Any]:
    """The options of a command. Those that all share may have been given to the command around it."""
    outer = {} if context.parent is None else context.parent.params
    return {**given, **{name: given[name] or outer.get(name) for name in SHARED}}


def _own_options(function: Command) -> tuple[list[inspect.Parameter], dict[str, type[Any]]]:
    """The options of a command's own, and its parameters that are made of several options."""
    own: list[inspect.Parameter] = []
    made_of: dict[str, type[Any]] = {}
    for each in list(inspect.signature(function, eval_str=True).parameters.values())[1:]:
        if dataclasses.is_dataclass(each.annotation) and isinstance(each.annotation, type):
            made_of[each.name] = each.annotation
            fields = inspect.signature(each.annotation, eval_str=True).parameters.values()
            own += (field.replace(kind=inspect.Parameter.KEYWORD_ONLY) for field in fields)
        else:
            own.append(each.replace(kind=inspect.Parameter.KEYWORD_ONLY))
    return own, made_of


_BECAUSE: Final = inspect.Parameter(
    "because", inspect.Parameter.KEYWORD_ONLY, default="", annotation=BecauseOption
)
SHARED: Final = ("app", "url", "tenant", "json")


def _shared_options() -> list[inspect.Parameter]:
    kind = inspect.Parameter.KEYWORD_ONLY
    return [
        inspect.Parameter("context", kind, annotation=typer.Context),
        inspect.Parameter("app", kind, default=None, annotation=AppOption),
        inspect.Parameter("url", kind, default=None, annotation=UrlOption),
        inspect.Parameter("tenant", kind, default=None, annotation=TenantOption),
        inspect.Parameter("json", kind, default=False, annotation=JsonOption),
    ]


def _combined(made_of: Mapping[str, type[Any]], given: dict[str, Any]) -> dict[str, Any]:
    """The arguments of a command: options are put into the dataclasses that they belong to. InputError."""
    arguments = dict(given)
    for name, made in made_of.items():
        fields = {field.name: arguments.pop(field.name) for field in dataclasses.fields(made)}
        arguments[name] = made(**fields)
    return arguments


def run_command(
    function: Command,
    made_of: Mapping[str, type[Any]],
    given: dict[str, Any],
    *,
    connect: bool = True,
    because: str | None = None,
    logs: bool = False,
) -> int:
    """Open the shell, call a command with it, and return the exit code. Errors become one line.

    made_of: parameters that are made of several options. connect: open the store first. because: why it
    changes something; None: it does not. logs: write the log to standard error.
    """
    from .load import CannotLoad, report

    shell: Shell | None = None
    missing = set[str]()
    if (reconfigure := getattr(sys.stdout, "reconfigure", None)) is not None:
        reconfigure(errors="backslashreplace")  # for a terminal that knows only ASCII
    try:
        arguments = _combined(made_of, given)
        shared = [arguments.pop(name) for name in SHARED]
        shell = _open_shell(*shared, logs=logs)
        if because is not None:
            shell.note_changes(because)
        with missing_stores() if because is None else contextlib.nullcontext(set[str]()) as missing:
            code = asyncio.run(_call(function, shell, arguments, connect)) or 0
        sys.stdout.flush()
        if missing:
            return _say(f"left out what did not answer: {listed(sorted(missing))}", AWAY)
    except CannotLoad as error:
        report(error)
        return USAGE
    except (DefinitionError, InputError) as error:
        return _say(str(error), USAGE)
    except AccessDenied as error:
        return _say(f"{_name(shell)} refuses it: {error}", REFUSED)
    except StoreUnavailable as error:
        name = f"the store {error.store}" if error.store else _name(shell)
        return _say(f"{name} is unavailable: {error}", AWAY)
    except SchemaError as error:
        return _say(f"{error} ({_name(shell)})", REFUSED)
    except TreadleError as error:
        return _say(str(error), AWAY if missing and isinstance(error, NotFound) else REFUSED)
    except BrokenPipeError:  # the reader of a pipe has seen enough
        with contextlib.suppress(OSError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        return INTERRUPTED
    return code


def _name(shell: Shell | None) -> str:
    return "the store" if shell is None else f"the store {store_name(shell.backend)}"


def _open_shell(app: str | None, url: str | None, tenant: str | None, json: bool, *, logs: bool) -> Shell:
    from treadle.app import Treadle

    from .load import client_of, which_store

    app, url = which_store(app, url)
    if app and url:
        raise InputError("--app and --url exclude each other: the app knows its store")
    if not app and not url:
        raise InputError(
            "say where the items are: --app shop.jobs:app, or --url postgresql://... (or set TREADLE_APP or "
            "TREADLE_URL)"
        )
    client = client_of(app, url, logs=logs)
    bound = client if tenant is None else client.tenant(tenant)
    return Shell(bound, json=json, app=client if isinstance(client, Treadle) else None)


async def _call(function: Command, shell: Shell, given: dict[str, Any], connect: bool) -> int | None:
    try:
        if connect:
            await shell.connect()
        return await function(shell, **given)
    finally:
        await shell.client.close()


def _say(message: str, code: int) -> int:
    _report(message)
    return code


def _report(message: str) -> None:
    typer.echo(f"treadle: {plain(message)}", err=True)


def fail(message: str, code: int = USAGE) -> NoReturn:
    """End the command with one line on standard error."""
    _report(message)
    raise typer.Exit(code)


VARIABLE = "TREADLE_ACTOR"


def named_by_host(client: Client, because: str) -> Client:
    """A client whose changes are noted: by `actor_here`."""
    return client.by(actor_here(), reason=because, address=_host())


def actor_here() -> str:
    """Who calls a command: TREADLE_ACTOR, or the user and the host of this process. `InputError`."""
    given = os.environ.get(VARIABLE)
    if not given:
        return f"{_user()}@{_host()}"
    try:
        return checked_note(given, "", "").actor
    except InputError as error:
        raise InputError(message_of(error).replace("actor=", f"{VARIABLE}=", 1)) from None


def _host() -> str:
    return _printable(socket.gethostname())


def _user() -> str:
    try:
        return _printable(getpass.getuser())
    except (KeyError, OSError, ImportError):  # the system knows no name for this user
        return f"uid-{os.getuid()}"


def _printable(text: str) -> str:
    return "".join(each if each.isprintable() else "?" for each in text)[:90] or "unknown"
