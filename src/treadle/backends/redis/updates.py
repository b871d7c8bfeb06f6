"""Update: change items that have not started."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from msgspec import UNSET, msgpack

from treadle.errors import NotFound, NotUpdatable
from treadle.item import AuditNote, Changed, ItemUpdate

from .audit_bytes import pack_note
from .item_bytes import STATUSES, item_states, pack_priority
from .operate import tenant_argument
from .scripts import RedisScript
from .verbs import RedisVerbs

_UPDATE: Final = RedisScript("update")

_encode: Final = msgpack.Encoder().encode


class RedisUpdates(RedisVerbs):
    async def update(
        self,
        ids: Sequence[str],
        changes: ItemUpdate,
        *,
        tenant: str | None = None,
        note: AuditNote | None = None,
    ) -> Changed:
        named = list(dict.fromkeys(ids))
        packed = pack_note(note, "update", ids, tenant)
        answer = await self._link.run(
            _UPDATE, [packed, tenant_argument(tenant), pack_update(changes), *named]
        )
        if len(answer) == 1:
            return Changed(item_states(answer[0]))
        place: int = answer[0]
        status: bytes = answer[1]
        if not status:
            raise NotFound(named[place - 1])
        raise NotUpdatable(named[place - 1], STATUSES[status])


def pack_update(changes: ItemUpdate) -> bytes:
    """What update.lua gets. What stays as it is, is left out."""
    values: dict[str, object] = {}
    if changes.run_at is not UNSET:
        values["at"] = float(changes.run_at)
    if changes.priority is not UNSET:
        # Scripts cannot read the binary type of msgpack.
        values["p"] = [*pack_priority(changes.priority)]
    if changes.lane is not UNSET:
        values["l"] = changes.lane
    if changes.queue is not UNSET:
        values["q"] = changes.queue
    if changes.deadline is not UNSET:
        values["d"] = False if changes.deadline is None else float(changes.deadline)
    return _encode(values)
