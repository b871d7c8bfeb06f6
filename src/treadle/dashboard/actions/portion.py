"""Portion: change a few items with one verb, and tell those that stay as they are."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

import msgspec
from starlette.responses import Response

from treadle.bulk_action import ActionVerb
from treadle.client import Client
from treadle.dashboard.visit import Visit
from treadle.errors import ConflictError
from treadle.item import ItemState
from treadle.operate.bulk_portion import VERBS
from treadle.operate.portions import (
    Deletion,
    PortionChanger,
    PortionOutcome,
    Refusal,
    Requeue,
    WantedItem,
    cancel_items,
    refuse_status,
    trigger_items,
)

from .chosen import read_items
from .named_item import check_no_portion

Change = Callable[[Client, Sequence[ItemState]], Awaitable[PortionOutcome]]
OPEN_GROUP = "allow it, or cancel them first"


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
) -> tuple[int, list[Refusal]]:
    """Change items that are named. Returns how many were changed, with those that changed along with them,
    and the refusals.

    open: delete groups that are still open too.
    """
    items, missing = await read_items(visit, wanted)
    return await change(visit, verb, items, change_of(verb, open=open), reason=reason, missing=missing)


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


def change_of(verb: ActionVerb, *, open: bool = False) -> Change:
    """The function for a verb. open: delete groups that are still open too."""
    match verb:
        case "requeue":
            return Requeue(alone=False, cancelled=True).change
        case "cancel":
            return cancel_items
        case "trigger":
            return trigger_items
        case "delete":
            return Deletion(open=open, advice=OPEN_GROUP).change


def _refusal(verb: ActionVerb, item: ItemState) -> Refusal | None:
    try:
        check_no_portion(item)
    except ConflictError as error:
        return Refusal(item.id, item.tenant, error)
    if verb in ("requeue", "trigger"):
        return refuse_status(item, VERBS[verb].allowed, VERBS[verb].advice)
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
