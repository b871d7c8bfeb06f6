"""Lists: how items are found by a filter, page by page.

A filter becomes a plan: the sources that hold all items asked for, the bounds between which they are, and the
conditions that every item has to meet. A store walks along the narrowest source that it has an index of, in
the order in which items were submitted, and `page` makes a page of what it found.

Submission numbers every item. A cursor is the number of the last item that was looked at, so items that come
and go do not move it.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple, TypeAlias, TypeVar

import msgspec
from msgspec.structs import replace

from treadle.backend import no_such_store
from treadle.errors import InputError
from treadle.item import (
    OPEN,
    TERMINAL,
    Filter,
    GroupFilter,
    GroupOutcome,
    GroupSummary,
    ItemState,
    Listed,
    Page,
    Status,
)

LARGEST_PAGE: Final = 1000
"""Most items, or audit entries, of one page."""
DISORDER: Final = 60.0
"""Seconds by which the order of numbers and that of instants may differ."""
EVERY_STATUS: Final = OPEN | TERMINAL

_DEAD: Final[frozenset[Status]] = frozenset(("dead",))
_SCHEDULED: Final[frozenset[Status]] = frozenset(("scheduled",))
_FIELDS: Final = tuple(name for name in Filter.__struct_fields__ if name != "status")
_LARGEST_NUMBER: Final = 2**63 - 1
_CURSOR: Final = re.compile(r"([0-9a-f]{1,16})\.([0-9a-f]{8})", re.ASCII)

Source: TypeAlias = (
    Literal["group", "key", "workflow", "mark", "killing", "held", "open", "ended", "all"]
    | Literal["blocked", "scheduled", "ready", "running", "success", "dead", "cancelled"]
)
"""A set of items that an index can hold: the members of a group, those with a key, workflow or mark, those
that end workers, held ones, those of one status, the open ones, the ended ones, or all."""
_Known = TypeVar("_Known")


class Bounds(NamedTuple):
    """Between which numbers, and between which instants of submission, the items are. None: no bound."""

    after: int | None
    before: int | None
    since: float | None
    until: float | None


class WalkEnd(NamedTuple):
    """The last item that a list with a reach looks at."""

    no: int
    queued_at: float


class ListPlan(msgspec.Struct, frozen=True, gc=False):
    """How to find a page of items."""

    where: Filter
    sources: tuple[Source, ...]
    """Those that hold all items asked for, the narrowest first. Empty: no item can match."""
    statuses: frozenset[Status]
    """Statuses that an item can have that matches."""
    bounds: Bounds
    most: int
    """Items of the page."""
    oldest_first: bool
    store: str

    @property
    def conditions(self) -> Mapping[str, Any]:
        """What the filter asks for apart from the status, by the name of the field. An item that is in the
        source may fail them."""
        found = {name: getattr(self.where, name) for name in _FIELDS}
        return {name: value for name, value in found.items() if value is not None and value is not False}

    @property
    def only_status(self) -> Status | None:
        """The status of all items that match, if there is only one."""
        return next(iter(self.statuses)) if len(self.statuses) == 1 else None

    @property
    def only_open(self) -> bool:
        return self.statuses <= OPEN

    @property
    def only_ended(self) -> bool:
        return self.statuses <= TERMINAL

    def narrowest(self, known: Mapping[Source, _Known]) -> _Known | None:
        """What a store knows of the narrowest source. None: no item can match."""
        return next((known[source] for source in self.sources if source in known), None)

    def page(self, numbers: Sequence[int], states: Sequence[ItemState], end: WalkEnd | None = None) -> Page:
        """The page of these items. One more than `most` was looked for, to know whether there are more.
        `end`: where the walk ended because of its reach."""
        return _page(self.store, self.most, numbers, states, end)


OUTCOMES: Final[tuple[GroupOutcome, ...]] = ("running", "succeeded", "failed", "cancelled")
"""Stores have them by their places."""


class GroupsPlan(NamedTuple):
    """How to find a page of groups, or of workflows."""

    where: GroupFilter
    outcomes: tuple[GroupOutcome, ...]
    before: int | None
    """The number of the root after which the page begins."""
    most: int
    reach: int | None
    """None: there is nothing to check one by one, or no bound on that."""
    store: str

    def page(
        self, found: Sequence[tuple[int, GroupSummary]], end: WalkEnd | None = None
    ) -> Page[GroupSummary]:
        """As `ListPlan.page`. Each is given with the number of its root."""
        return _page(self.store, self.most, [no for no, _ in found], [one for _, one in found], end)

    def takes(self, tenant: str, type: str, queued_at: float | None) -> bool:
        """Whether a group whose root is such can match. The outcome is not looked at."""
        where = self.where
        return (
            where.tenant in (None, tenant)
            and where.type in (None, type)
            and (queued_at is None or where.since is None or queued_at >= where.since)
            and (queued_at is None or where.until is None or queued_at < where.until)
        )


def plan_groups(
    store: str,
    verb: Literal["groups", "workflows"],
    where: GroupFilter,
    *,
    limit: int,
    cursor: str | None,
    reach: int | None,
) -> GroupsPlan:
    """How to find a page of at most `limit` groups."""
    _check_one_store(where)
    is_checked = verb == "workflows" or any((where.tenant, where.type, where.since, where.until))
    return GroupsPlan(
        where=where,
        outcomes=tuple(dict.fromkeys(where.outcome)) or OUTCOMES,
        before=None if cursor is None else number_of(store, cursor, verb),
        most=page_size(limit),
        reach=max(1, reach) if reach is not None and is_checked else None,
        store=store,
    )


def _check_one_store(where: Filter | GroupFilter) -> None:
    """Several stores take it from the filter before they ask one of them."""
    if where.store is not None:
        raise no_such_store()


def outcome_of(
    open: int, failed: int, cancelled: int, *, contributed: bool = False, final: bool = False
) -> GroupOutcome:
    """How a group, or a workflow, stands. A final value counts, also if other members died. Stores
    have the same rule in their own languages."""
    if open:
        return "running"
    if final and contributed:
        return "succeeded"
    if failed:
        return "failed"
    return "cancelled" if cancelled and not contributed else "succeeded"


def plan_list(
    store: str, where: Filter, *, limit: int, cursor: str | None = None, oldest_first: bool = False
) -> ListPlan:
    """How to find a page of at most `limit` items. `store`: the name of the store, which its cursors bear."""
    _check_one_store(where)
    number = None if cursor is None else number_of(store, cursor, "list")
    statuses = _possible_statuses(where)
    if where.release is not None or where.held:
        where = replace(where, status=tuple(sorted(statuses)))
    return ListPlan(
        where=where,
        sources=_sources(where, statuses),
        statuses=statuses,
        bounds=Bounds(
            after=number if oldest_first else None,
            before=None if oldest_first else number,
            since=None if where.since is None else where.since - DISORDER,
            until=None if where.until is None else where.until + DISORDER,
        ),
        most=page_size(limit),
        oldest_first=oldest_first,
        store=store,
    )


def _possible_statuses(where: Filter) -> frozenset[Status]:
    statuses = frozenset(where.status) or EVERY_STATUS
    if where.killing:
        statuses &= OPEN
    if where.held:
        statuses &= _SCHEDULED
    if where.reason is not None or where.mark is not None or where.failed_group:
        statuses &= _DEAD
    return statuses if where.release is None else statuses - {"success"}


def _sources(where: Filter, statuses: frozenset[Status]) -> tuple[Source, ...]:
    if not statuses:
        return ()
    given: dict[Source, bool] = {
        "group": where.group_id is not None,
        "key": where.key is not None,
        "workflow": where.workflow is not None,
        "mark": where.mark is not None,
        "killing": where.killing,
        "held": where.held,
    }
    only = tuple(statuses) if len(statuses) == 1 else ()
    half: Source = "open" if statuses <= OPEN else "ended" if statuses <= TERMINAL else "all"
    return (*(source for source in given if given[source]), *only, *dict.fromkeys((half, "all")))


def narrowed_filter(where: Filter, tenant: str | None, statuses: Sequence[Status]) -> Filter | None:
    """A filter that finds only items of a tenant with one of these statuses. None: there are none."""
    _check_one_store(where)
    wanted = tuple(status for status in statuses if not where.status or status in where.status)
    if not wanted or (tenant is not None and where.tenant not in (None, tenant)):
        return None
    return replace(where, status=wanted, tenant=where.tenant if tenant is None else tenant)


# --------------------------------------------------------------------------------------------------- pages


def _page(
    store: str, most: int, numbers: Sequence[int], states: Sequence[Listed], end: WalkEnd | None
) -> Page[Listed]:
    items = tuple(states[:most])
    if len(numbers) > most:
        return Page(items, cursor_of(store, numbers[most - 1]))
    if end is None:
        return Page(items)
    return Page(items, cursor_of(store, end.no), end.queued_at if len(items) < most else None)


def page_size(limit: int) -> int:
    return max(1, min(limit, LARGEST_PAGE))


def cursor_of(store: str, number: int) -> str:
    """Where a page ended: at this number. The checksum rejects texts that are no cursor of this store."""
    digits = f"{number:x}"
    return f"{digits}.{_checksum(store, digits)}"


def number_of(store: str, cursor: str, verb: str) -> int:
    """The number behind which a page begins."""
    match = _CURSOR.fullmatch(cursor)
    if match is None or match[2] != _checksum(store, match[1]) or int(match[1], 16) > _LARGEST_NUMBER:
        problem = f"is not one that {verb}() of this store returned: begin again without one"
        raise InputError.of("cursor", cursor, problem)
    return int(match[1], 16)


def _checksum(store: str, digits: str) -> str:
    return f"{zlib.crc32(f'{store} {digits}'.encode()):08x}"
