"""Requeue: open ended items again, and with them the items that died because of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from treadle.item import AuditNote, Changed, Filter, Status
from treadle.store.rules.listing import narrowed_filter

from .audit_bytes import pack_note
from .item_bytes import LETTERS, Argument, item_states
from .lists import pack_filter
from .operate import tenant_argument
from .portioned_change import RedisPortionedChange
from .scripts import RedisScript
from .verbs import RedisVerbs

PORTION: Final = 40
"""How many items a script requeues, if they are apart from others."""
REACH: Final = 500
"""How many ended items a script looks at."""

_REQUEUE: Final = RedisScript("requeue")
_FIND_ENDED: Final = RedisScript("find_ended")


class RedisRequeue(RedisVerbs):
    async def requeue(
        self,
        where: Sequence[str] | Filter,
        *,
        tenant: str | None = None,
        limit: int = 1000,
        redrives: int | None = None,
        backoff: float = 0.0,
        alone: bool = False,
        cancelled: bool = False,
        note: AuditNote | None = None,
    ) -> Changed:
        statuses: tuple[Status, ...] = ("dead", "cancelled") if cancelled else ("dead",)
        letters = b"".join(LETTERS[status] for status in statuses)
        most: Argument = b"" if redrives is None else redrives
        names: Sequence[Argument]
        found_by = b""
        if isinstance(where, Filter):
            narrowed = narrowed_filter(where, tenant, statuses)
            names = [] if narrowed is None else await self._find_ended(narrowed, most, limit)
            found_by = pack_filter(narrowed or where)
        else:
            names = where
        packed = pack_note(note, "requeue", where, tenant)
        args: list[Argument] = [most, backoff, int(alone), letters, found_by]
        change = RedisPortionedChange(_REQUEUE, packed, tenant_argument(tenant), args, PORTION)
        answers = await change.run(self._link, names, are_numbers=bool(found_by))
        return Changed(tuple(state for before, *_ in answers for state in item_states(before)))

    async def _find_ended(self, where: Filter, redrives: Argument, limit: int) -> list[bytes]:
        """The numbers of the oldest items that a filter finds. They may have changed when they are requeued,
        and are looked at again then."""
        letters = b"".join(LETTERS[status] for status in where.status)
        found: list[bytes] = []
        after: bytes | None = b""
        while after is not None and len(found) < limit:
            args = [pack_filter(where), letters, redrives, after, limit - len(found), REACH]
            numbers, last = await self._link.run(_FIND_ENDED, args, on="read")
            found += numbers
            after = last or None
        return found
