"""Names: under which key what is stored, and what a body in the queue says.

    <prefix>:item:<tenant>:<id>          a Header: what was submitted. Written once
    <prefix>:first:<id>                  the tenant that used an id first, unless it is the default one
    <prefix>:group:<tenant>:<id>         a Ledger: all that changes about the members of one group. A record
    <prefix>:value:<tenant>:<id>:<token> a value of a group, as a settlement contributed it
    <prefix>:end:<tenant>:<id>:<token>   an Ending: how an item ended
    <prefix>:try:<tenant>:<id>:<token>   an Attempt that failed
    <prefix>:awaited:<tenant>:<id>       the dependents in other groups that wait for an item. A record
    <prefix>:key:<tenant>:<type>:<key>   the id of the item that holds an idempotency key. A record
    <prefix>:worker:<id>                 a Worker: its lease, and what it holds. A record
    <prefix>:roster                      the workers there are. A record
    <prefix>:schedules  :limits          what they say. Records
    <prefix>:claimed:<tenant>:<key>      the owner of a key that was claimed
    <prefix>:token                       a number: the last token given

Parts are percent-encoded, so that no name can reach into another's place.
"""

from __future__ import annotations

import functools
from typing import NamedTuple
from urllib.parse import quote

import msgspec

from treadle.item import Ref


class Names:
    def __init__(self, prefix: str) -> None:
        self._prefix = quote(prefix, safe="")
        self.roster = self._of("roster")
        self.schedules = self._of("schedules")
        self.limits = self._of("limits")
        self.token = self._of("token")

    def _of(self, kind: str, *parts: str) -> str:
        return ":".join((self._prefix, kind, *map(_quoted, parts)))

    def item(self, ref: Ref) -> str:
        return self._of("item", *ref)

    def first(self, id: str) -> str:
        return self._of("first", id)

    def group(self, ref: Ref) -> str:
        return self._of("group", *ref)

    def value(self, ref: Ref, token: int) -> str:
        return self._of("value", *ref, str(token))

    def end(self, ref: Ref, token: int) -> str:
        return self._of("end", *ref, str(token))

    def failed(self, ref: Ref, token: int) -> str:
        return self._of("try", *ref, str(token))

    def awaited(self, ref: Ref) -> str:
        return self._of("awaited", *ref)

    def key(self, tenant: str, type: str, key: str) -> str:
        return self._of("key", tenant, type, key)

    def worker(self, id: str) -> str:
        return self._of("worker", id)

    def claimed(self, tenant: str, key: str) -> str:
        return self._of("claimed", tenant, key)


@functools.lru_cache(maxsize=10_000)
def _quoted(part: str) -> str:
    return quote(part, safe="")


class Note(NamedTuple):
    """A body in the queue: there may be something to do about this item. Look at it."""

    tenant: str
    id: str

    def body(self) -> str:
        return msgspec.json.encode(self).decode()


_decoder = msgspec.json.Decoder(Note)


def read_note(body: str) -> Note | None:
    """None: it is not one of ours."""
    try:
        return _decoder.decode(body)
    except (msgspec.DecodeError, msgspec.ValidationError):
        return None
