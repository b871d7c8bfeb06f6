"""Act: change several items: those that were chosen, or all that match a filter."""

from __future__ import annotations

from typing import Final

import msgspec
from starlette.responses import JSONResponse, Response

from treadle.bulk_action import ActionVerb, BulkState
from treadle.dashboard.access import NotShown
from treadle.dashboard.addresses import chosen_id
from treadle.dashboard.forms import Form, read_form
from treadle.dashboard.site import wants_json
from treadle.dashboard.visit import Visit
from treadle.errors import ConflictError, InputError
from treadle.item import Status
from treadle.operate.bulk_portion import VERBS

from .answers import asking, back_of, finished, reason_of
from .chosen import MOST_AT_ONCE, Chosen, read_chosen, with_tenants
from .fields import read_number, read_whole
from .named_item import NO_FORM, ItemBrief
from .portion import change_items, refused_items, tell_refused

WITHOUT_ASKING: Final = ("requeue", "trigger")
"""What is done at once to a few chosen items: it can be undone, or does no harm. One item is also cancelled
at once."""

OTHERS: Final = 20
"""So many bulk actions are looked at for those that have not ended."""


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
    return ActPage(
        verb=verb,
        count=chosen.count,
        more=chosen.more,
        examples=chosen.examples,
        filter="" if chosen.filter is None else chosen.filter.text,
        statuses=VERBS[verb].usual if chosen.filter is not None and not chosen.filter.filter.status else (),
        ids=tuple(chosen_id(id, None if visit.tenant else tenant) for id, tenant in chosen.refs),
        needs_reason=verb == "delete" or chosen.is_large,
        is_bulk=chosen.filter is not None or chosen.is_large,
        has_canary=VERBS[verb].canary,
        asks_open=verb == "delete" and chosen.filter is None and not chosen.is_large,
        typed={
            **{name: form.get(name) for name in ("reason", "rate", "canary", "open")},
            "back": form.get("back") or visit.query("back"),
        },
    )


async def _act(visit: Visit, verb: ActionVerb, chosen: Chosen, page: ActPage, form: Form) -> Response:
    what = "deleting items" if verb == "delete" else f"changing more than {MOST_AT_ONCE} items"
    reason = reason_of(form, needed_for=what if page.needs_reason else "")
    if not page.is_bulk:
        return await _act_now(visit, verb, chosen, reason, form)
    rate = read_number(form.get("rate"), "rate") if form.get("rate") else None
    canary = read_whole(form.get("canary"), "canary") if form.get("canary") and page.has_canary else 0
    bulk = visit.acting(verb, reason=reason).bulk
    if chosen.filter is None:
        items = await with_tenants(visit, chosen.refs)
        if not items:
            raise ConflictError("none of these items exists any more")
        state = await bulk.start(verb, ids=items, rate=rate, canary=canary)
    else:
        state = await bulk.start(verb, rate=rate, canary=canary, **chosen.filter.bulk_where)
    visit.site.bulk_runs.start()
    return finished(visit, NO_FORM, "bulk", to=visit.url(f"/bulk/{state.id}"), bulk=state.id)


async def _act_now(visit: Visit, verb: ActionVerb, chosen: Chosen, reason: str, form: Form) -> Response:
    changed, refused = await change_items(visit, verb, chosen.refs, reason=reason, open=form.has("open"))
    to = visit.url("/items")
    if not refused:
        return finished(visit, form, verb, changed, to=to)
    if wants_json(visit.request):
        not_changed = [msgspec.to_builtins(each) for each in refused_items(refused)]
        return JSONResponse(
            {"done": verb, "count": changed, "refused": len(refused), "not_changed": not_changed}
        )
    return tell_refused(visit, verb, changed, refused, back=back_of(visit, form, to))
