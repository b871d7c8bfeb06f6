"""Edited item: run an ended item again with other arguments, as a new item whose parent it is."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from treadle.client import Client
from treadle.define.work import Work
from treadle.engine.submit.build_item import encode_stored, read_stored
from treadle.engine.submit.enqueue import submit
from treadle.errors import ConflictError
from treadle.handle import Handle, submitted_handle
from treadle.item import Item, ItemState
from treadle.options import ENQUEUE_OPTIONS, check_options

from .operator import core_of, note_of


async def submit_edited(
    client: Client, old: ItemState, work: Work[Any, Any], *, key: str | None = None
) -> Handle[Any, Any]:
    """Submit a Work in place of an item that has ended: in the same tenant, queue, lane and workflow, with
    the same priority, attempts, timeout, headers and compensation. It is the root of a group of its own. The
    old item stays as it is.

    key: its idempotency key. `ConflictError` if an item of an open group has it.
    """
    core = core_of(client)
    await client.connect()
    now = await core.backend.now()
    options: dict[str, Any] = {
        "queue": old.queue,
        "lane": old.lane,
        "priority": old.priority,
        "workflow": old.workflow,
        "workflow_type": old.workflow_type,
        "headers": dict(old.headers),
        "key_policy": "existing",
        **({"unique": False} if key is None else {"key": key, "key_scope": "open"}),
        **({"deadline": old.deadline} if old.deadline is not None and old.deadline > now else {}),
    }
    checked = check_options(options, "enqueue", ENQUEUE_OPTIONS)

    def as_child(item: Item) -> Item:
        return _as_child(item, old)

    note = note_of(client)
    if note is not None:
        note = replace(note, verb="edit", about=f"edit of {old.id}")
    (answer,) = await submit(core, old.tenant, (work,), checked, note=note, change=as_child)
    if answer.existing:
        raise ConflictError(f"nothing was queued: the item {answer.id} has the key {key!r}")
    return submitted_handle(core, old.tenant, answer, note_of(client))


def _as_child(item: Item, old: ItemState) -> Item:
    """The new item, with what is stored about the old one."""
    stored, own = read_stored(old.options), read_stored(item.options)
    options = replace(own, retry=stored.retry, timeout=stored.timeout, on_dead=stored.on_dead)
    return replace(item, parent=old.id, attempts=old.attempts, options=encode_stored(options))
