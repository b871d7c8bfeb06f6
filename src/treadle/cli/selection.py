"""Selection: which items a command changes: those named by ids, or those that filters find."""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated, Final, Protocol

import msgspec
import typer

from treadle.base.ids import check_id, check_name
from treadle.errors import InputError, NotFound
from treadle.item import Filter, ItemState
from treadle.operate.portions import Refusal, WantedItem, read_named

from .shell import Shell

_RATE = re.compile(r"(\d+(?:\.\d+)?)(?:/(s|min|m|h))?")
_PER: Final = {"s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}

IdsArgument = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="ID",
        help="the ids of items. -: read them from standard input, one per line, or lines of --json",
    ),
]


@dataclass(frozen=True)
class Selection:
    """The options of commands that change items, besides the filters."""

    ids: IdsArgument = None
    everything: Annotated[
        bool, typer.Option("--all", help="all items that can be changed so, if no filter is given")
    ] = False
    yes: Annotated[bool, typer.Option("--yes", "-y", help="do not count and do not ask")] = False
    dry_run: Annotated[bool, typer.Option("--dry-run", help="say what would happen, and change nothing")] = (
        False
    )
    limit: Annotated[int | None, typer.Option("--limit", min=1, help="the most items, oldest first")] = None
    rate: Annotated[
        str | None, typer.Option("--rate", metavar="RATE", help="at most so many: 50/s, 600/min, 1000/h")
    ] = None

    background: Annotated[
        bool,
        typer.Option(
            "--background",
            help="start a bulk action, which workers carry out, and print its id: `treadle bulk`",
        ),
    ] = False

    def __post_init__(self) -> None:
        read_rate(self.rate)


def read_rate(text: str | None) -> float | None:
    """Items per second. InputError."""
    if text is None:
        return None
    parts = _RATE.fullmatch(text.strip().lower())
    rate = 0.0 if parts is None else float(parts[1]) / _PER[parts[2] or "s"]
    if not 0 < rate < math.inf:
        raise InputError.of("--rate", text, "is no rate: write 50/s, 600/min or 1000/h")
    return rate


# -------------------------------------------------------------------------------------------------- ids


def read_wanted(shell: Shell, given: Iterable[str]) -> list[WantedItem]:
    """The items that arguments name. `-` stands for what standard input names."""
    wanted: list[WantedItem] = []
    for text in given:
        if text == "-":
            wanted += (_wanted(shell, line) for line in map(str.strip, sys.stdin) if line)
        else:
            wanted.append(WantedItem(check_id(text), shell.tenant))
    return list(dict.fromkeys(wanted))


class _Line(msgspec.Struct):
    """A line of `--json`."""

    id: str
    tenant: str | None = None


def _wanted(shell: Shell, line: str) -> WantedItem:
    if not line.startswith("{"):
        return WantedItem(check_id(line), shell.tenant)
    try:
        read = msgspec.json.decode(line.encode("utf-8", "replace"), type=_Line)
    except msgspec.DecodeError as error:
        raise InputError(f"a line of standard input is no item: {error}") from None
    tenant = None if read.tenant is None else check_name(read.tenant, "tenant")
    if shell.tenant is not None and tenant not in (None, shell.tenant):
        raise NotFound(check_id(read.id))
    return WantedItem(check_id(read.id), tenant or shell.tenant)


# ---------------------------------------------------------------------------------------------- sources


class Source(Protocol):
    """Hands out the items to change, portion by portion."""

    async def take(self, count: int) -> tuple[list[ItemState], list[Refusal]] | None:
        """Up to `count` items, and those that were named and do not exist. None: there are no more."""
        ...


class NamedSource:
    """Items that were named."""

    def __init__(self, shell: Shell, wanted: Sequence[WantedItem]) -> None:
        self._shell = shell
        self._left = list(wanted)

    async def take(self, count: int) -> tuple[list[ItemState], list[Refusal]] | None:
        now, self._left = self._left[:count], self._left[count:]
        if not now:
            return None
        return await read_named(self._shell.backend, now)


class FilterSource:
    """Items that a filter finds, oldest first, each once: also if an item is changed, and then is again as it
    was. What is queued after the start is not taken."""

    def __init__(self, shell: Shell, where: Filter, limit: int | None) -> None:
        self._shell = shell
        self._where = where
        self._left = limit
        self._cursor: str | None = None
        self._is_done = False

    async def take(self, count: int) -> tuple[list[ItemState], list[Refusal]] | None:
        if self._left is not None:
            count = min(count, self._left)
        if self._is_done or count == 0:
            return None
        page = await self._shell.backend.list(
            self._where, limit=count, cursor=self._cursor, oldest_first=True
        )
        self._cursor, self._is_done = page.cursor, page.cursor is None
        if self._left is not None:
            self._left -= len(page.items)
        return (list(page.items), []) if page.items else None
