"""Item verbs: requeue, cancel, trigger, hold and delete an item, or a few that were chosen; repair."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec
from starlette.responses import Response

from treadle.base.ids import check_name
from treadle.bulk_action import BULK_TYPE, ActionVerb
from treadle.client import Client
from treadle.dashboard.access import NotShown
from treadle.dashboard.forms import Form, read_form
from treadle.dashboard.visit import Visit, wants_json
from treadle.errors import ConflictError, InputError
from treadle.item import ItemState, Status
from treadle.operate.changes import (
    VERBS,
    Change,
    Deletion,
    PortionChanger,
    Refusal,
    Requeue,
    WantedItem,
    change_of,
    read_named,
    refuse_verb,
)
from treadle.options import UpdateOptions

from .answers import asking, back_of, finished, reason_of

OPEN_GROUP: Final = "allow it, or cancel them first"
COUNTED: Final = 1000
"""The most members of a group that are counted before it is deleted."""
FIELDS: Final = ("open", "cascade", "reason")


async def requeue(visit: Visit) -> Response:
    return await _change(visit, "requeue")


async def cancel(visit: Visit) -> Response:
    return await _change(visit, "cancel")


async def trigger(visit: Visit) -> Response:
    return await _change(visit, "trigger")


async def hold(visit: Visit) -> Response:
    return await _change(visit, "hold")


async def unhold(visit: Visit) -> Response:
    return await _change(visit, "unhold")


async def _change(visit: Visit, verb: ActionVerb) -> Response:
    """Change the item. A page says why it cannot be changed; for programs that is raised."""
    form = await read_form(visit.request)
    item = await read_item(visit, form)
    step = form.get("from_step") if verb == "requeue" else ""
    by = Requeue(alone=False, cancelled=True, from_step=step).change if step else change_of(verb)
    count, refused = await change(visit, verb, [item], by, reason=reason_of(form))
    to = visit.item_url(item.id, item.tenant)
    if not refused or count:
        return finished(visit, form, verb, count, to=to)
    if wants_json(visit.request):
        raise refused[0].error
    return tell_refused(visit, verb, count, refused, back=back_of(visit, form, to))


# ------------------------------------------------------------------------------------------ a few items


class RefusedItem(msgspec.Struct, frozen=True):
    """An item that was not changed, and why."""

    id: str
    tenant: str | None
    message: str


class RefusedPage(msgspec.Struct, frozen=True):
    """What became of the items, where some were not changed."""

    verb: ActionVerb
    changed: int
    refused: list[RefusedItem]
    back: str


async def change_items(
    visit: Visit,
    verb: ActionVerb,
    wanted: Sequence[WantedItem],
    *,
    reason: str,
    open: bool = False,
    changes: UpdateOptions | None = None,
) -> tuple[int, list[Refusal]]:
    """Change items that are named. Returns how many were changed, with those that changed along with them,
    and the refusals.

    open: delete groups that are still open too. changes: what an update changes.
    """
    items, missing = await read_items(visit, wanted)
    by = change_of(verb, open=open, advice=OPEN_GROUP, changes=changes)
    return await change(visit, verb, items, by, reason=reason, missing=missing)


async def read_items(visit: Visit, wanted: Sequence[WantedItem]) -> tuple[list[ItemState], list[Refusal]]:
    """The items that are named, in their order, and those that do not exist. `NotShown` if one is not for
    this visitor."""
    for tenant in {each.tenant for each in wanted}:
        visit.client_of(tenant)
    return await read_named(visit.client.backend, wanted)


async def change(
    visit: Visit,
    verb: ActionVerb,
    items: Sequence[ItemState],
    by: Change,
    *,
    reason: str,
    missing: Sequence[Refusal] = (),
) -> tuple[int, list[Refusal]]:
    """Change these items by a function."""

    def client_of(tenant: str) -> Client:
        return visit.acting(verb, tenant=tenant, reason=reason)

    changer = PortionChanger(client_of, by, lambda item: _refusal(verb, item))
    _, refused = await changer.change(items, missing)
    return changer.changed, list(refused)


def _refusal(verb: ActionVerb, item: ItemState) -> Refusal | None:
    try:
        check_no_portion(item)
    except ConflictError as error:
        return Refusal(item.id, item.tenant, error)
    if verb in ("requeue", "trigger", "hold", "unhold", "update"):
        return refuse_verb(verb, item, VERBS[verb].allowed)
    return None


def tell_refused(
    visit: Visit, verb: ActionVerb, changed: int, refused: Sequence[Refusal], *, back: str
) -> Response:
    """The page that says why items were not changed."""
    page = RefusedPage(verb, changed, refused_items(refused), back)
    status = 200 if changed else 409
    return visit.site.render(visit, "not_changed.html", status=status, section="items", page=page, live=False)


def refused_items(refused: Sequence[Refusal]) -> list[RefusedItem]:
    return [RefusedItem(each.id, each.tenant, each.message) for each in refused]


# ----------------------------------------------------------------------------------------------- delete


class DeletePage(msgspec.Struct, frozen=True):
    item: ItemBrief
    group_id: str
    count: int
    """Of the group's items, up to a bound."""
    more: bool
    open: int
    nested: bool
    """There are groups around it: whether these are open, and what they wait for, is not looked at."""
    waits: bool
    """Members wait for others, or waited."""
    typed: dict[str, str]


async def delete(visit: Visit) -> Response:
    """Ask, and remove it."""
    form = await read_form(visit.request)
    item = await read_item(visit, form)
    if visit.request.method == "POST":
        try:
            return await _delete(visit, item, form)
        except (InputError, ConflictError) as error:
            return asking(visit, "ask_delete.html", "items", await _page(visit, item, form), error=error)
    return asking(visit, "ask_delete.html", "items", await _page(visit, item, form))


async def _page(visit: Visit, item: ItemState, form: Form) -> DeletePage:
    client = visit.client_of(item.tenant)
    group = await client.group(item.group_id)
    members = await client.list(group_id=item.group_id, limit=COUNTED)
    return DeletePage(
        item=brief(item),
        group_id=item.group_id,
        count=len(members.items),
        more=members.cursor is not None,
        open=0 if group is None else group.open,
        nested=group is not None and group.outer is not None,
        waits=any(each.after for each in members.items),
        typed={name: form.get(name) for name in FIELDS},
    )


async def _delete(visit: Visit, item: ItemState, form: Form) -> Response:
    reason = reason_of(form, needed_for="deleting items")
    deletion = Deletion(open=form.has("open"), advice=OPEN_GROUP, cascade=form.has("cascade"))
    count, refused = await change(visit, "delete", [item], deletion.change, reason=reason)
    if refused and not count:
        raise refused[0].error
    return finished(visit, form, "delete", count, to=visit.url("/items"))


# ----------------------------------------------------------------------------------------------- repair


async def repair(visit: Visit) -> Response:
    """Requeue the items whose deaths failed it."""
    form, id = await read_form(visit.request), visit.part("id")
    group = await visit.client_of(read_tenant(visit, form, f"there is no group {id!r}")).group(id)
    if group is None:
        raise NotShown(f"there is no group {id!r}")
    if group.type == BULK_TYPE:
        raise ConflictError(f"group {id!r} is a bulk action: start another one")
    client = visit.acting("requeue", tenant=group.tenant, reason=reason_of(form))
    count = await client.repair(id)
    if not count:
        raise ConflictError(f"there is nothing to run again in group {id!r}: no death failed it")
    return finished(visit, form, "requeue", count, to=visit.group_url(id, group.tenant))


NO_FORM = Form({})


class ItemBrief(msgspec.Struct, frozen=True):
    """An item in short, for a page that asks."""

    id: str
    tenant: str
    type: str
    status: Status
    queue: str
    queued_at: float


def brief(item: ItemState) -> ItemBrief:
    return ItemBrief(item.id, item.tenant, item.type, item.status, item.queue, item.queued_at)


async def read_item(visit: Visit, form: Form = NO_FORM) -> ItemState:
    """The item in the path. `of` names its tenant, where the visitor sees several. `NotShown` if there is
    none, or if it is not for this visitor: both look alike."""
    id = visit.part("id")
    missing = f"there is no item {id!r}"
    (item,) = await visit.client_of(read_tenant(visit, form, missing)).get([id])
    if item is None:
        raise NotShown(missing)
    check_no_portion(item)
    return item


def read_tenant(visit: Visit, form: Form, missing: str) -> str | None:
    """The tenant of what is changed: that of the visit, or `of`. `NotShown`, which says `missing`, if it is
    not for this visitor."""
    of, tenant = form.get("of") or visit.query("of"), visit.tenant
    if not of:
        return tenant
    check_name(of, field="of")
    if tenant not in (None, of) or not visit.access.shows(of):
        raise NotShown(missing)
    return of


def check_no_portion(item: ItemState) -> None:
    """`ConflictError` for an item of a bulk action: it changes others by a verb that may not be allowed."""
    if item.type == BULK_TYPE:
        raise ConflictError(f"item {item.id!r} is a part of a bulk action: stop that, or start another one")
