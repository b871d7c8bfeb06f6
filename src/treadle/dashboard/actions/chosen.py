"""Chosen items: what an action on several items is about: items that were named, or a filter."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Final

import msgspec

from treadle.bulk_action import BULK_TYPE, ActionVerb
from treadle.dashboard.access import NotShown
from treadle.dashboard.addresses import split_id
from treadle.dashboard.forms import Form
from treadle.dashboard.visit import Visit
from treadle.errors import InputError
from treadle.item import ItemState
from treadle.operate.bulk_portion import VERBS
from treadle.operate.filters import ItemFilter, parse_filter
from treadle.operate.portions import Refusal, WantedItem, read_named

from .named_item import ItemBrief, brief

MOST_AT_ONCE: Final = 100
"""So many items are changed at once. More are a bulk action, and need a reason."""
MOST_NAMED: Final = 2000
COUNTED: Final = 10_000
"""As far as a bulk action counts."""
COUNT_PAGE: Final = 1000
COUNT_SECONDS: Final = 2.0
REACH: Final = 20_000
"""So many items are looked at, at most, to count and to show examples."""
EXAMPLES: Final = 5


class Chosen(msgspec.Struct, frozen=True):
    """What was chosen, and how much that is."""

    refs: tuple[WantedItem, ...] = ()
    """Items by id and tenant. Empty: the filter says which."""
    filter: ItemFilter | None = None
    count: int = 0
    more: bool = False
    """There are more than were counted."""
    examples: tuple[ItemBrief, ...] = ()

    @property
    def is_large(self) -> bool:
        return self.more or self.count > MOST_AT_ONCE


async def read_chosen(visit: Visit, verb: ActionVerb, form: Form) -> Chosen:
    """What a form, or the parameters of a page, choose. `InputError` if that is nothing."""
    values = form.all("id") or visit.request.query_params.getlist("id")
    text = form.get("q") if form.has("q") else visit.query("q")
    if values and text:
        raise InputError("give ids or a filter, not both", parameters=("id", "q"))
    if values:
        return await _named(visit, [split_id(each) for each in values])
    if not text:
        raise InputError("choose items, or name a filter: this would change all of them", parameters=("id",))
    found = parse_filter(text, now=await visit.client.backend.now())
    if found.ids:
        return await _named(visit, [(id, None) for id in found.ids])
    return await _filtered(visit, verb, found)


async def _named(visit: Visit, given: Sequence[tuple[str, str | None]]) -> Chosen:
    refs = tuple(dict.fromkeys(WantedItem(id, tenant or visit.tenant) for id, tenant in given))
    if len(refs) > MOST_NAMED:
        raise InputError(f"{len(refs):,} items are chosen, and at most {MOST_NAMED:,} can be: use a filter")
    for _, tenant in refs:
        if tenant is not None and (visit.tenant not in (None, tenant) or not visit.access.shows(tenant)):
            raise NotShown("there are no such items")
    examples, _ = await read_items(visit, refs[:EXAMPLES])
    return Chosen(refs=refs, count=len(refs), examples=tuple(brief(each) for each in examples))


async def _filtered(visit: Visit, verb: ActionVerb, found: ItemFilter) -> Chosen:
    where = dict(found.bulk_where)
    tenant = where.get("tenant")
    if tenant is not None and (visit.tenant not in (None, tenant) or not visit.access.shows(tenant)):
        raise NotShown(f"there is no tenant {tenant!r}")
    rules = VERBS[verb]
    if wrong := [each for each in found.filter.status if each not in rules.allowed]:
        raise InputError(f"status:{wrong[0]} does not go with {verb}: {rules.advice}", parameters=("q",))
    where["status"] = found.filter.status or rules.usual or None
    count, more, examples = 0, True, list[ItemState]()
    cursor: str | None = None
    started = time.monotonic()
    while more and count < COUNTED and time.monotonic() - started < COUNT_SECONDS:
        page = await visit.in_time(
            visit.client.list(**where, limit=COUNT_PAGE, reach=REACH, cursor=cursor, oldest_first=True)
        )
        if page is None:
            break
        items = [each for each in page.items if each.type != BULK_TYPE]
        count, cursor, more = count + len(items), page.cursor, page.cursor is not None
        examples += items[: EXAMPLES - len(examples)]
        if page.reached_at is not None:
            break
    return Chosen(
        filter=found, count=min(count, COUNTED), more=more, examples=tuple(brief(each) for each in examples)
    )


async def with_tenants(visit: Visit, wanted: Sequence[WantedItem]) -> list[WantedItem]:
    """The items that are named, with their tenants. Only those without one are looked up, in one call: a
    bulk action finds out which of the others exist."""
    found, _ = await read_items(visit, [each for each in wanted if each.tenant is None])
    named = [each for each in wanted if each.tenant is not None]
    return named + [WantedItem(item.id, item.tenant) for item in found]


async def read_items(visit: Visit, wanted: Sequence[WantedItem]) -> tuple[list[ItemState], list[Refusal]]:
    """The items that are named, in their order, and those that do not exist. `NotShown` if one is not for
    this visitor."""
    for tenant in {each.tenant for each in wanted}:
        visit.client_of(tenant)
    return await read_named(visit.client.backend, wanted)
