"""Claimed keys: each belongs to its owner for a time. Some of them say which tenants are elsewhere."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import count

from msgspec import Struct

from treadle.errors import TenantElsewhere
from treadle.item import Ref
from treadle.store.rules.tenant_moves import MARKS, PREFIX, decode_mark

from .priority_queue import Position, PriorityQueue


class ClaimedKey(Struct, eq=False):
    """A key that belongs to its owner until a certain time."""

    ref: Ref
    owner: str
    until: float
    position: Position | None = None


class ClaimedKeys:
    def __init__(self) -> None:
        self._ties = count(1)
        self.by_ref: dict[Ref, ClaimedKey] = {}
        self.by_end: PriorityQueue[ClaimedKey] = PriorityQueue()
        self.elsewhere: set[str] = set()
        """Tenants that are not here: their marks are `away` or `importing`."""

    def claim(self, ref: Ref, owner: str, ttl: float, now: float) -> bool:
        self.check_here((ref[0],))
        key = self.by_ref.get(ref)
        if key is not None and now < key.until:
            return key.owner == owner
        if key is not None:
            self.by_end.remove(key)
        self.add(ClaimedKey(ref, owner, now + ttl))
        return True

    def add(self, key: ClaimedKey) -> None:
        self.by_ref[key.ref] = key
        self.by_end.push(key.until, next(self._ties), key)
        tenant, name = key.ref
        if tenant == MARKS and name.startswith(PREFIX):
            mark = decode_mark(key.owner)
            is_here = mark is None or mark.state in ("owned", "frozen")
            (self.elsewhere.discard if is_here else self.elsewhere.add)(name.removeprefix(PREFIX))

    def drop(self, ref: Ref) -> None:
        key = self.by_ref.pop(ref, None)
        if key is not None:
            self.by_end.remove(key)

    def drop_all(self, tenant: str) -> None:
        for ref in [ref for ref in self.by_ref if ref[0] == tenant]:
            self.drop(ref)

    def check_here(self, tenants: Iterable[str]) -> None:
        """`TenantElsewhere` if one of these is in another store, or on its way into this one."""
        if self.elsewhere and not self.elsewhere.isdisjoint(tenants):
            raise TenantElsewhere("memory://")

    def owner(self, ref: Ref, now: float) -> str | None:
        key = self.by_ref.get(ref)
        return key.owner if key is not None and now < key.until else None

    def prune(self, now: float, most: int) -> None:
        for key in self.by_end.take_until(now, most):
            del self.by_ref[key.ref]
