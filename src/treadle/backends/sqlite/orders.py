"""Orders of operators: pauses and limits."""

from __future__ import annotations

from treadle.item import Order, Orders
from treadle.store.rules.orders import in_force, next_orders, order_bytes, read_order

from .statements import Tx, statements

_SQL = statements("orders")


def put(tx: Tx, order: Order) -> bool:
    body = order_bytes(order)
    if tx.rows(_SQL["known"], order.subject, tx.now) == [(body,)]:
        return False
    part = order.paused_part or (None, None)
    tx.run(_SQL["put"], order.subject, *part, order.until, tx.now, body)
    _change_version(tx)
    return True


def withdraw(tx: Tx, order: Order) -> bool:
    known = bool(tx.rows(_SQL["known"], order.subject, tx.now))
    tx.run(_SQL["withdraw"], order.subject)
    if known:
        _change_version(tx)
    return known


def _change_version(tx: Tx) -> None:
    tx.run(_SQL["set_version"], next_orders(tx.rows(_SQL["version"])[0][0], tx.now))


def read(tx: Tx) -> Orders:
    (version,) = tx.rows(_SQL["version"])[0]
    return in_force(version, [read_order(*row) for row in tx.rows(_SQL["orders"])], tx.now)


def paused(tx: Tx) -> set[tuple[str, str]]:
    """The pauses in force that claims obey: see `Order.paused_part`."""
    return set(tx.rows(_SQL["paused"], tx.now))


def prune_orders(tx: Tx) -> None:
    tx.run(_SQL["delete_ended"], tx.now)
