"""Filters: the options of commands that select items, and how their texts are read.

A command takes all of them by one parameter: `async def command(shell, filters: ItemFilters)`.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import asdict, dataclass
from typing import Annotated, Final

import msgspec
import typer
from msgspec.structs import replace

from treadle.item import Filter, ItemState, Page, Status
from treadle.operate.filters import REASONS, STATUS_GROUPS, STATUSES, is_duration, read_words
from treadle.store.rules.listing import LARGEST_PAGE

from .completion import complete_queue, complete_type, complete_words
from .names import whole_mark
from .shell import Shell

StatusOption = Annotated[
    list[str] | None,
    typer.Option(
        "--status",
        metavar="STATUS",
        autocompletion=complete_words(*STATUSES, *STATUS_GROUPS),
        help=f"only items in these statuses: {', '.join(STATUSES)}; open and ended stand for several. "
        "Separate by commas, or repeat",
    ),
]
TypeOption = Annotated[
    str | None,
    typer.Option("--type", help="only items of this work type", autocompletion=complete_type),
]
QueueOption = Annotated[
    str | None, typer.Option("--queue", help="only items of this queue", autocompletion=complete_queue)
]
WorkflowOption = Annotated[str | None, typer.Option("--workflow", help="only items of this workflow")]
GroupOption = Annotated[str | None, typer.Option("--group", metavar="ID", help="only items of this group")]
KeyOption = Annotated[str | None, typer.Option("--key", help="only items with this key")]
ReasonOption = Annotated[
    str | None,
    typer.Option(
        "--reason",
        help=f"only items that died of this: {', '.join(REASONS)}",
        autocompletion=complete_words(*REASONS),
    ),
]
MarkOption = Annotated[
    str | None,
    typer.Option(
        "--mark", help="only items that died alike: a mark, as `treadle dead` shows it, or how one begins"
    ),
]
ReleaseOption = Annotated[
    str | None, typer.Option("--release", help="only items that failed last under this release")
]
StoreOption = Annotated[
    str | None, typer.Option("--store", metavar="NAME", help="only what this one of several stores has")
]
HeldOption = Annotated[bool, typer.Option("--held", help="only items that are held")]
SinceOption = Annotated[
    str | None,
    typer.Option("--since", metavar="TIME", help="queued then or later: 2h (ago), or 2026-11-16T09:30 (UTC)"),
]
UntilOption = Annotated[str | None, typer.Option("--until", metavar="TIME", help="queued before then")]
WhereOption = Annotated[
    list[str] | None,
    typer.Option(
        "--where", help="a condition on what is inside, as in 'input.user_id=42'. Repeat for several"
    ),
]
LimitOption = Annotated[int, typer.Option("--limit", min=1, help="the most items")]
RevealOption = Annotated[
    bool, typer.Option("--reveal", help="show passwords, tokens and other secrets, not ***")
]
CursorOption = Annotated[str | None, typer.Option("--cursor", help="go on where an earlier call ended")]

# When and where items run, for `run` and `update`.
DelayOption = Annotated[
    str | None, typer.Option("--delay", metavar="DURATION", help="start at the earliest so long from now")
]
RunAtOption = Annotated[
    str | None, typer.Option("--run-at", metavar="TIME", help="start at the earliest then")
]
PriorityOption = Annotated[int | None, typer.Option("--priority", help="a higher number goes first")]


@dataclass(frozen=True)
class ItemFilters:
    """The options that select items. All of those given must hold. Wrong ones are refused before anything is
    asked of the store."""

    status: StatusOption = None
    type: TypeOption = None
    queue: QueueOption = None
    workflow: WorkflowOption = None
    group: GroupOption = None
    key: KeyOption = None
    reason: ReasonOption = None
    mark: MarkOption = None
    release: ReleaseOption = None
    held: HeldOption = False
    since: SinceOption = None
    until: UntilOption = None
    store: StoreOption = None

    def __post_init__(self) -> None:
        self.filter(tenant=None, now=0.0)

    @property
    def is_empty(self) -> bool:
        """Whether every item matches."""
        return self == ItemFilters()

    @property
    def needs_clock(self) -> bool:
        """Whether `filter` needs the time of the store's clock."""
        return any(text is not None and is_duration(text) for text in (self.since, self.until))

    def filter(self, *, tenant: str | None, now: float, status: tuple[Status, ...] = ()) -> Filter:
        """As the store reads it. InputError names the option at fault.

        status: used if `--status` is not given.
        """
        found = read_words(asdict(self), now=now, prefix="--", status=status)
        return replace(found, tenant=tenant)


@dataclass(frozen=True)
class UpdateFilters:
    """The options that select items for `treadle update`, where `--queue` names another queue."""

    status: StatusOption = None
    type: TypeOption = None
    from_queue: Annotated[
        str | None,
        typer.Option("--from-queue", help="only items of this queue", autocompletion=complete_queue),
    ] = None
    workflow: WorkflowOption = None
    group: GroupOption = None
    key: KeyOption = None
    since: SinceOption = None
    until: UntilOption = None
    store: StoreOption = None

    def __post_init__(self) -> None:
        self.plain()

    def plain(self) -> ItemFilters:
        """The same as other commands have it."""
        given = asdict(self)
        return ItemFilters(queue=given.pop("from_queue"), **given)


PAGE: Final = 500
"""Items per call of the store."""


async def filter_of(shell: Shell, filters: ItemFilters, status: tuple[Status, ...] = ()) -> Filter:
    """The filter for the store: with the tenant of the shell, times by the store's clock, and a whole mark.

    status: used if `--status` is not given.
    """
    now = await shell.now() if filters.needs_clock else 0.0
    where = filters.filter(tenant=shell.tenant, now=now, status=status)
    if where.mark is None:
        return where
    return msgspec.structs.replace(where, mark=await whole_mark(shell, where.mark))


async def pages(
    shell: Shell,
    where: Filter,
    *,
    most: int | None = None,
    oldest_first: bool = False,
    history: bool = False,
    size: int = PAGE,
) -> AsyncGenerator[Page]:
    """Yield pages until there are no more, or with `most` items in all. The cursor of the last one says
    whether there are more."""
    cursor: str | None = None
    left = most
    while left is None or left > 0:
        limit = size if left is None else min(size, left)
        page = await shell.backend.list(
            where, limit=limit, cursor=cursor, oldest_first=oldest_first, history=history
        )
        yield page
        cursor = page.cursor
        if cursor is None:
            return
        if left is not None:
            left -= len(page.items)


async def first_items(shell: Shell, where: Filter, most: int) -> tuple[list[ItemState], bool]:
    """Up to `most` items, oldest first, and whether there are more."""
    items: list[ItemState] = []
    more = True
    async for page in pages(shell, where, most=most, oldest_first=True, size=LARGEST_PAGE):
        items += page.items
        more = page.cursor is not None
    return items, more
