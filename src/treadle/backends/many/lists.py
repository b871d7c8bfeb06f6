"""Lists over several stores: merged by the instants of their entries.

A cursor has one of each store, by name, and which entries of that page were shown last: pages are read again.
So no entry that exists throughout is skipped or shown twice, also if a store does not answer in between: its
place stays as it was.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, Final, Generic, NamedTuple, TypeVar

import msgspec
from msgspec.structs import replace

from treadle.backend import note_missing
from treadle.errors import InputError, StoreUnavailable
from treadle.item import Filter, GroupFilter, GroupSummary, ItemState, Page
from treadle.records import AuditEntry, AuditPage

from .member import TOKEN_BITS, Member
from .places import TenantPlaces
from .read import tagged

T = TypeVar("T")

MARK: Final = "many."
"""How a cursor begins."""
MOST: Final = 1000
KEPT: Final = 5
"""Entries that were shown last, in a cursor. The last one may be removed before the page is read again."""


class ListPlace(msgspec.Struct, frozen=True, array_like=True):
    """How far the entries of one store were shown."""

    cursor: str | None = ""
    """Of the page that is being shown. Empty: the first one. None: there are no more."""
    last: tuple[str, ...] = ()
    """The names of the entries of this page that were shown last."""
    at: float = 0.0
    """The instant of the last one."""


_decode: Final = msgspec.json.Decoder(dict[str, ListPlace])


class Entries(NamedTuple, Generic[T]):
    """A page of one store, or of all."""

    entries: Sequence[T]
    cursor: str | None
    reached: float | None = None
    """With a reach: how far was looked, if not at all."""


Read = Callable[[Member, str | None], Awaitable[Entries[T]]]


class EntryOrder(NamedTuple, Generic[T]):
    """How entries are ordered and named."""

    at: Callable[[T], float]
    name: Callable[[T], str]
    sign: int = -1
    """1: the oldest first."""


class Stream(Generic[T]):
    """The entries of one store, page by page. once: read one page only."""

    def __init__(
        self,
        read: Callable[[str | None], Awaitable[Entries[T]]],
        place: ListPlace,
        order: EntryOrder[T],
        *,
        once: bool,
    ) -> None:
        self._read = read
        self._order = order
        self._once = once
        self._cursor = place.cursor
        self._last, self._at = place.last, place.at
        self._left: list[T] | None = None
        """What of the page was not shown. None: it was not read."""
        self._page: Entries[T] | None = None
        """The page that was read last."""
        self._is_missing = False
        self._is_found = False
        """Whether the page has what was shown last, or comes after it."""

    async def head(self) -> T | None:
        """The next entry. None: there is none, or no more may be read."""
        while self._cursor is not None and not self.is_cut and not self._is_missing:
            if self._left is None:
                try:
                    self._page = await self._read(self._cursor or None)
                except StoreUnavailable as error:
                    note_missing(error)
                    self._is_missing = True
                    return None
                self._left = self._unshown(self._page.entries)
            if self._left:
                return self._left[0]
            assert self._page is not None
            self._cursor, self._left = self._page.cursor, None
            if self._is_found:
                self._last = ()
        return None

    def _unshown(self, entries: Sequence[T]) -> list[T]:
        """What of a page is new, if it was read before."""
        if not self._last:
            self._is_found = True
            return list(entries)
        names = [self._order.name(entry) for entry in entries]
        known = [names.index(name) for name in self._last if name in names]
        sign, at = self._order.sign, self._at
        if known:
            left = list(entries[max(known) + 1 :])
        else:
            left = [entry for entry in entries if sign * self._order.at(entry) >= sign * at]
        self._is_found = bool(known or left)
        return left

    def take(self) -> None:
        """The next entry is shown."""
        assert self._left is not None
        entry = self._left.pop(0)
        self._last = (*self._last, self._order.name(entry))[-KEPT:]
        self._at = self._order.at(entry)

    @property
    def place(self) -> ListPlace:
        """How far it was shown."""
        if self._cursor is None or self._left or self._is_missing or self._page is None:
            return ListPlace(self._cursor, self._last, self._at)
        if self._left is None:
            return ListPlace(self._cursor, self._last, self._at)
        return ListPlace(self._page.cursor)

    @property
    def is_cut(self) -> bool:
        """Whether it may have more, but must not look."""
        return self._once and self._page is not None and self._left is None and self._cursor is not None

    @property
    def reached(self) -> float:
        """How far it has looked."""
        assert self._page is not None
        return self._order.at(self._page.entries[-1]) if self._page.reached is None else self._page.reached


async def merged(
    members: Sequence[Member],
    read: Read[T],
    cursor: str | None,
    limit: int,
    order: EntryOrder[T],
    *,
    once: bool = False,
) -> Entries[T]:
    """Up to `limit` entries of all stores. once: read one page of each store, then stop where one of them
    could go on."""
    places, sign = _places(cursor, members), order.sign
    streams = [
        Stream(partial(read, member), places.get(member.name, ListPlace()), order, once=once)
        for member in members
    ]
    out: list[T] = []
    while True:
        heads = [
            (sign * order.at(head), number, head)
            for number, stream in enumerate(streams)
            if (head := await stream.head()) is not None
        ]
        cut = min(
            ((sign * stream.reached, number) for number, stream in enumerate(streams) if stream.is_cut),
            default=None,
        )
        if not heads and cut is None:
            return Entries(out, None)
        best = min(heads, key=lambda each: each[:2], default=None)
        if len(out) == limit or best is None or (cut is not None and cut < best[:2]):
            there = {member.name: stream.place for member, stream in zip(members, streams, strict=True)}
            reached = None if cut is None or len(out) == limit else sign * cut[0]
            return Entries(out, MARK + base64.urlsafe_b64encode(msgspec.json.encode(there)).decode(), reached)
        out.append(best[2])
        streams[best[1]].take()


def _places(cursor: str | None, members: Sequence[Member]) -> dict[str, ListPlace]:
    if cursor is None:
        return {}
    try:
        if not cursor.startswith(MARK):
            raise ValueError
        places = _decode.decode(base64.b64decode(cursor[len(MARK) :].encode(), b"-_", validate=True))
        if not places.keys() <= {member.name for member in members}:
            raise ValueError
    except (ValueError, binascii.Error, msgspec.DecodeError):
        raise InputError.of(
            "cursor", cursor, "is not a cursor of this list: begin again without one"
        ) from None
    return places


def _name(entry: ItemState) -> str:
    return f"{entry.tenant} {entry.id}"


def _name_of_group(entry: GroupSummary) -> str:
    return f"{entry.tenant} {entry.id}"


def _queued_at(entry: ItemState) -> float:
    return entry.queued_at


def _summed_at(entry: GroupSummary) -> float:
    return entry.queued_at or 0.0


def _audited_at(entry: AuditEntry) -> float:
    return entry.at


def _number(entry: AuditEntry) -> str:
    return str(entry.no)


class ManyLists:
    def __init__(self, places: TenantPlaces) -> None:
        self._places = places

    async def list(
        self,
        where: Filter,
        *,
        limit: int = 100,
        cursor: str | None = None,
        oldest_first: bool = False,
        history: bool = False,
        reach: int | None = None,
    ) -> Page:
        options: dict[str, Any] = {"oldest_first": oldest_first, "history": history, "reach": reach}
        most = max(1, min(limit, MOST))
        inner = replace(where, store=None)

        async def read(member: Member, after: str | None) -> Entries[ItemState]:
            page: Page = await member.call("list", inner, limit=most, cursor=after, **options)
            return Entries([tagged(state, member) for state in page.items], page.cursor, page.reached_at)

        found = await merged(
            await self._asked(where),
            read,
            cursor,
            most,
            EntryOrder(_queued_at, _name, 1 if oldest_first else -1),
            once=reach is not None,
        )
        return Page(tuple(found.entries), found.cursor, found.reached)

    async def groups(
        self, where: GroupFilter, *, limit: int = 100, cursor: str | None = None, reach: int | None = None
    ) -> Page[GroupSummary]:
        return await self._summaries("groups", where, limit, cursor, reach)

    async def workflows(
        self, where: GroupFilter, *, limit: int = 100, cursor: str | None = None, reach: int | None = None
    ) -> Page[GroupSummary]:
        return await self._summaries("workflows", where, limit, cursor, reach)

    async def _summaries(
        self, verb: str, where: GroupFilter, limit: int, cursor: str | None, reach: int | None
    ) -> Page[GroupSummary]:
        most = max(1, min(limit, MOST))
        inner = replace(where, store=None)

        async def read(member: Member, after: str | None) -> Entries[GroupSummary]:
            page: Page[GroupSummary] = await member.call(verb, inner, limit=most, cursor=after, reach=reach)
            items = [replace(each, store=member.name) for each in page.items]
            return Entries(items, page.cursor, page.reached_at)

        found = await merged(
            await self._asked(where),
            read,
            cursor,
            most,
            EntryOrder(_summed_at, _name_of_group),
            once=reach is not None,
        )
        return Page(tuple(found.entries), found.cursor, found.reached)

    async def audits(
        self,
        *,
        tenant: str | None = None,
        bulk: str | None = None,
        limit: int = 100,
        cursor: str | None = None,
    ) -> AuditPage:
        """An entry is in the store of the change. Orders are at home."""

        async def read(member: Member, after: str | None) -> Entries[AuditEntry]:
            page: AuditPage = await member.call("audits", tenant=tenant, bulk=bulk, limit=limit, cursor=after)
            shift = member.number << TOKEN_BITS
            return Entries([replace(each, no=each.no + shift) for each in page.entries], page.cursor)

        order = EntryOrder(_audited_at, _number)
        found = await merged(self._places.members, read, cursor, limit, order)
        return AuditPage(tuple(found.entries), found.cursor)

    async def _asked(self, where: Filter | GroupFilter) -> Sequence[Member]:
        """The stores that may have what is asked for. A tenant without a place has nothing."""
        having = await self._places.having(where.tenant) or [self._places.home]
        return self._places.asked(having, where.store)
