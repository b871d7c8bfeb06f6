"""Operate: cancel, complete, trigger, delete, pause and prune."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Final

from treadle.errors import AlreadyEnded, NotFound, NotTriggerable, ReferencedError
from treadle.item import AuditNote, Changed

from .audit_bytes import pack_note
from .effects import joined_effects, read_effects
from .item_bytes import STATUSES, Argument, item_states
from .portioned_change import RedisPortionedChange
from .scripts import RedisScript
from .stage import RedisStages

PORTION: Final = 300
"""How many items a script of prune looks at."""
CANCEL_PORTION: Final = 60
"""How many items a script cancels, if they are apart from others."""
MOST_RECORDS: Final = 1000
"""How many old records of each kind a prune removes."""

_CANCEL: Final = RedisScript("cancel")
_COMPLETE: Final = RedisScript("complete")
_TRIGGER: Final = RedisScript("trigger")
_DELETE: Final = RedisScript("delete")
_PAUSE: Final = RedisScript("pause")
_PRUNE: Final = RedisScript("prune")
_PRUNE_RECORDS: Final = RedisScript("prune_records")


def tenant_argument(tenant: str | None) -> str:
    """A tenant as `Trees.tenant` in trees.lua reads it."""
    return "" if tenant is None else f"t{tenant}"


class RedisOperate(RedisStages):
    async def cancel(
        self,
        ids: Sequence[str],
        *,
        tenant: str | None = None,
        only_open: bool = False,
        note: AuditNote | None = None,
    ) -> Changed:
        packed = pack_note(note, "cancel", ids, tenant)
        named = (int(only_open),)
        change = RedisPortionedChange(_CANCEL, packed, tenant_argument(tenant), named, CANCEL_PORTION)
        answers = await change.run(self._link, ids)
        items = [state for before, *_ in answers for state in item_states(before)]
        return Changed(tuple(items), joined_effects(read_effects(effects) for *_, effects in answers))

    async def complete(
        self, id: str, result: bytes | None, *, tenant: str | None = None, note: AuditNote | None = None
    ) -> Changed:
        packed = pack_note(note, "complete", [id], tenant)
        value = b"" if result is None else b"r" + result
        answer = await self._link.run(_COMPLETE, [packed, tenant_argument(tenant), value, os.urandom(3), id])
        if not answer:
            raise NotFound(id)
        if len(answer) == 1:
            raise AlreadyEnded(id, STATUSES[answer[0]])
        return Changed(item_states(answer[0]), read_effects(answer[1]))

    async def trigger(
        self, ids: Sequence[str], *, tenant: str | None = None, note: AuditNote | None = None
    ) -> Changed:
        named: list[str] = list(dict.fromkeys(ids))
        packed = pack_note(note, "trigger", ids, tenant)
        answer = await self._link.run(_TRIGGER, [packed, tenant_argument(tenant), *named])
        if len(answer) == 1:
            return Changed(item_states(answer[0]))
        place: int = answer[0]
        status: bytes = answer[1]
        if not status:
            raise NotFound(named[place - 1])
        raise NotTriggerable(named[place - 1], STATUSES[status])

    async def delete(
        self,
        group_ids: Sequence[str],
        *,
        tenant: str | None = None,
        cascade: bool = False,
        note: AuditNote | None = None,
    ) -> Changed:
        packed = pack_note(note, "delete", group_ids, tenant)
        args: list[Argument] = [packed, tenant_argument(tenant), int(cascade), *group_ids]
        answer = await self._link.run(_DELETE, args)
        if len(answer) > 1:
            raise ReferencedError([(id.decode(), waiter.decode()) for id, waiter in answer[1]])
        return Changed(item_states(answer[0]))

    async def pause(
        self,
        queue: str,
        paused: bool = True,
        *,
        tenant: str | None = None,
        note: AuditNote | None = None,
    ) -> None:
        packed = pack_note(note, "pause" if paused else "resume", [queue], tenant)
        name = queue if tenant is None else f"{queue}\0{tenant}"
        await self._link.run(_PAUSE, [packed, name, int(paused)])

    async def prune(self, limit: int = 1000) -> int:
        removed, more = 0, True
        while more and removed < limit:
            found, more = await self._link.run(_PRUNE, [limit - removed, PORTION])
            removed += found
        await self._drop_abandoned_stages()
        await self._link.run(_PRUNE_RECORDS, [max(0, min(limit, MOST_RECORDS))])
        return removed
