"""A namespace of Redis for the contract suites."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from itertools import count

import pytest

from tests.backends.redis_audit import audit
from tests.support.valkey import Client
from treadle.backends.redis import RedisBackend, settle

_numbers = count(1)


class RedisSubject:
    """An empty namespace. Time moves by the key `shift`, which only test builds of the scripts read."""

    def __init__(self, url: str) -> None:
        self._url = url
        self.prefix = f"contract{next(_numbers)}"
        self._shift = 0.0
        self._stands_still = False
        self._others: list[RedisBackend] = []
        self.backend = self._new()

    def _new(self) -> RedisBackend:
        return RedisBackend(self._url, prefix=self.prefix, test_clock=True)

    async def advance(self, seconds: float) -> None:
        self._shift += seconds
        link = self.backend._link
        await link.command(b"SET", link.key("shift"), f"{'=' if self._stands_still else ''}{self._shift!r}")

    async def set_back(self, seconds: float) -> None:
        await self.advance(-seconds)

    async def stand_still(self) -> None:
        """From now on time moves only when the store is advanced."""
        self._shift = await self.backend.now()
        self._stands_still = True
        await self.advance(0.0)

    async def another(self) -> RedisBackend:
        other = self._new()
        await other.open()
        self._others.append(other)
        return other

    async def close(self) -> None:
        for backend in (self.backend, *self._others):
            await backend.close()

    def audit(self) -> list[str]:
        """What does not agree in the store: see `redis_audit`."""
        with self.client() as client:
            if client.call("HGET", f"{{{self.prefix}}}:meta", "part_state"):
                return []  # its keys are out of sight
            return audit(client, self.prefix)

    def keys(self) -> list[str]:
        """The names of all keys, without the prefix."""
        with self.client() as client:
            return sorted(name.decode().partition(":")[2] for name in client.call("KEYS", "*"))

    @contextmanager
    def client(self) -> Generator[Client]:
        place, _, number = self._url.partition("?db=")
        with Client(place) as client:
            client.call("SELECT", number or 0)
            yield client


def take_short_ways(monkeypatch: pytest.MonkeyPatch, *, is_short: bool = True) -> None:
    """Settle even few members of groups, and few plain children, as many are settled; or many as few are."""
    monkeypatch.setattr(settle, "MEMBERS", 1 if is_short else 10**6)
    monkeypatch.setattr(settle, "MANY_CHILDREN", 1 if is_short else 10**6)
