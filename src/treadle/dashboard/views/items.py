"""Items: a list, newest first, with a filter. It looks back a bounded way at a time."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Sequence, Set
from typing import Any, Final, get_args

import msgspec

from treadle.base.timing import iso
from treadle.bulk_action import BULK_TYPE, ActionVerb
from treadle.dashboard.access import Action
from treadle.dashboard.payloads import (
    read_payload,
    shown_error,
    shown_headers,
    shown_item_json,
    shown_line,
)
from treadle.dashboard.views import Elsewhere, View
from treadle.dashboard.visit import Visit
from treadle.errors import InputError, StoreUnavailable
from treadle.item import DEFAULT_TENANT, TELL_TYPE, ItemState, Page, Status
from treadle.operate.changes import VERBS
from treadle.operate.filters import (
    FoundItems,
    ItemFilter,
    WhereCondition,
    attempt_words,
    filter_word,
    find_items,
    matters_at,
    parse_filter,
    with_word,
)

ROWS: Final = 50
REACH: Final = 20_000
"""Items that are looked at for a page, where no index leads to those that match."""
REACH_OF_RELEASE: Final = 10_000
"""The same where the attempts of items are looked at for their release."""
PORTION: Final = 250
"""Items that are read at once, where the filter is on what is inside."""
MOST_LOOKED_AT: Final = 4_000
"""Items that are looked into for a page, at most."""
LOOK_SECONDS: Final = 0.04
"""Seconds after which it looks into no further portion."""
PAGES: Final = 4
"""Pages that are read for one that shows something, at most."""
MOST_HINTS: Final = 200
STATUSES: Final[tuple[Status, ...]] = get_args(Status)
OFFERED: Final[tuple[ActionVerb, ...]] = (
    "requeue",
    "trigger",
    "hold",
    "unhold",
    "update",
    "cancel",
    "delete",
)
"""What items are changed by, in this order."""


class ItemRow(msgspec.Struct, frozen=True):
    id: str
    type: str
    status: Status
    queue: str
    tenant: str
    at: float | None
    """The instant that matters in its status."""
    queued_at: float
    attempts: str
    error: str
    reason: str | None
    key: str | None
    input: str = ""
    """One line of it. Empty: hidden, or none."""
    suspended: bool = False
    """Its handler sleeps, or waits for a signal or for children."""
    held: bool = False
    store: str = ""
    """Of several stores: the one that has it. Empty for visitors of single tenants."""


class FilterLink(msgspec.Struct, frozen=True):
    name: str
    q: str
    current: bool


class ItemsPage(msgspec.Struct, frozen=True, kw_only=True):
    q: str
    wrong: str = ""
    """What is wrong with the filter."""
    rows: list[ItemRow] | None = None
    """None: not in time."""
    states: list[ItemState] = []
    cursor: str | None = None
    """Where the next page begins. None: there are no more."""
    reached_at: float | None = None
    """It has looked back to here, and found no more."""
    looked_at: int | None = None
    """With conditions: how many items were looked into."""
    several_tenants: bool = False
    hints: list[str] = []
    statuses: list[FilterLink] = []
    stores: list[FilterLink] = []
    """Empty: there is one store."""
    verbs: list[Action] = []
    """What can be done with items in the statuses that are shown."""
    bulk: bool = False
    """Whether all that match can be changed by one action."""
    missing: list[str] = []
    """Ids that no item has."""
    proposals: list[str] = []
    """Filters that were perhaps meant."""


async def read(visit: Visit) -> ItemsPage | Elsewhere:
    text = visit.query("q")
    hints = hints_of(text, await _names(visit))
    try:
        where = parse_filter(text, now=visit.site.now())
        if where.conditions and not visit.access.payloads:
            raise InputError("inputs, results and headers are hidden from you: filter by something else")
        if where.filter.store is not None and where.filter.store not in visit.stores:
            raise InputError.of("store", where.filter.store, "does not exist")
        if where.ids:
            return await _named(visit, where, hints)
        found = await visit.in_time(_find(visit, where))
    except InputError as error:
        return ItemsPage(q=text, wrong=str(error), rows=[], hints=hints, statuses=status_links(""))
    states = [] if found is None else found.items
    statuses = set(where.filter.status or STATUSES)
    if found is not None and found.cursor is None and not visit.query("cursor"):  # all that match
        statuses &= {state.status for state in states}
    return ItemsPage(
        q=text,
        rows=None if found is None else [row_of(visit, state) for state in states],
        states=states,
        cursor=None if found is None else found.cursor,
        reached_at=None if found is None else found.reached_at,
        looked_at=None if found is None or not where.conditions else found.looked_at,
        several_tenants=shows_tenants(visit, states),
        hints=hints,
        statuses=status_links(text, where),
        stores=store_links(visit, text, where),
        verbs=verbs_for(statuses),
        bulk=bool(where.where and states and not where.conditions),
    )


async def _named(visit: Visit, where: ItemFilter, hints: list[str]) -> ItemsPage | Elsewhere:
    """The items with these ids. A single one is shown by itself."""
    found = await visit.client.get(where.ids)
    states = [state for state in found if state is not None]
    if len(where.ids) == 1 and states:
        return Elsewhere(visit.item_url(states[0].id, states[0].tenant))
    missing = [id for id, state in zip(where.ids, found, strict=True) if state is None]
    return ItemsPage(
        q=where.text,
        rows=[row_of(visit, state) for state in states],
        states=states,
        several_tenants=shows_tenants(visit, states),
        hints=hints,
        statuses=status_links(""),
        verbs=verbs_for({state.status for state in states}),
        missing=missing,
        proposals=proposals_for(missing[0]) if len(missing) == 1 else [],
    )


async def _find(visit: Visit, where: ItemFilter) -> FoundItems:
    cursor = visit.query("cursor") or None
    if not where.conditions:
        return await _find_shown(visit, where, cursor)

    async def read(size: int, start: str | None) -> Page:
        return await _list(visit, where, size, start)

    holds_inside = matcher(visit, where.conditions)

    def holds(state: ItemState) -> bool:
        return is_shown(state, where) and holds_inside(state)

    return await find_items(
        read,
        holds,
        limit=ROWS,
        scan=MOST_LOOKED_AT,
        portion=PORTION,
        cursor=cursor,
        seconds=LOOK_SECONDS,
    )


async def _find_shown(visit: Visit, where: ItemFilter, cursor: str | None) -> FoundItems:
    """A page. If all of its items are parts of bulk actions: the next one, a few times at most."""
    page = await _list(visit, where, ROWS, cursor)
    for _ in range(PAGES - 1):
        if page.cursor is None or page.reached_at is not None or _shown(page, where):
            break
        page = await _list(visit, where, ROWS, page.cursor)
    return FoundItems(_shown(page, where), 0, None, page.cursor, page.reached_at)


def _shown(page: Page, where: ItemFilter) -> list[ItemState]:
    return [state for state in page.items if is_shown(state, where)]


def is_shown(state: ItemState, where: ItemFilter) -> bool:
    """Parts of bulk actions, which have a page of their own, and messages about problems are left out, unless
    the filter names their type."""
    return state.type not in (BULK_TYPE, TELL_TYPE) or where.filter.type == state.type


async def _list(visit: Visit, where: ItemFilter, limit: int, cursor: str | None) -> Page:
    reach = REACH if where.filter.release is None else REACH_OF_RELEASE
    return await visit.client.list(**where.where, limit=limit, cursor=cursor, reach=reach)


def matcher(visit: Visit, conditions: Sequence[WhereCondition]) -> Callable[[ItemState], bool]:
    """Says whether conditions hold for what is inside, as the visitor sees it: secrets are not found."""
    names = {str(each.path[0]) for each in conditions}

    def matches(state: ItemState) -> bool:
        inside = inside_of(visit, state, names, reveal=True)
        for condition in conditions:
            if not condition.holds(inside):
                return False  # as most of them: what is masked matters for the others
        inside = inside_of(visit, state, names)
        return all(condition.holds(inside) for condition in conditions)

    return matches


def inside_of(visit: Visit, state: ItemState, names: Set[str], *, reveal: bool = False) -> dict[str, Any]:
    """What conditions look into, by name."""
    inside: dict[str, Any] = {}
    if "input" in names:
        inside["input"] = read_payload(visit, state, "input", reveal=reveal)[0]
    if "result" in names:
        inside["result"] = read_payload(visit, state, "result", reveal=reveal)[0]
    if "headers" in names:
        inside["headers"] = dict(state.headers) if reveal else shown_headers(visit, state)
    return inside


def row_of(visit: Visit, state: ItemState) -> ItemRow:
    return ItemRow(
        id=state.id,
        type=state.type,
        status=state.status,
        queue=state.queue,
        tenant=state.tenant,
        at=state.due_at if state.suspended and state.status == "scheduled" else matters_at(state),
        queued_at=state.queued_at,
        attempts=attempt_words(state),
        error=shown_error(visit, state),
        reason=state.reason if state.reason != "exhausted" else None,
        key=state.key,
        input=shown_line(visit, state),
        suspended=state.suspended and state.status == "scheduled",
        held=state.held,
        store=state.store if visit.stores else "",
    )


def shows_tenants(visit: Visit, states: Sequence[ItemState]) -> bool:
    """Whether a list says whose each item is."""
    return visit.tenant is None and any(state.tenant != DEFAULT_TENANT for state in states)


# --------------------------------------------------------------------------------------------- filter bar


class Names(msgspec.Struct, frozen=True):
    """What filters are completed with."""

    types: list[str] = []
    queues: list[str] = []


async def _names(visit: Visit) -> Names:
    found = await visit.site.names.get(visit.tenant, lambda: _read_names(visit))
    assert isinstance(found, Names)
    return found


async def _read_names(visit: Visit) -> Names:
    """The types and queues that are in use. None, if the store does not say so in time. Of one tenant: those
    of its items. The code and the workers have those of others too."""
    everyone = visit.tenant is None
    types, queues = set(visit.client.types if everyone else ()), set[str]()
    with contextlib.suppress(StoreUnavailable):
        overview = await visit.in_time(visit.overview())
        if overview is not None:
            types.update(each.type for each in overview.counts)
            if everyone:
                types.update(type for worker in overview.workers for type in worker.types or ())
            queues.update(each.queue for each in overview.counts)
            queues.update(each.queue for each in overview.ages)
    return Names(sorted(types), sorted(queues))


def hints_of(text: str, names: Names) -> list[str]:
    """What the filter can be completed to: the text so far, and one more word."""
    words = [
        *(f"status:{each}" for each in (*STATUSES, "open", "ended")),
        *(filter_word("type", each) for each in names.types),
        *(filter_word("queue", each) for each in names.queues),
        *("since:1h", "since:24h", "until:"),
    ]
    before = f"{text} " if text else ""
    return [before + word for word in words if word.partition(":")[0] + ":" not in text][:MOST_HINTS]


def store_links(visit: Visit, text: str, where: ItemFilter) -> list[FilterLink]:
    """One click for each of several stores."""
    chosen, names = where.filter.store, (None, *visit.stores) if visit.stores else ()
    return [FilterLink(name or "all", with_word(text, "store", name), name == chosen) for name in names]


def status_links(text: str, where: ItemFilter | None = None) -> list[FilterLink]:
    """One click for each status."""
    chosen = () if where is None else where.filter.status
    links = [FilterLink("all", with_word(text, "status", None), not chosen)]
    for name in STATUSES:
        links.append(FilterLink(name, with_word(text, "status", name), chosen == (name,)))
    return links


def verbs_for(statuses: Iterable[Status]) -> list[Action]:
    """What can be done with items in these statuses."""
    given = set(statuses)
    return [verb for verb in OFFERED if given.intersection(VERBS[verb].allowed)]


def proposals_for(word: str) -> list[str]:
    """Filters that a word may have been meant for, if it is the id of no item."""
    named = [filter_word(name, word) for name in ("type", "queue", "key", "workflow", "group")]
    return [f"status:{word}", *named] if word in STATUSES else named


def to_json(visit: Visit, page: ItemsPage) -> dict[str, Any]:
    """The items as `treadle list --json` has them."""
    if page.wrong:
        return {"error": "InputError", "message": page.wrong}
    return {
        "q": page.q,
        "items": None if page.rows is None else [shown_item_json(visit, state) for state in page.states],
        "cursor": page.cursor,
        "reached_at": iso(page.reached_at),
        "looked_at": page.looked_at,
        "missing": page.missing,
    }


VIEW = View("/items", "items.html", read, "items", to_json=to_json)
