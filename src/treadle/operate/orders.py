"""Orders: the methods of a client that pause and limit the fleet while it runs."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any

from msgspec.structs import replace

from treadle.base.ids import check_name
from treadle.base.timing import Duration, Instant, end, seconds
from treadle.doers.limit_rules import TYPE_LIMIT, check_limit, read_limit_name
from treadle.engine.core import Core
from treadle.errors import InputError
from treadle.item import AuditNote, Order
from treadle.store.audit_note import about, log_change, noted_about

from .tenant_view import read_orders

Until = Duration | Instant
"""When an order ends by itself: a number or a timedelta counts from now, but a number of a billion or more is
an instant, in epoch seconds."""


class OrderVerbs:
    """Pauses and limits that hold for all workers, also those that start later, until they are withdrawn or
    end by themselves. They know who has given them, when and why: see `by`."""

    _core: Core
    _tenant: str | None
    _note: AuditNote | None

    def _begin_change(self, what: str) -> Coroutine[Any, Any, None]:
        raise NotImplementedError

    async def pause(
        self,
        queue: str | None = None,
        *,
        type: str | None = None,
        tenant: str | None = None,
        until: Until | None = None,
    ) -> bool:
        """Start no more items of a queue, of a work type, or of a tenant. Running items go on. With `tenant`
        and a queue or a type: those of this tenant. Pauses are independent of each other: an item waits while
        one of them holds it. False if it is paused so already.

        until: when the pause ends by itself: seconds or a timedelta from now, or an instant: an aware
            datetime, or epoch seconds, which a number of a billion or more is. None: when it is resumed.
        """
        return await self._order(self._pause("pause", queue, type, tenant), until)

    async def resume(
        self, queue: str | None = None, *, type: str | None = None, tenant: str | None = None
    ) -> bool:
        """Withdraw the pause of a queue, of a work type, or of a tenant. Other pauses stay. False if it was
        not paused."""
        return await self._withdraw(self._pause("resume", queue, type, tenant))

    async def set_limit(
        self,
        name: str | None = None,
        limit: int | None = None,
        window: Duration | None = None,
        *,
        type: str | None = None,
        until: Until | None = None,
    ) -> bool:
        """Limit the whole fleet in place of what the code says: `limit` at once, or `limit` starts per
        `window` seconds. What runs goes on. False if it is limited so already.

        name: which limits: the `name` of the doer, or the work type that has it. `app`: those of the app's
            own doer. Without a window those on what runs at once are changed, with one those on starts.
            Their `per` stays. `InputError` if code here, or that of live workers, has limits of this name,
            but none of this kind. A name that is not known is kept: see `LimitUse.known`.
        type: instead of a name: limit this work type, in addition to what the code says, if anything.
        until: as for `pause`.
        """
        if limit is None:
            raise InputError("say how many: limit=4 for 4 at once, with window=60 for 4 starts a minute")
        if limit == 0:
            raise InputError.of("limit", limit, "must be 1 or more: to start nothing, pause it")
        check_limit(limit)
        order = self._limit(name, type, limit, None if window is None else seconds(window, field="window"))
        from treadle.engine.declared_limits import (
            check_kind,
            drops_items,
            live_workers,
        )  # few programs need it

        if order.type is not None and drops_items(self._core, order.type):
            raise InputError.of("type", type, "has a limit with on_full, which allows no other: set that one")
        if order.name is not None:
            await self._begin_change(order.verb)
            check_kind(self._core, await live_workers(self._core.backend), order)
        return await self._order(order, until)

    async def clear_limit(self, name: str | None = None, *, type: str | None = None) -> bool:
        """Withdraw what `set_limit` has ordered for a name or a work type: what the code says holds again.
        False if nothing was ordered."""
        slots, rate = (self._limit(name, type, None, window) for window in (None, 1.0))
        await self._begin_change(slots.undo)
        there = {each.subject for each in (await self._core.backend.orders()).orders}
        found = [each for each in (slots, rate) if each.subject in there] or [slots]
        return any([await self._withdraw(each) for each in found])

    async def orders(self) -> list[Order]:
        """Return the pauses and limits that were ordered and are in force: who has given them, when and
        why. A client of one tenant gets its own and those for all, without who and why."""
        await self._core.connect()
        return list(await read_orders(self._core.backend, self._tenant))

    # -- how ---------------------------------------------------------------------------------------------

    def _pause(self, verb: str, queue: str | None, type: str | None, tenant: str | None) -> Order:
        if tenant is not None and self._tenant not in (None, tenant):
            raise InputError.of("tenant", tenant, f"is not that of this client, which is {self._tenant!r}")
        tenant = self._tenant if tenant is None else tenant
        if queue is not None and type is not None:
            raise InputError(f"{verb} a queue or a type: not both at once")
        given = {"queue": queue, "type": type, "tenant": tenant}
        for field, value in given.items():
            if value is not None:
                check_name(value, field=field)
        if not any(given.values()):
            raise InputError(f"name what to {verb}: a queue, type= or tenant=")
        return Order(kind="pause", queue=queue, type=type, tenant=tenant)

    def _limit(self, name: str | None, type: str | None, limit: int | None, window: float | None) -> Order:
        if self._tenant is not None:
            raise InputError("limits are of the whole fleet: a client of one tenant cannot change them")
        if (name is None) == (type is None):
            raise InputError("name a limit, or give type=: one of them")
        check_name(name if type is None else type, field="name" if type is None else "type")
        if name is not None and (read := read_limit_name(name)) is not None:
            owner = read.owner.removeprefix(TYPE_LIMIT)
            given = f"type={owner!r}" if owner != read.owner else f"name={owner!r}"
            raise InputError.of("name", name, f"is a limit as the store counts it: give {given}")
        if window is not None and window <= 0:
            raise InputError.of("window", window, "must be more than 0 seconds")
        return Order(kind="limit", name=name, type=type, limit=limit, window=window)

    async def _order(self, order: Order, until: Until | None) -> bool:
        await self._begin_change(order.verb)
        ends = None if until is None else end(until, await self._core.backend.now())
        note = self._note
        order = replace(order, until=ends)
        if note is not None:
            order = replace(order, actor=note.actor, reason=note.reason)
        changed = await self._core.backend.order(order, note=noted_about(note, _asked(order)))
        log_change(note, order.verb, [order.about], int(changed), order.tenant)
        self._core.wakeups.ready()
        return changed

    async def _withdraw(self, order: Order) -> bool:
        await self._begin_change(order.undo)
        changed = await self._core.backend.withdraw(order, note=noted_about(self._note, _asked(order)))
        log_change(self._note, order.undo, [order.about], int(changed), order.tenant)
        self._core.wakeups.ready()
        return changed


def _asked(order: Order) -> str:
    """What was asked for, beside what the audit entry says."""
    given = {"type": order.type, "limit": order.limit, "window": order.window}
    asked = {name: value for name, value in given.items() if value is not None}
    return about(asked | ({} if order.until is None else {"until": order.until}))
