"""Endings: how a row ends, and who is told."""

from __future__ import annotations

from collections.abc import Sequence

from treadle.item import Status

from . import gates
from .following import Following
from .groups import member_ended
from .moves import forget_deadline, set_status, withdraw
from .rows import Row
from .store import Store


def end(store: Store, row: Row, status: Status, now: float) -> None:
    """It has ended. Those who wait for it, and its group, are to be told before the verb is over."""
    withdraw(store, row)
    if row.expiry is not None:
        forget_deadline(store, row)
    if row.gate is not None:
        gates.forget(store, row)
    set_status(row, status)
    row.ended_at = now
    row.doom = None
    row.overdue = False
    if status == "dead":
        store.dead[row] = None


def tell(store: Store, row: Row, now: float, following: Following) -> None:
    if store.waiters:
        gates.prerequisite_ended(store, row, now, following)
    member_ended(store, row, now, following)


def end_all(store: Store, rows: Sequence[Row], status: Status, now: float, following: Following) -> None:
    """End several at once: what one of them means to another that ends with it does not matter any more."""
    for row in rows:
        end(store, row, status, now)
    for row in rows:
        tell(store, row, now, following)
