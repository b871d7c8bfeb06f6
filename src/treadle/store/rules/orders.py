"""Orders: what stores share that keep orders of operators, and what follows from them."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Final

import msgspec
from msgspec.structs import replace

from treadle.item import Order, Orders

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
