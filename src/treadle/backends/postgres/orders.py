"""Orders of operators: pauses and limits."""

from __future__ import annotations

from treadle.item import AuditNote, Order, Orders
from treadle.store.rules.orders import in_force, order_bytes, read_order
from treadle.store.rules.records import noted_change

from .connection import PostgresVerbs
from .records import rows_noted
from .statements import statement


class PostgresOrders(PostgresVerbs):
    async def order(self, order: Order, *, note: AuditNote | None = None) -> bool:
        change = noted_change(note, order.verb, order.tenant, [order.about])
        part = order.paused_part or (None, None)
        given = order.subject, *part, order.until, order_bytes(order)
        return bool(await rows_noted(self._calls, "orders", "put", change, *given))

    async def withdraw(self, order: Order, *, note: AuditNote | None = None) -> bool:
        change = noted_change(note, order.undo, order.tenant, [order.about])
        return bool(await rows_noted(self._calls, "orders", "withdraw", change, order.subject))

    async def orders(self) -> Orders:
        rows = await self._calls.rows(statement("orders", "orders"))
        found = [read_order(row["body"], row["at"]) for row in rows if row["body"] is not None]
        return in_force(rows[0]["version"], found, rows[0]["now"])
