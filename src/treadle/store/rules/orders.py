"""Orders: what stores share that keep orders of operators, and what follows from them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import Final

import msgspec
from msgspec.structs import replace

from treadle.item import AvoidedLane, Order, Orders

_encode: Final = msgspec.json.Encoder().encode
_decode: Final = msgspec.json.Decoder(Order).decode


def order_bytes(order: Order) -> bytes:
    """An order as stored, without the time at which it was given."""
    return _encode(replace(order, at=0.0))


def read_order(stored: bytes, at: float) -> Order:
    return replace(_decode(stored), at=at)


def next_orders(version: int, now: float) -> int:
    """The version after a change. A store that has forgotten its last changes does not use theirs again."""
    return max(version + 1, int(now * 1e6))


def in_force(version: int, orders: Iterable[Order], now: float) -> Orders:
    found = [each for each in orders if each.until is None or each.until > now]
    return Orders(version, tuple(sorted(found, key=lambda each: each.subject)), now)


def is_paused(parts: Collection[tuple[str, str]], queue: str, tenant: str) -> bool:
    """Whether items of this queue and tenant are held back. parts: see `Order.paused_part`."""
    return bool(parts) and ((queue, "") in parts or (queue, tenant) in parts or ("", tenant) in parts)


def paused_types(
    orders: Iterable[Order], names_of: Callable[[str], Iterable[str]]
) -> tuple[set[str], dict[str, set[AvoidedLane]]]:
    """What workers do not ask for: types that are paused for all tenants, and of others the tenants for which
    they are. names_of: all names of a type."""
    paused, avoided = set[str](), dict[str, set[AvoidedLane]]()
    for each in orders:
        for name in names_of(each.type) if each.kind == "pause" and each.type is not None else ():
            if each.tenant is None:
                paused.add(name)
            else:
                avoided.setdefault(name, set()).add((each.tenant, None))
    return paused, avoided
