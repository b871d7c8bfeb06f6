"""The keys in the store.

    <prefix>:item:<tenant>:<id>             a StoredItem: what was submitted. Written once
    <prefix>:first:<id>                     the tenant that used an id first, unless it is the default tenant
    <prefix>:group:<tenant>:<id>            a GroupRecord: all that changes about the members of a group
    <prefix>:value:<tenant>:<id>:<token>    a StoredValue that a settlement contributed
    <prefix>:end:<tenant>:<id>:<token>      an ItemEnd: how an item ended
    <prefix>:attempt:<tenant>:<id>:<token>  an Attempt that failed
    <prefix>:dependents:<tenant>:<id>       a DependentsRecord: items of other groups that wait for an item
    <prefix>:key:<tenant>:<type>:<key>      the id of the item that owns an idempotency key
    <prefix>:worker:<id>                    a WorkerRecord: the worker's lease, and the leases of its items
    <prefix>:roster                         a WorkerRoster: the ids of all workers
    <prefix>:schedules  :limits             all schedules; all limits
    <prefix>:claimed:<tenant>:<key>         the owner of a key that `claim_key` claimed
    <prefix>:token                          a number: the last token given

Parts are percent-encoded, so that no two names share a key.
"""

from __future__ import annotations

import functools
from urllib.parse import quote

from treadle.item import Ref


class StoreKeys:
    def __init__(self, prefix: str) -> None:
        self._prefix = quote(prefix, safe="")
        self.roster = self._join("roster")
        self.schedules = self._join("schedules")
        self.limits = self._join("limits")
        self.token = self._join("token")

    def _join(self, kind: str, *parts: str) -> str:
        return ":".join((self._prefix, kind, *map(_quote, parts)))

    def item(self, ref: Ref) -> str:
        return self._join("item", *ref)

    def first_tenant(self, id: str) -> str:
        return self._join("first", id)

    def group(self, ref: Ref) -> str:
        return self._join("group", *ref)

    def group_value(self, ref: Ref, token: int) -> str:
        return self._join("value", *ref, str(token))

    def item_end(self, ref: Ref, token: int) -> str:
        return self._join("end", *ref, str(token))

    def failed_attempt(self, ref: Ref, token: int) -> str:
        return self._join("attempt", *ref, str(token))

    def dependents(self, ref: Ref) -> str:
        return self._join("dependents", *ref)

    def idempotency_key(self, tenant: str, type: str, key: str) -> str:
        return self._join("key", tenant, type, key)

    def worker(self, id: str) -> str:
        return self._join("worker", id)

    def claimed_key(self, tenant: str, key: str) -> str:
        return self._join("claimed", tenant, key)


@functools.lru_cache(maxsize=10_000)
def _quote(part: str) -> str:
    return quote(part, safe="")
