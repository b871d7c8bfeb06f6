"""Orders of operators: pauses and limits."""

from __future__ import annotations

from math import inf

from msgspec.structs import replace

from treadle.item import Order, Orders
from treadle.store.rules.orders import in_force, next_orders

from .tables import MemoryTables


def put(store: MemoryTables, order: Order, now: float) -> bool:
    drop_ended(store, now)
    order = replace(order, at=now)
    known = store.orders.get(order.subject)
    if known is not None and replace(known, at=now) == order:
        return False
    store.orders[order.subject] = order
    _changed(store, order, now)
    return True


def withdraw(store: MemoryTables, order: Order, now: float) -> bool:
    drop_ended(store, now)
    if store.orders.pop(order.subject, None) is None:
        return False
    _changed(store, order, now)
    return True


def read(store: MemoryTables, now: float) -> Orders:
    return in_force(store.orders_version, store.orders.values(), now)


def drop_ended(store: MemoryTables, now: float) -> None:
    """Forget the orders whose time has passed."""
    if now >= store.orders_end:
        for order in [each for each in store.orders.values() if each.until is not None and each.until <= now]:
            del store.orders[order.subject]
            apply(store, order)


def _changed(store: MemoryTables, order: Order, now: float) -> None:
    store.orders_version = next_orders(store.orders_version, now)
    apply(store, order)


def apply(store: MemoryTables, order: Order) -> None:
    """Leave out the lines that it pauses, or let them in again."""
    store.orders_end = min(
        (each.until for each in store.orders.values() if each.until is not None), default=inf
    )
    part = order.paused_part
    if part is None:
        return
    if order.subject in store.orders:
        store.paused.add(part)
    else:
        store.paused.discard(part)
    for items in (store.ready, *store.parked.values()):
        items.pause(*part)
