"""`treadle check`: whether this code can read what is stored. It is the gate before a deploy."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Final

import msgspec
import typer
from msgspec.structs import replace

from treadle.base.wording import close_names, first_line, plain, plural
from treadle.define.dependency import BUILT_IN, DEPENDENCY
from treadle.define.work_type import AnyWorkType
from treadle.errors import InputError
from treadle.item import Filter, Item, ItemState, Ref, Status
from treadle.operate.filters import names_in, read_statuses
from treadle.operate.item_json import why_not
from treadle.operate.why.wording import command, tenant_option

from .exit_codes import UNHEALTHY
from .filters import StatusOption
from .shell import Shell, operator_command
from .text import Cell, speaks_unicode, styled

CHECKED: Final[tuple[Status, ...]] = ("blocked", "scheduled", "ready", "running", "dead")
ENDED: Final[tuple[Status, ...]] = ("success", "cancelled")
MOST_ERRORS: Final = 3
"""Different errors that are shown for each type."""

_items = msgspec.json.Decoder(tuple[Item, ...])


def register(commands: typer.Typer) -> None:
    operator_command(commands, "check", connect=False)(check)


def type_of(types: Mapping[str, AnyWorkType], name: str) -> AnyWorkType | None:
    """The type of this name, or with this alias."""
    return types.get(name) or next((each for each in types.values() if name in each.aliases), None)


class TypeCheck:
    """What was found for the items that are stored under one name."""

    def __init__(self, types: Mapping[str, AnyWorkType], name: str, elsewhere: bool) -> None:
        type = type_of(types, name)
        self.name = name
        self.elsewhere = elsewhere
        """Other code runs it: it is not looked at."""
        self.unknown = type is None and name not in BUILT_IN and not elsewhere
        self.declared_only = type is not None and not type.has_handler
        self.alias_of = None if type is None or type.name == name else type.name
        self.upcast = type is not None and type.options.get("upcast") is not None
        self.close = close_names(name, types, 2) if self.unknown else []
        self.looked_at = 0
        self.steps = 0
        self._broken: set[Ref] = set()
        self.errors: dict[str, tuple[ItemState, int]] = {}
        """By message: the first item with it, and how many have it."""

    @property
    def is_fine(self) -> bool:
        return self.broken == 0

    @property
    def broken(self) -> int:
        return len(self._broken)

    def add(self, item: ItemState, error: str) -> None:
        """Count an item. error: why it cannot be read, or ""."""
        self.looked_at += 1
        if error:
            self.broke(item, error)

    def broke(self, item: ItemState, error: str) -> None:
        self._broken.add((item.tenant, item.id))
        first, count = self.errors.get(error, (item, 0))
        self.errors[error] = (first, count + 1)

    @property
    def worst(self) -> list[tuple[str, ItemState, int]]:
        """The most frequent errors: message, first item, count."""
        found = [(error, first, count) for error, (first, count) in self.errors.items()]
        return sorted(found, key=lambda each: -each[2])[:MOST_ERRORS]

    def text(self) -> str:
        if self.elsewhere:
            return "run elsewhere, not looked at"
        notes = [f"alias of {self.alias_of}"] if self.alias_of else []
        notes += ["through upcast"] if self.upcast else []
        notes += ["declared here, not run"] if self.declared_only else []
        return ", ".join(notes)

    def json(self) -> dict[str, Any]:
        return {
            "type": self.name,
            "fine": self.is_fine,
            "looked_at": self.looked_at,
            "steps": self.steps,
            "breaks": self.broken,
            "unknown": self.unknown,
            "elsewhere": self.elsewhere,
            "alias_of": self.alias_of,
            "upcast": self.upcast,
            "errors": [
                {"error": error, "id": first.id, "count": count} for error, first, count in self.worst
            ],
        }


async def check(
    shell: Shell,
    against: Annotated[
        str | None,
        typer.Option("--against", metavar="URL", help="look at this store, not at that of the app"),
    ] = None,
    sample: Annotated[
        int, typer.Option("--sample", min=4, max=2000, help="how many items of each type to read at most")
    ] = 200,
    status: StatusOption = None,
    elsewhere: Annotated[
        list[str] | None,
        typer.Option("--elsewhere", metavar="TYPE", help="types that other code runs, as in 'billing.*'"),
    ] = None,
) -> int | None:
    """Read a sample of what is stored with the code of the app, and say by type what would break.

    It reads the arguments of open and dead items, the oldest and the newest of each type, and the steps that
    these have recorded, by the types that the source of their handler names. Aliases and upcast
    count as fine. Types that the app does not have would wait: that breaks, unless --elsewhere names them.
    The exit code is 4 if something would break. Nothing is changed.
    """
    if shell.app is None:
        raise InputError(
            "check reads what is stored with the code of an app: give it with --app shop.jobs:app"
        )
    statuses = read_statuses(status or (), "--status") or CHECKED
    await shell.connect(against)
    patterns = names_in(elsewhere)
    checks: dict[str, TypeCheck] = {}
    for name in await _stored_types(shell, statuses):
        found = checks[name] = _new_check(shell, name, patterns)
        if not found.elsewhere:
            for item in await _sample(shell, name, statuses, sample):
                _check_item(shell, item, item.type, item.input, checks, patterns)
                if item.has_steps and not found.unknown:
                    await _check_steps(shell, item, found)
    done = sorted(checks.values(), key=lambda each: (each.is_fine, each.name))
    if shell.json:
        for each in done:
            shell.emit(each.json())
    else:
        _print(shell, done)
    return None if all(each.is_fine for each in done) else UNHEALTHY


def _new_check(shell: Shell, name: str, patterns: Sequence[str]) -> TypeCheck:
    types = shell.client.types
    known = type_of(types, name) is not None
    elsewhere = not known and any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)
    return TypeCheck(types, name, elsewhere)


async def _stored_types(shell: Shell, statuses: Sequence[Status]) -> list[str]:
    """The names under which items are stored: all of them. This reads every item that has such a status."""
    ended = any(status in statuses for status in ENDED)
    counts = await shell.backend.counts(tenant=shell.tenant, ended=ended)
    return sorted({count.type for count in counts if count.status in statuses})


async def _sample(shell: Shell, type: str, statuses: Sequence[Status], most: int) -> list[ItemState]:
    """The oldest and the newest items of a type: of those open, and of those dead."""
    found: dict[tuple[str, str], ItemState] = {}
    dead: tuple[Status, ...] = ("dead",) if "dead" in statuses else ()
    others: tuple[Status, ...] = tuple(each for each in statuses if each != "dead")
    parts = [some for some in (others, dead) if some]
    for some in parts:
        where = Filter(tenant=shell.tenant, type=type, status=some)
        for oldest_first in (True, False):
            limit = most // (2 * len(parts))
            page = await shell.backend.list(where, limit=limit, oldest_first=oldest_first)
            found.update(((item.tenant, item.id), item) for item in page.items)
    return list(found.values())


def _check_item(
    shell: Shell,
    item: ItemState,
    type: str,
    input: bytes,
    checks: dict[str, TypeCheck],
    patterns: Sequence[str],
) -> None:
    """Read arguments: those of an item, or of one of the works that it holds back, if it is a dependency."""
    if type not in checks:
        checks[type] = _new_check(shell, type, patterns)
    found = checks[type]
    if found.elsewhere:
        return
    if type == DEPENDENCY.name:
        try:
            inner = _items.decode(input)
        except (msgspec.DecodeError, RecursionError) as error:
            found.add(item, str(error))
            return
        for each in inner:
            _check_item(shell, item, each.type, each.input, checks, patterns)
    found.add(item, _why_broken(shell, found, replace(item, type=type, input=input)))


def _why_broken(shell: Shell, found: TypeCheck, item: ItemState) -> str:
    if found.unknown:
        close = f" (there is {' and '.join(found.close)})" if found.close else ""
        return f"the app has no work type of this name, and no alias{close}"
    if type_of(shell.client.types, found.name) is None:
        return ""  # built in
    try:
        shell.client.values.arguments(item)
    except Exception as error:  # noqa: BLE001  a codec or an upcast of the user may raise anything
        return why_not(error)
    return ""


async def _check_steps(shell: Shell, item: ItemState, found: TypeCheck) -> None:
    """Read the steps that an item has recorded, as its next attempt would."""
    (recorded,) = await shell.backend.steps([item.id], tenant=item.tenant)
    for name, problem in () if recorded is None else shell.client.values.check_steps(item, recorded):
        found.steps += 1
        if problem:
            found.broke(item, f"the step {name!r}: {problem}")


def _print(shell: Shell, checks: Sequence[TypeCheck]) -> None:
    if not checks:
        shell.print("nothing is stored that could break")
        return
    shell.table(
        ("TYPE", "READ", "BREAK", "WHAT"),
        [
            (
                each.name,
                f"{each.looked_at:,}",
                Cell(
                    f"{each.broken:,}" if each.broken else ("·" if speaks_unicode() else "."),
                    "red" if each.broken else "dim",
                ),
                Cell(each.text(), "dim"),
            )
            for each in checks
        ],
        numbers=("READ", "BREAK"),
    )
    shell.lines(line for each in checks for line in _error_lines(each))
    broken = [each for each in checks if not each.is_fine]
    shell.print()
    if broken:
        shell.print(f"{plural(len(broken), 'type')} would break", "red")
    else:
        shell.print("nothing would break", "green")


def _error_lines(check: TypeCheck) -> Iterator[str]:
    if check.is_fine:
        return
    yield ""
    yield styled(plain(check.name), "bold")
    for error, first, count in check.worst:
        yield f"  {plural(count, 'item')}: {first_line(error)}"
        yield styled(f"  {plain(command('show', first.id, tenant=tenant_option(first.tenant)))}", "dim")
