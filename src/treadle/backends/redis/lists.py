"""Lists: items by filter, page by page.

A list walks along the narrowest index that holds all items asked for, in the order of their numbers, in
portions that keep the server busy for a short time only. Without an index it walks along the numbers
themselves, a page of 1,000 at a time. `pages` says how many items a page has, and how many of them have
ended: empty pages are skipped, and pages without open items if only these are asked for. The counts say how
many items of a tenant, queue or type there are: a walk ends when it has found them all.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from struct import Struct as Bytes
from typing import Any, Final

from msgspec import msgpack

from treadle.item import MOST_COUNTED, Filter, GroupFilter, GroupSummary, ItemState, Page
from treadle.store.rules.listing import (
    OUTCOMES,
    GroupsPlan,
    ListPlan,
    Source,
    WalkEnd,
    plan_groups,
    plan_list,
)

from .item_bytes import LETTERS, REASONS, item_state, read_item
from .link import RedisLink
from .read import UNFOLDED, RedisRead, full_state
from .scripts import RedisScript

_LIST: Final = RedisScript("list")
_LIST_REST: Final = RedisScript("list_rest")
_LIST_WHOLE: Final = RedisScript("list_whole")
_LIST_START: Final = RedisScript("list_start")
_LIST_GROUPS: Final = RedisScript("list_groups")
_LIST_WORKFLOWS: Final = RedisScript("list_workflows")

_MOST_ROWS: Final = 250
"""Of one call."""
_PAGES: Final = 8
"""How many pages of numbers a call is given."""
_PAGE_SIZE: Final = 1000
_SCANNED: Final = 5000
_COUNTED_AFTER: Final = 800
"""Items that are looked at before it is read how many there are."""
_COUNTED_FOR: Final = 5000
"""Items that would be looked at after that, at least."""
_MOST_TRIED: Final = 20_000
"""Items that died under a release, and items that have failed: these are read at once."""
_NUMBERS: Final = 1000
"""How many of them a call is given."""
_ENDED: Final = 1
_TOO_MANY: Final = 2
_BEYOND: Final = 3
_DOUBLE: Final = Bytes(">d")

_encode: Final = msgpack.Encoder().encode


_PLACES: Final[dict[Source, tuple[str, str]]] = {
    "group": ("group", ""),
    "key": ("index", "keyed"),
    "workflow": ("index", "workflows"),
    "mark": ("index", "marked"),
    "killing": ("index", "killing"),
    "held": ("held", ""),
    "dead": ("index", "dead"),
    "cancelled": ("index", "cancelled"),
    "open": ("open", ""),
    "all": ("pages", ""),
}
"""Where the script looks for the items of a source: its `source`, and the `index`."""
_WIDE: Final = frozenset((_PLACES["all"], _PLACES["open"], _PLACES["dead"]))
"""Places where most items are of other releases."""
_OF_KIND: Final = ("tenant", "queue", "type")
"""Conditions that a kind meets, or does not."""
_LABELS: Final = {"keyed": "key", "workflows": "workflow", "marked": "mark"}
"""Fields whose values are the parts of an index."""


class RedisLists(RedisRead):
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
        plan = plan_list("redis", where, limit=limit, cursor=cursor, oldest_first=oldest_first)
        place = plan.narrowest(_PLACES)
        if place is None:
            return Page(())
        walk = ListWalk(self._link, plan, *place, history=history)
        await walk.find(plan.most + 1, None if reach is None else max(1, reach))
        return plan.page(walk.numbers, walk.states, walk.end)

    async def groups(
        self, where: GroupFilter, *, limit: int = 100, cursor: str | None = None, reach: int | None = None
    ) -> Page[GroupSummary]:
        plan = plan_groups("redis", "groups", where, limit=limit, cursor=cursor, reach=reach)
        return await self._groups_page(plan, _LIST_GROUPS)

    async def workflows(
        self, where: GroupFilter, *, limit: int = 100, cursor: str | None = None, reach: int | None = None
    ) -> Page[GroupSummary]:
        plan = plan_groups("redis", "workflows", where, limit=limit, cursor=cursor, reach=reach)
        return await self._groups_page(plan, _LIST_WORKFLOWS)

    async def _groups_page(self, plan: GroupsPlan, script: RedisScript) -> Page[GroupSummary]:
        where, at, left, end = plan.where, plan.before, plan.reach, None
        fields = {"tenant": where.tenant, "type": where.type, "since": where.since, "until_": where.until}
        request: dict[str, Any] = {name: value for name, value in fields.items() if value is not None}
        request["outcomes"] = "".join(str(OUTCOMES.index(outcome)) for outcome in plan.outcomes)
        request["counted"] = MOST_COUNTED
        found: list[tuple[int, GroupSummary]] = []
        while len(found) <= plan.most:
            if left == 0:
                return plan.page(found, end)
            request["most"] = plan.most + 1 - len(found)
            request |= {} if at is None else {"bound": at}
            request |= {} if left is None else {"reach": left}
            answer = await self._link.run(script, [_encode(request)], on="read")
            ended, position, looked, reached, rows = answer
            found += [(int.from_bytes(row[0], "big"), _group_summary(row)) for row in rows]
            if ended or not position:
                break
            at = int.from_bytes(position, "big")
            end = WalkEnd(at, _DOUBLE.unpack(reached)[0] if reached else 0.0)
            left = None if left is None else left - looked
        return plan.page(found)


def _group_summary(row: Sequence[Any]) -> GroupSummary:
    """As list_groups.lua answers it."""
    _, id, tenant, type, outcome, open, total, failed, queued_at, ended_at, death, capped = row
    return GroupSummary(
        id=id.decode(),
        tenant=tenant.decode(),
        type=type.decode(),
        outcome=OUTCOMES[int(outcome)],
        open=open,
        total=total,
        failed=failed,
        queued_at=_DOUBLE.unpack(queued_at)[0] if queued_at else None,
        ended_at=_DOUBLE.unpack(ended_at)[0] if ended_at else None,
        death=item_state(read_item(death[0])) if death and death[0] else None,
        capped=bool(capped),
    )


class ListWalk:
    """One walk along a source."""

    def __init__(self, link: RedisLink, plan: ListPlan, source: str, index: str, *, history: bool) -> None:
        self._link = link
        self._plan = plan
        self._source = source
        self._is_wide = (source, index) in _WIDE
        self._letters = b"".join(LETTERS[status] for status in plan.statuses)
        self._history = history
        self._oldest_first = plan.oldest_first
        self._request: dict[str, Any] = {"where": _filter_fields(plan), "oldest_first": plan.oldest_first}
        if index:
            label = getattr(plan.where, _LABELS[index]) if index in _LABELS else None
            self._request |= {"index": index, "label": label}
        self._pages: list[int] = []
        """Those that are not yet behind, in the order of the walk."""
        self._given: list[bytes] = []
        """The numbers of items, instead of pages, in this order."""
        self._kinds: bytes | None = None
        """The numbers of the kinds that have items that may match. None: they are not known."""
        self._whole: int | None = None
        """How many items that may match these had when it was last looked. None: it is not known."""
        self._position = plan.bounds.after if plan.oldest_first else plan.bounds.before
        self._has_ended = False
        self._reached_at = 0.0
        """When the last item was submitted that was looked at."""
        self.numbers: list[int] = []
        self.states: list[ItemState] = []

    @property
    def end(self) -> WalkEnd | None:
        """Where the walk ended. None: there is nothing behind it."""
        if self._has_ended or self._position is None:
            return None
        return WalkEnd(self._position, self._reached_at)

    async def find(self, most: int, reach: int | None) -> None:
        """Look for `most` items at most, and at about `reach` others."""
        looked = 0
        start_at = self._plan.bounds.since if self._oldest_first else self._plan.bounds.until
        if self._plan.where.release is not None and self._is_wide:
            await self._read_tried()
        elif start_at is not None and self._position is None:
            await self._skip_to(start_at)
        if self._source == "pages":
            await self._read_pages()
        while not self._has_ended and len(self.states) < most and (reach is None or looked < reach):
            left = None if reach is None else reach - looked
            looked += await self._find_some(min(most - len(self.states), _MOST_ROWS), left)
            if self._whole is None and self._source == "pages" and looked >= _COUNTED_AFTER:
                expected = (most - len(self.states)) * looked / max(1, len(self.states))
                if expected >= _COUNTED_FOR:
                    await self._count_whole()
            if self._whole is not None and len(self.states) >= self._whole and not self._has_ended:
                await self._count_rest()

    async def _find_some(self, most: int, reach: int | None) -> int:
        """Ask once. Returns how many items were looked at."""
        request = {**self._request, "most": most, "full": self._history, **self._place()}
        if reach is not None:
            request["reach"] = reach
        given = b"".join(self._given[:_NUMBERS])
        arguments = (
            [_encode(request), given] if self._kinds is None else [_encode(request), given, self._kinds]
        )
        answer = await self._link.run(_LIST, arguments, on="read")
        state, position, looked, queued_at, rows, *pages = answer
        if state == _TOO_MANY:
            self._source = "pages"
            await self._read_pages()
            return 0
        if pages:
            self._source, (self._pages,) = "pages", pages
        if position:
            self._position = int.from_bytes(position, "big")
        if queued_at:
            (self._reached_at,) = _DOUBLE.unpack(queued_at)
        self.numbers += [int.from_bytes(raw[0], "big") for raw in rows]
        self.states += (
            map(full_state, rows) if self._history else (item_state(read_item(raw)) for raw in rows)
        )
        self._drop_pages()
        self._drop_given()
        self._has_ended = state == _BEYOND or (state == _ENDED and not (self._pages or self._given))
        return int(looked)

    def _place(self) -> dict[str, Any]:
        place: dict[str, Any] = {"source": self._source}
        if self._source == "pages":
            place["pages"] = self._pages[:_PAGES]
        if self._position is not None:
            place["bound"] = self._position
        return place

    async def _count_whole(self) -> None:
        """Find the kinds that have items that may match, and how many."""
        where = self._plan.where
        asked = {name: value for name in _OF_KIND if (value := getattr(where, name)) is not None}
        if not asked:
            return
        self._kinds, self._whole = await self._link.run(
            _LIST_WHOLE, [_encode(asked), self._letters], on="read"
        )

    async def _count_rest(self) -> None:
        """End if there is no other item that may match. Items that were found may have changed since."""
        found = b"".join(number.to_bytes(6, "big") for number in self.numbers)
        rest: int = await self._link.run(_LIST_REST, [self._kinds or b"", self._letters, found], on="read")
        self._whole = len(self.numbers) + rest
        self._has_ended = rest == 0

    # -- releases --------------------------------------------------------------------------------------

    async def _read_tried(self) -> None:
        """Find the items whose last attempt may have been under the release that is asked for, unless there
        are too many that have had one."""
        link = self._link
        past, released = link.key("past"), link.key("released")
        sizes = (link.command(b"HLEN", key, on="read") for key in (past, released))
        if sum(await asyncio.gather(*sizes)) > _MOST_TRIED:
            return
        await link.run(UNFOLDED, on="read")
        tried, died = await asyncio.gather(
            link.command(b"HKEYS", past, on="read"), link.command(b"HGETALL", released, on="read")
        )
        name, names = (self._plan.where.release or "").encode(), dict(zip(died[::2], died[1::2], strict=True))
        found = {number for number in tried if names.get(number, name) == name}
        found.update(number for number, its_name in names.items() if its_name == name)
        self._source, self._given = "given", sorted(found, reverse=not self._oldest_first)
        self._drop_given()
        self._has_ended = not self._given

    def _drop_given(self) -> None:
        """Leave out what the walk has behind it."""
        if self._position is None:
            return
        at = self._position.to_bytes(6, "big")
        self._given = [each for each in self._given if (each > at if self._oldest_first else each < at)]

    # -- pages -----------------------------------------------------------------------------------------

    async def _read_pages(self) -> None:
        """Walk along those that may have items that are asked for."""
        counts = await self._count_pages()
        self._pages = sorted((page for page in counts if counts[page] > 0), reverse=not self._oldest_first)
        self._drop_pages()
        self._has_ended = not self._pages

    async def _count_pages(self) -> dict[int, int]:
        """How many of the items that are asked for each page has at most."""
        found: dict[bytes, bytes] = {}
        key, cursor = self._link.key("pages"), b"0"
        await self._link.run(UNFOLDED, on="read")
        while True:
            scan = await self._link.command(b"HSCAN", key, cursor, b"COUNT", _SCANNED, on="read")
            cursor, values = scan
            found |= dict(zip(values[::2], values[1::2], strict=True))
            if cursor == b"0":
                break
        return _page_counts(found, self._plan)

    async def _skip_to(self, at: float) -> None:
        """Begin at the page whose items were submitted at about this instant."""
        pages = sorted(await self._count_pages())
        earlier: int = await self._link.run(_LIST_START, [repr(at), *pages], on="read")
        if self._oldest_first and earlier > 1:
            self._position = pages[earlier - 1] * _PAGE_SIZE - 1
        elif not self._oldest_first and earlier < len(pages):
            self._position = pages[earlier] * _PAGE_SIZE

    def _drop_pages(self) -> None:
        """Leave out what the walk has behind it."""
        at = self._position
        if at is None:
            return
        if self._oldest_first:
            self._pages = [page for page in self._pages if page * _PAGE_SIZE + _PAGE_SIZE - 1 > at]
        else:
            self._pages = [page for page in self._pages if page * _PAGE_SIZE < at]


def _page_counts(pages: Mapping[bytes, bytes], plan: ListPlan) -> dict[int, int]:
    """How many of the items that are asked for each page has at most. pages: the hash."""
    whole: dict[int, int] = {}
    ended: dict[int, int] = {}
    for page, count in pages.items():
        if page.endswith(b"e"):
            ended[int(page[:-1])] = int(count)
        else:
            whole[int(page)] = int(count)
    if plan.only_open:
        return {page: count - ended.get(page, 0) for page, count in whole.items()}
    return {page: ended.get(page, 0) for page in whole} if plan.only_ended else whole


def pack_filter(where: Filter) -> bytes:
    """A filter as list_filter.lua reads it."""
    return _encode(_filter_fields(plan_list("redis", where, limit=1)))


def _filter_fields(plan: ListPlan) -> dict[str, Any]:
    fields = {"until_" if name == "until" else name: value for name, value in plan.conditions.items()}
    if plan.where.reason is not None:
        fields["reason"] = REASONS.index(plan.where.reason)
    if plan.where.status:
        fields["status"] = "".join(LETTERS[one].decode() for one in plan.where.status)
    return fields
