"""Act: change several items: those that were chosen, or all that match a filter. Stop a bulk action."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec
from starlette.responses import JSONResponse, Response

from treadle.bulk_action import ActionVerb, BulkState
from treadle.dashboard.access import NotShown
from treadle.dashboard.addresses import chosen_id, segment, split_id
from treadle.dashboard.forms import Form, read_form, read_whole
from treadle.dashboard.payloads import shown_error
from treadle.dashboard.visit import Visit, wants_json
from treadle.errors import ConflictError, InputError
from treadle.item import ItemState, Status
from treadle.operate.changes import VERBS, ItemCount, WantedItem, filter_source
from treadle.operate.filters import ItemFilter, parse_filter, read_rate
from treadle.options import UpdateOptions, check_update

from .answers import asking, back_of, finished, reason_of
from .edit import FIELDS, read_changes
from .item_verbs import NO_FORM, ItemBrief, brief, change_items, read_items, refused_items, tell_refused

WITHOUT_ASKING: Final = ("requeue", "trigger", "hold", "unhold")
"""What is done at once to a few chosen items: it can be undone, or does no harm. One item is also cancelled
at once."""
OTHERS: Final = 20
"""Bulk actions that are looked at for those that have not ended."""
MOST_AT_ONCE: Final = 100
"""The most items that are changed at once. More are a bulk action, and need a reason."""
MOST_NAMED: Final = 2000
"""The most items that can be chosen one by one."""
COUNT_SECONDS: Final = 0.04
"""Seconds for which items are counted. The page says so if there are more."""
REACH: Final = 2_000
"""Items that are looked at in one call, to count and to show examples."""
PORTION: Final = 250
"""Items that are read in one call: the time is looked at after each."""
EXAMPLES: Final = 5
CANARY: Final = 5
"""Proposed canary of a bulk action."""
CANARY_FOR: Final = ("requeue", "trigger")
"""Verbs after which items run at once. After an update they may run next week."""
MOST_CAUSES: Final = 5
"""Causes of death that are named, the most frequent."""
TYPED: Final = ("reason", "rate", "canary", "open", "back", *FIELDS)
"""What a visitor has typed, which a page that asks again shows."""


class DeathCause(msgspec.Struct, frozen=True):
    """What some of the items died of."""

    count: int
    type: str
    error: str
    """The first line of one of them."""


class ActPage(msgspec.Struct, frozen=True):
    verb: ActionVerb
    count: int
    more: bool
    examples: tuple[ItemBrief, ...]
    filter: str
    """Empty: items were chosen."""
    statuses: tuple[Status, ...]
    """The filter names none, and the verb changes only items in these."""
    ids: tuple[str, ...]
    """As the form sends them again."""
    needs_reason: bool
    is_bulk: bool
    """It becomes a bulk action."""
    has_canary: bool
    asks_open: bool
    """Whether to delete groups that are still open is asked. A bulk action on chosen items does it."""
    typed: dict[str, str]
    causes: tuple[DeathCause, ...] = ()
    """Of those that are dead, the most frequent first."""
    more_causes: int = 0
    looked_at: int = 0
    """Items that were looked at for causes."""
    others: tuple[BulkState, ...] = ()
    """Bulk actions that have not ended."""


async def act(visit: Visit) -> Response:
    """Ask, and change the items."""
    verb = visit.part("verb")
    if verb not in VERBS:
        raise NotShown(f"there is no action {verb!r}")
    visit.require(verb)
    form = await read_form(visit.request)
    chosen = await read_chosen(visit, verb, form)
    page = _page(visit, verb, chosen, form)
    few = not page.is_bulk and (verb in WITHOUT_ASKING or (verb == "cancel" and page.count == 1))
    if visit.request.method != "POST" or not (form.has("confirmed") or few):
        return await _ask(visit, page)
    try:
        return await _act(visit, verb, chosen, page, form)
    except (InputError, ConflictError) as error:
        return await _ask(visit, page, error)


async def _ask(visit: Visit, page: ActPage, error: InputError | ConflictError | None = None) -> Response:
    if page.is_bulk:
        newest = await visit.in_time(visit.client.bulk.list(OTHERS)) or ()
        page = msgspec.structs.replace(page, others=tuple(each for each in newest if each.ended_at is None))
    return asking(visit, "ask_act.html", "items", page, error=error)


def _page(visit: Visit, verb: ActionVerb, chosen: Chosen, form: Form) -> ActPage:
    is_bulk, has_canary = chosen.filter is not None or chosen.is_large, VERBS[verb].canary
    typed = {name: form.get(name) or visit.query(name) for name in TYPED}
    if visit.request.method != "POST" and is_bulk and verb in CANARY_FOR and chosen.count > CANARY:
        typed["canary"] = typed["canary"] or str(CANARY)
    return ActPage(
        verb=verb,
        count=chosen.count,
        more=chosen.more,
        examples=chosen.examples,
        filter="" if chosen.filter is None else chosen.filter.text,
        statuses=VERBS[verb].usual if chosen.filter is not None and not chosen.filter.filter.status else (),
        ids=tuple(chosen_id(id, None if visit.tenant else tenant) for id, tenant in chosen.refs),
        needs_reason=verb == "delete" or chosen.is_large,
        is_bulk=is_bulk,
        has_canary=has_canary,
        asks_open=verb == "delete" and chosen.filter is None and not chosen.is_large,
        typed=typed,
        causes=chosen.causes[:MOST_CAUSES],
        more_causes=max(0, len(chosen.causes) - MOST_CAUSES),
        looked_at=chosen.looked_at,
    )


async def _act(visit: Visit, verb: ActionVerb, chosen: Chosen, page: ActPage, form: Form) -> Response:
    what = "deleting items" if verb == "delete" else f"changing more than {MOST_AT_ONCE} items"
    reason = reason_of(form, needed_for=what if page.needs_reason else "")
    changes = await read_changes(visit, form) if verb == "update" else None
    if not page.is_bulk:
        return await _act_now(visit, verb, chosen, reason, form, changes)
    rate = read_rate(form.get("rate") or None, "rate")
    canary = read_whole(form.get("canary"), "canary") if form.get("canary") and page.has_canary else 0
    bulk = visit.acting(verb, reason=reason).bulk
    if chosen.filter is None:
        items = await with_tenants(visit, chosen.refs)
        if not items:
            raise ConflictError("none of these items exists any more")
        state = await bulk.start(verb, ids=items, changes=changes, rate=rate, canary=canary)
    else:
        where = chosen.filter.bulk_where
        state = await bulk.start(verb, changes=changes, rate=rate, canary=canary, **where)
    visit.site.bulk_runs.start()
    return finished(visit, NO_FORM, "bulk", to=visit.url(f"/bulk/{state.id}"), bulk=state.id)


async def _act_now(
    visit: Visit,
    verb: ActionVerb,
    chosen: Chosen,
    reason: str,
    form: Form,
    changes: UpdateOptions | None,
) -> Response:
    if changes is not None:
        check_update(changes)
    changed, refused = await change_items(
        visit, verb, chosen.refs, reason=reason, open=form.has("open"), changes=changes
    )
    to = visit.url("/items")
    if not refused:
        return finished(visit, form, verb, changed, to=to)
    if wants_json(visit.request):
        not_changed = [msgspec.to_builtins(each) for each in refused_items(refused)]
        return JSONResponse(
            {"done": verb, "count": changed, "refused": len(refused), "not_changed": not_changed}
        )
    return tell_refused(visit, verb, changed, refused, back=back_of(visit, form, to))


# -------------------------------------------------------------------------------------- what was chosen


class Chosen(msgspec.Struct, frozen=True):
    """What was chosen, and how much that is."""

    refs: tuple[WantedItem, ...] = ()
    """Items by id and tenant. Empty: the filter says which."""
    filter: ItemFilter | None = None
    count: int = 0
    more: bool = False
    """There are more than were counted."""
    examples: tuple[ItemBrief, ...] = ()
    causes: tuple[DeathCause, ...] = ()
    looked_at: int = 0

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
    found, _ = await read_items(visit, refs[:EXAMPLES])
    deaths = Deaths(visit)
    await deaths.look(found)
    return Chosen(
        refs=refs,
        count=len(refs),
        examples=tuple(brief(each) for each in found),
        causes=deaths.causes,
        looked_at=min(len(refs), EXAMPLES),
    )


class Deaths:
    """Counts what items died of."""

    def __init__(self, visit: Visit) -> None:
        self._visit = visit
        self._found: dict[str, tuple[int, ItemState]] = {}

    async def look(self, items: Sequence[ItemState]) -> None:
        for item in items:
            if item.status == "dead":
                key = item.mark or f"{item.type} {item.error_type}"
                count, first = self._found.get(key, (0, item))
                self._found[key] = (count + 1, first)

    @property
    def causes(self) -> tuple[DeathCause, ...]:
        most = sorted(self._found.values(), key=lambda each: -each[0])
        return tuple(DeathCause(count, item.type, shown_error(self._visit, item)) for count, item in most)


async def _filtered(visit: Visit, verb: ActionVerb, found: ItemFilter) -> Chosen:
    tenant = found.bulk_where.get("tenant")
    if tenant is not None and (visit.tenant not in (None, tenant) or not visit.access.shows(tenant)):
        raise NotShown(f"there is no tenant {tenant!r}")
    rules = VERBS[verb]
    if wrong := [each for each in found.filter.status if each not in rules.allowed]:
        raise InputError(f"status:{wrong[0]} does not go with {verb}: {rules.advice}", parameters=("q",))
    where = msgspec.structs.replace(
        found.filter,
        status=found.filter.status or rules.usual,
        tenant=visit.tenant or tenant,
        held=found.filter.held or verb == "unhold",
    )
    counted = ItemCount(EXAMPLES)
    source = filter_source(visit.client.backend, where, bulk=False, reach=REACH)
    deaths = Deaths(visit)
    await visit.in_time(
        counted.read(source, page=PORTION, seconds=COUNT_SECONDS, bounded=False, look=deaths.look)
    )
    return Chosen(
        filter=found,
        count=counted.count,
        more=counted.more,
        examples=tuple(brief(each) for each in counted.examples),
        causes=deaths.causes,
        looked_at=counted.count,
    )


async def with_tenants(visit: Visit, wanted: Sequence[WantedItem]) -> list[WantedItem]:
    """The items that are named, with their tenants. Only those without one are looked up, in one call: a
    bulk action finds out which of the others exist."""
    found, _ = await read_items(visit, [each for each in wanted if each.tenant is None])
    named = [each for each in wanted if each.tenant is not None]
    return named + [WantedItem(item.id, item.tenant) for item in found]


# ------------------------------------------------------------------------------------------------- stop


async def stop(visit: Visit) -> Response:
    """What it has changed stays changed."""
    form, id = await read_form(visit.request), visit.part("id")
    state = await visit.acting("stop_bulk", reason=reason_of(form)).bulk.stop(id)
    return finished(visit, form, "stop_bulk", to=visit.url(f"/bulk/{segment(id)}"), state=state.state)
