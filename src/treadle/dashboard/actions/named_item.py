"""Named item: the item that an action is about."""

from __future__ import annotations

import msgspec

from treadle.base.ids import check_name
from treadle.bulk_action import BULK_TYPE
from treadle.dashboard.access import NotShown
from treadle.dashboard.forms import Form
from treadle.dashboard.visit import Visit
from treadle.errors import ConflictError
from treadle.item import ItemState, Status

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
