"""Lists: items by filter, page by page.

A list walks along the narrowest index that holds all items asked for, in the order of their numbers, in
portions that keep the server busy for a short time only. Without an index it walks along the numbers
themselves, a page of 1,000 at a time. `pages` says how many items a page has, and how many of them have
ended: empty pages are skipped, and pages without open items if only these are asked for.
"""

from __future__ import annotations

import re
from struct import Struct as Bytes
from typing import Any, Final

from msgspec import Struct, msgpack

from treadle.errors import InputError
from treadle.item import OPEN, TERMINAL, Filter, ItemState, Page, Status

from .item_bytes import LETTERS, REASONS, item_state, read_item
from .link import RedisLink
from .read import full_state
from .scripts import RedisScript
from .verbs import RedisVerbs

_LIST: Final = RedisScript("list")
_LIST_START: Final = RedisScript("list_start")
_UNFOLDED: Final = RedisScript("unfolded")

LONGEST_PAGE: Final = 1000
_MOST_ROWS: Final = 250
"""Of one call."""
_PAGES: Final = 8
"""How many pages of numbers a call is given."""
_PAGE_SIZE: Final = 1000
_SCANNED: Final = 5000
_ENDED: Final = 1
_TOO_MANY: Final = 2
_BEYOND: Final = 3
_DISORDER: Final = 60.0
"""Seconds by which the order of numbers and that of instants may differ."""
_HIGHEST: Final = 2**48 - 2
_CURSOR: Final = re.compile(r"r([1-9][0-9]{0,14})", re.ASCII)
_DEAD: Final[frozenset[Status]] = frozenset(("dead",))
_CANCELLED: Final[frozenset[Status]] = frozenset(("cancelled",))
_DOUBLE: Final = Bytes(">d")

_encode: Final = msgpack.Encoder().encode


class ListSource(Struct, frozen=True):
    """Where a list looks for items: `name` is `index`, `group`, `open` or `pages`."""

    name: str
    index: str = ""
    label: str | None = None
    """The part of the index, if it has parts."""


class RedisLists(RedisVerbs):
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
        after = None if cursor is None else _read_cursor(cursor)
        most = max(1, min(limit, LONGEST_PAGE))
        source = _narrowest_source(where)
        if source is None:
            return Page(())
        walk = ListWalk(self._link, where, source, after, oldest_first=oldest_first, history=history)
        await walk.find(most + 1, None if reach is None else max(1, reach))
        items = tuple(walk.states[:most])
        if len(walk.states) > most:
            return Page(items, f"r{walk.numbers[most - 1]}")
        if walk.has_ended:
            return Page(items)
        return Page(items, f"r{walk.position}", walk.reached_at if len(items) < most else None)


class ListWalk:
    """One walk along a source."""

    def __init__(
        self,
        link: RedisLink,
        where: Filter,
        source: ListSource,
        after: int | None,
        *,
        oldest_first: bool,
        history: bool,
    ) -> None:
        self._link = link
        self._source = source
        self._history = history
        self._oldest_first = oldest_first
        self._only_open = bool(where.status) and OPEN.issuperset(where.status)
        self._only_ended = bool(where.status) and TERMINAL.issuperset(where.status)
        self._request: dict[str, Any] = {"where": _filter_fields(where), "oldest_first": oldest_first}
        self._start_at = where.since if oldest_first else where.until
        self._pages: list[int] = []
        """Those that are not yet behind, in the order of the walk."""
        self.position = after
        self.numbers: list[int] = []
        self.states: list[ItemState] = []
        self.has_ended = False
        self.reached_at: float | None = None
        """When the last item was submitted that was looked at."""

    async def find(self, most: int, reach: int | None) -> None:
        """Look for items: at most so many, and at about `reach` others."""
        looked = 0
        if self._start_at is not None and self.position is None:
            await self._skip_to(self._start_at)
        if self._source.name == "pages":
            await self._read_pages()
        while not self.has_ended and len(self.states) < most and (reach is None or looked < reach):
            left = None if reach is None else reach - looked
            looked += await self._find_some(min(most - len(self.states), _MOST_ROWS), left)

    async def _find_some(self, most: int, reach: int | None) -> int:
        """Ask once. Returns how many items were looked at."""
        request = {**self._request, "most": most, "full": self._history, **self._place()}
        if reach is not None:
            request["reach"] = reach
        state, position, looked, queued_at, rows = await self._link.run(_LIST, [_encode(request)], on="read")
        if state == _TOO_MANY:
            self._source = ListSource("pages")
            await self._read_pages()
            return 0
        if position:
            self.position = int.from_bytes(position, "big")
        if queued_at:
            (self.reached_at,) = _DOUBLE.unpack(queued_at)
        self.numbers += [int.from_bytes(raw[0], "big") for raw in rows]
        self.states += (
            map(full_state, rows) if self._history else (item_state(read_item(raw)) for raw in rows)
        )
        self._drop_pages()
        self.has_ended = state == _BEYOND or (state == _ENDED and not self._pages)
        return int(looked)

    def _place(self) -> dict[str, Any]:
        source = self._source
        place: dict[str, Any] = {"source": source.name}
        if source.name == "index":
            place |= {"index": source.index, "label": source.label}
        elif source.name == "pages":
            place["pages"] = self._pages[:_PAGES]
        if self.position is not None:
            place["bound"] = self.position
        return place

    # -- pages -----------------------------------------------------------------------------------------

    async def _read_pages(self) -> None:
        """Find the pages that may have items that are asked for."""
        counts = await self._page_counts()
        self._pages = sorted((page for page in counts if counts[page] > 0), reverse=not self._oldest_first)
        self._drop_pages()
        self.has_ended = not self._pages

    async def _page_counts(self) -> dict[int, int]:
        """How many of the items that are asked for each page has at most."""
        counts: dict[bytes, int] = {}
        key, cursor = self._link.key("pages"), b"0"
        await self._link.run(_UNFOLDED, on="read")
        while True:
            scan = await self._link.command(b"HSCAN", key, cursor, b"COUNT", _SCANNED, on="read")
            cursor, values = scan
            counts |= dict(zip(values[::2], map(int, values[1::2]), strict=True))
            if cursor == b"0":
                break
        ended = {page[:-1]: count for page, count in counts.items() if page.endswith(b"e")}
        whole = {page: count for page, count in counts.items() if not page.endswith(b"e")}
        if self._only_open:
            return {int(page): count - ended.get(page, 0) for page, count in whole.items()}
        return {int(page): ended.get(page, 0) if self._only_ended else whole[page] for page in whole}

    async def _skip_to(self, at: float) -> None:
        """Begin at the page whose items were submitted at about this instant."""
        pages = sorted(await self._page_counts())
        offset = -_DISORDER if self._oldest_first else _DISORDER
        earlier: int = await self._link.run(_LIST_START, [repr(at + offset), *pages], on="read")
        if self._oldest_first and earlier > 1:
            self.position = pages[earlier - 1] * _PAGE_SIZE - 1
        elif not self._oldest_first and earlier < len(pages):
            self.position = pages[earlier] * _PAGE_SIZE

    def _drop_pages(self) -> None:
        """Leave out what the walk has behind it."""
        at = self.position
        if at is None:
            return
        if self._oldest_first:
            self._pages = [page for page in self._pages if page * _PAGE_SIZE + _PAGE_SIZE - 1 > at]
        else:
            self._pages = [page for page in self._pages if page * _PAGE_SIZE < at]


def _read_cursor(cursor: str) -> int:
    match = _CURSOR.fullmatch(cursor)
    number = 0 if match is None else int(match[1])
    if not 0 < number <= _HIGHEST:
        raise InputError.of("cursor", cursor, "is not a cursor of this store: begin again without one")
    return number


def _narrowest_source(where: Filter) -> ListSource | None:
    """The index that holds all items asked for. None: there can be none."""
    status = frozenset(where.status)
    only_dead = where.mark is not None or where.reason is not None or where.failed_group
    if only_dead and status and "dead" not in status:
        return None
    if where.killing and (only_dead or (status and not OPEN & status)):
        return None
    if where.group_id is not None:
        return ListSource("group")
    for index, name in (("keyed", where.key), ("workflows", where.workflow), ("marked", where.mark)):
        if name is not None:
            return ListSource("index", index, name)
    if where.killing:
        return ListSource("index", "killing")
    if only_dead or status == _DEAD:
        return ListSource("index", "dead")
    if status == _CANCELLED:
        return ListSource("index", "cancelled")
    return ListSource("open" if status and status <= OPEN else "pages")


def pack_filter(where: Filter) -> bytes:
    """A filter as list_filter.lua reads it."""
    return _encode(_filter_fields(where))


def _filter_fields(where: Filter) -> dict[str, Any]:
    packed: dict[str, Any] = {
        "tenant": where.tenant,
        "type": where.type,
        "queue": where.queue,
        "workflow": where.workflow,
        "group_id": where.group_id,
        "key": where.key,
        "mark": where.mark,
        "reason": None if where.reason is None else REASONS.index(where.reason),
        "failed_group": where.failed_group or None,
        "killing": where.killing or None,
        "since": where.since,
        "until_": where.until,
        "status": "".join(LETTERS[one].decode() for one in where.status) or None,
    }
    return {name: value for name, value in packed.items() if value is not None}
