"""Orders of operators: pauses and limits."""

from __future__ import annotations

from typing import Final

from treadle.item import AuditNote, Order, Orders
from treadle.store.rules.orders import in_force, order_bytes, read_order

from .item_bytes import Argument, pack_double, read_double
from .link import RedisVerbs
from .record_bytes import pack_note
from .scripts import RedisScript

_ORDER: Final = RedisScript("order")
_ORDERS: Final = RedisScript("orders")


class RedisOrders(RedisVerbs):
    async def order(self, order: Order, *, note: AuditNote | None = None) -> bool:
        ends = b"" if order.until is None else pack_double(order.until)
        packed = pack_note(note, order.verb, [order.about], order.tenant)
        given: list[Argument] = [packed, order.subject, paused_key(order), ends, order_bytes(order)]
        return bool(await self._link.run(_ORDER, given))

    async def withdraw(self, order: Order, *, note: AuditNote | None = None) -> bool:
        packed = pack_note(note, order.undo, [order.about], order.tenant)
        return bool(await self._link.run(_ORDER, [packed, order.subject, paused_key(order), b"", b""]))

    async def orders(self) -> Orders:
        now, pauses, stored = await self._link.run(_ORDERS, on="read")
        rows = dict(zip(stored[::2], stored[1::2], strict=True))
        version = int(rows.pop(b"", b"0"))
        found = [read_order(row[16:], read_double(row[:8])) for row in rows.values()]
        # Earlier versions of this library know `paused` alone.
        parts = set(pauses[::2])
        known = [each for each in found if not (part := paused_key(each)) or part.encode() in parts]
        parts -= {paused_key(each).encode() for each in known}
        for part in parts:
            queue, _, tenant = part.decode().partition("\0")
            known.append(Order(kind="pause", queue=queue, tenant=tenant or None))
        return in_force(version, known, read_double(now))


def paused_key(order: Order) -> str:
    """The name under which claims find a pause. Empty: workers obey the order."""
    if order.paused_part is None:
        return ""
    return (order.queue or "") + ("" if order.tenant is None else f"\0{order.tenant}")
