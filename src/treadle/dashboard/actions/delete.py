"""Delete: remove an item with its group, and the groups around that."""

from __future__ import annotations

from typing import Final

import msgspec
from starlette.responses import Response

from treadle.dashboard.forms import Form, read_form
from treadle.dashboard.visit import Visit
from treadle.errors import ConflictError, InputError
from treadle.item import ItemState
from treadle.operate.portions import Deletion

from .answers import asking, finished, reason_of
from .named_item import ItemBrief, brief, read_item
from .portion import OPEN_GROUP, change

COUNTED: Final = 1000
FIELDS: Final = ("open", "cascade", "reason")


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
