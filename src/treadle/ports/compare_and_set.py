"""Compare-and-set: replace a text only if it has not changed since it was read.

A store with `swap` does that itself. Without `swap`, each version of a text is a key of its own, and
`set_if_absent` decides who writes the next version:

    <key>        the number of the latest version, or of one that was the latest a moment ago
    <key>@<n>    version n. Older versions are emptied and kept for a day, so that a late writer fails

A process would have to pause for a day, between reading a text and replacing it, to undo the changes that
others made meanwhile. An empty text counts as none.
"""

from __future__ import annotations

from typing import NamedTuple

from .async_ports import AsyncPorts

OLD_VERSION_TTL = 86400.0
"""Seconds for which an old version is kept: a writer may be that late and still fail."""
SEARCH_AHEAD = 64
"""How many versions to look ahead when the version that <key> names has expired."""


class Snapshot(NamedTuple):
    """A text that was read. It can be replaced if it is still the latest."""

    text: str | None
    version: int = 0
    """Its number, in a store without `swap`."""


class CompareAndSet:
    """For a store with `swap`."""

    def __init__(self, ports: AsyncPorts) -> None:
        self._ports = ports

    async def read(self, key: str) -> Snapshot:
        return Snapshot(await self._ports.get(key))

    async def create(self, key: str, text: str) -> bool:
        """Write the first text. False: there is one already."""
        return await self._ports.swap(key, None, text)

    async def replace(self, key: str, seen: Snapshot, text: str | None) -> bool:
        """Replace what was read; None removes it. False: it has changed since."""
        return await self._ports.swap(key, seen.text, text)

    async def expire(self, key: str, seen: Snapshot, text: str, ttl: float) -> None:
        """Write the last text of a key. It expires after `ttl` seconds."""
        await self._ports.set(key, text, ttl)


class VersionedCompareAndSet(CompareAndSet):
    """For a store without `swap`."""

    async def read(self, key: str) -> Snapshot:
        named = int(await self._ports.get(key) or 0)
        latest = await self._find_latest(key, named)
        if latest.version != named:
            await self._ports.set(key, str(latest.version))
        return latest

    async def _find_latest(self, key: str, named: int) -> Snapshot:
        """Go from the version that <key> names to the last one."""
        number, text = named, await self._ports.get(f"{key}@{named}") if named else None
        if text is None and named:
            return await self._search(key, named)
        while (later := await self._ports.get(f"{key}@{number + 1}")) is not None:
            number, text = number + 1, later
        return Snapshot(text or None, number)

    async def _search(self, key: str, named: int) -> Snapshot:
        """The named version has expired. A later one, if there is any, is not far."""
        for number in range(named + 1, named + SEARCH_AHEAD):
            if await self._ports.get(f"{key}@{number}") is not None:
                return await self._find_latest(key, number)
        return Snapshot(None, named)

    async def create(self, key: str, text: str) -> bool:
        seen = await self.read(key)
        return seen.text is None and await self.replace(key, seen, text)

    async def replace(self, key: str, seen: Snapshot, text: str | None) -> bool:
        number = seen.version + 1
        ttl = OLD_VERSION_TTL if text is None else None
        if not await self._ports.set_if_absent(f"{key}@{number}", text or "", ttl):
            return False
        await self._ports.set(key, str(number), ttl)
        old = number - (1 if text is None else 2)
        if old > 0:
            await self._ports.set(f"{key}@{old}", "", OLD_VERSION_TTL)
        return True

    async def expire(self, key: str, seen: Snapshot, text: str, ttl: float) -> None:
        ttl = max(ttl, OLD_VERSION_TTL)
        for number in range(max(1, seen.version - 1), seen.version + 1):
            await self._ports.set(f"{key}@{number}", text, ttl)
        await self._ports.set(key, str(seen.version), ttl)


def compare_and_set(ports: AsyncPorts) -> CompareAndSet:
    return CompareAndSet(ports) if ports.has_swap else VersionedCompareAndSet(ports)
