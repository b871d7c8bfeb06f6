"""Topology: which server has the keys of a namespace, in a Sentinel set-up or a cluster.

It is asked for whenever a connection is opened, so there is nothing to go stale: after a failover, or when
the slot has moved, connections break or calls are refused, and the next connection goes to the right server.
Only a primary that Sentinels replace while it is well goes on as if nothing had happened: see
`primary_switches`.
"""

from __future__ import annotations

import binascii
from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeVar

import hiredis

from treadle.errors import AccessDenied, BackendError

from .address import Endpoint, RedisAddress
from .connection import RedisConnection
from .errors import NotConnected, code_of, translated

T = TypeVar("T")

SLOTS: Final = 16384


def slot_of(prefix: str) -> int:
    """The slot of all keys `{prefix}:...`: CRC16 of what is in the braces."""
    return binascii.crc_hqx(prefix.encode(), 0) % SLOTS


class RedisTopology:
    """Finds the server. `ask`: opens a connection to a Sentinel, or to a node, for a question."""

    def __init__(
        self, address: RedisAddress, prefix: str, ask: Callable[[Endpoint], Awaitable[RedisConnection]]
    ) -> None:
        self._address = address
        self._prefix = prefix
        self._slot = slot_of(prefix)
        self._ask = ask
        self._known = list(address.endpoints)
        """Whom to ask, the one that answered last first."""
        self.found: Endpoint | None = None
        """The last answer."""

    async def find(self) -> Endpoint:
        """`StoreUnavailable` if there is no such server at the moment."""
        if self._address.kind in ("server", "socket"):
            return self._address.endpoints[0]
        self.found = found = await self.first(self._answer_of)
        return found

    async def first(self, ask: Callable[[Endpoint], Awaitable[T | None]]) -> T:
        """What the first says that has an answer."""
        problems: list[str] = []
        for endpoint in list(self._known):
            try:
                found = await ask(endpoint)
            except AccessDenied:
                raise
            except BackendError as error:
                problems.append(str(error))
                continue
            if found is not None:
                self._known.remove(endpoint)
                self._known.insert(0, endpoint)
                return found
            problems.append(f"{endpoint} knows none")
        what = (
            f"primary of the service {self._address.service!r}"
            if self._address.kind == "sentinel"
            else f"node with the slot {self._slot} of {{{self._prefix}}}"
        )
        raise NotConnected(f"found no {what}: {'; '.join(problems)}")

    def learn(self, refusal: str) -> None:
        """Ask the node first that has the slot, as in `MOVED 3999 10.0.0.1:6381`: others hear of it later."""
        match refusal.split():
            case ["MOVED", _, place] if (node := _named(place)) is not None:
                self._known = [node, *(each for each in self._known if each != node)]
            case _:
                pass

    async def _answer_of(self, endpoint: Endpoint) -> Endpoint | None:
        connection = await self._ask(endpoint)
        try:
            if self._address.kind == "sentinel":
                return await self._primary(connection)
            return await self._owner(connection, endpoint)
        except hiredis.ReplyError as error:
            raise translated(error) from None
        finally:
            connection.abort()

    async def _primary(self, connection: RedisConnection) -> Endpoint | None:
        found = await connection.call(b"SENTINEL", b"GET-MASTER-ADDR-BY-NAME", self._address.service)
        return None if found is None else Endpoint(found[0].decode(), int(found[1]))

    async def _owner(self, connection: RedisConnection, asked: Endpoint) -> Endpoint | None:
        rows = await connection.call(b"CLUSTER", b"SLOTS")
        nodes = [row[2:] for row in rows if row[0] <= self._slot <= row[1]]
        self._learn([_endpoint(node, asked) for row in rows for node in row[2:]])
        return _endpoint(nodes[0][0], asked) if nodes and nodes[0] else None

    def _learn(self, nodes: list[Endpoint]) -> None:
        """Ask these too, if those of the URL are all gone one day."""
        self._known = [each for each in self._known if each in (*nodes, *self._address.endpoints)]
        self._known += [each for each in dict.fromkeys(nodes) if each not in self._known]


def _named(place: str) -> Endpoint | None:
    """The node in a refusal. None: it does not say on which host it is."""
    host, _, port = place.rpartition(":")
    return Endpoint(host, int(port)) if host not in ("", "?") and port.isdigit() else None


def _endpoint(node: list[Any], asked: Endpoint) -> Endpoint:
    """A node in the answer of CLUSTER SLOTS. Without a host, it is that of the node that was asked."""
    host = (node[0] or b"").decode()
    return Endpoint(asked.host if host in ("", "?") else host, int(node[1]))


async def check_primary(connection: RedisConnection, endpoint: Endpoint) -> None:
    """`NotConnected` if the server is a replica: a Sentinel may not have noticed a failover yet."""
    try:
        role = await connection.call(b"ROLE")
    except hiredis.ReplyError as error:
        if code_of(error) == "NOPERM":  # the first write will tell
            return
        raise
    if role[0] != b"master":
        raise NotConnected(f"{endpoint} is a replica, though a Sentinel names it as the primary")
