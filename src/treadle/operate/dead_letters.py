"""Dead letters: the methods of a client for its dead items, `app.dead`."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from typing import Any, Final

from treadle.define.option_checks import check_count
from treadle.engine.open_transaction import refuse_in_transaction
from treadle.engine.read_refs import by_tenant, outermost_groups
from treadle.item import AuditNote, ItemState, Page, Status
from treadle.item_facts import DeadMark
from treadle.store.audit_note import noted_about

from .filters import words_text
from .observer import begin_read
from .operator import Ids, Operator, core_of, note_of, tenant_of

PORTION: Final = 1000
"""How many items one step changes, where a filter may find any number."""


class DeadLetters:
    """The dead items: `app.dead`."""

    def __init__(self, operator: Operator) -> None:
        self._operator = operator

    async def list(self, /, **where: Any) -> Page:
        """Return dead items, newest first, with their failed attempts. Takes the arguments of `app.list`,
        except the status."""
        where.setdefault("history", True)
        return await self._operator.list("dead", **where)

    async def marks(self, *, count: int = 100, cap: int = 10_000) -> Sequence[DeadMark]:
        """Return the marks of dead items: what they died of, and how many died alike. At most `count`, those
        with the newest deaths first. Each counts up to `cap` items."""
        check_count(count, "count")
        check_count(cap, "cap")
        core = core_of(self._operator)
        await begin_read(core)
        return await core.backend.marks(tenant=tenant_of(self._operator), count=count, cap=cap)

    async def requeue(
        self, /, ids: Ids | None = None, *, alone: bool = False, cancelled: bool = False, **where: Any
    ) -> int:
        """As `app.requeue`, for the named items, or for all that a filter (as for `list`) finds. Each item is
        requeued once: one that dies again meanwhile stays dead. Returns how many items are open again."""
        refuse_in_transaction(core_of(self._operator).backend, "dead.requeue()")
        if ids is not None:
            return await self._operator.requeue(ids, alone=alone, cancelled=cancelled)
        total = 0
        statuses: tuple[Status, ...] = ("dead", "cancelled") if cancelled else ("dead",)
        async for tenant, items in self._found(where, statuses):
            # Oldest first, so that they become ready in the order of their submission.
            operator = Operator(core_of(self._operator), tenant, self._note(where, statuses))
            total += await operator.requeue(items[::-1], alone=alone, cancelled=cancelled)
        return total

    async def delete(self, /, ids: Ids | None = None, **where: Any) -> int:
        """Remove dead items with their groups, and with the groups around these: the items named, or all that
        a filter finds. Returns how many items were removed."""
        refuse_in_transaction(core_of(self._operator).backend, "dead.delete()")
        total = 0
        if ids is not None:
            named = await self._operator.get(ids)
            found = by_tenant(item for item in named if item is not None and item.status == "dead")
            for owner, dead in found.items():
                total += await self._delete(owner, dead, note_of(self._operator))
            return total
        async for tenant, items in self._found(where):
            total += await self._delete(tenant, items, self._note(where))
        return total

    def _note(self, where: dict[str, Any], statuses: tuple[Status, ...] = ("dead",)) -> AuditNote | None:
        """The note of a change of what a filter finds."""
        return noted_about(note_of(self._operator), words_text({"status": ",".join(statuses), **where}))

    async def _delete(self, tenant: str, items: Sequence[ItemState], note: AuditNote | None) -> int:
        core = core_of(self._operator)
        around = await outermost_groups(core.backend, {item.group_id for item in items}, tenant=tenant)
        groups = sorted({group.id for group in around.values()})
        return await Operator(core, tenant, note).delete(groups) if groups else 0

    async def _found(
        self, where: dict[str, Any], statuses: tuple[Status, ...] = ("dead",)
    ) -> AsyncGenerator[tuple[str, Sequence[ItemState]]]:
        """Yield the items that a filter finds, at most `limit`, in portions of one tenant. Two tenants may
        use the same id for different items."""
        left, cursor = where.pop("limit", None), where.pop("cursor", None)
        while left is None or left > 0:
            limit = min(left or PORTION, PORTION)
            page = await self._operator.list(statuses, **where, limit=limit, cursor=cursor)
            for portion in by_tenant(page.items).items():
                yield portion
            if page.cursor is None:
                return
            cursor = page.cursor
            left = None if left is None else left - len(page.items)
