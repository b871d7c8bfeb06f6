"""Records: texts that are replaced only by whoever has seen the latest one. All that changes is in them.

A store with `swap` does that itself. Without it, each version of a record is a key of its own, and
`set_if_absent` decides who writes the next:

    <key>        the number of a version that is the latest, or was a moment ago
    <key>@<n>    version n. Older ones are emptied, and stay for a day in the way of whoever is late

so a process would have to stand still for a day, between reading a record and replacing it, to undo what
others did meanwhile. An empty text is as good as none.
"""

from __future__ import annotations

from typing import Protocol

from .calls import Ports

LATE = 86400.0
"""How late, in seconds, a writer may be, and find that it is."""
AHEAD = 64
"""How far the noted number of a version may be behind, once the versions between have been forgotten."""


class Seen(Protocol):
    """What was read, and what has to be there still when it is replaced."""

    @property
    def text(self) -> str | None: ...


class Records(Protocol):
    async def read(self, key: str) -> Seen: ...

    async def create(self, key: str, text: str) -> bool:
        """Write the first text. False: there is one."""
        ...

    async def replace(self, key: str, seen: Seen, text: str | None) -> bool:
        """Put `text` (None: nothing) in the place of what was seen. False: it is no longer there."""
        ...

    async def expire(self, key: str, seen: Seen, text: str, ttl: float) -> None:
        """Write a record for the last time: it is forgotten after so many seconds."""
        ...


class _Text:
    __slots__ = ("text",)

    def __init__(self, text: str | None) -> None:
        self.text = text


class SwappedRecords:
    def __init__(self, ports: Ports) -> None:
        self._ports = ports

    async def read(self, key: str) -> Seen:
        return _Text(await self._ports.get(key))

    async def create(self, key: str, text: str) -> bool:
        return await self._ports.swap(key, None, text)

    async def replace(self, key: str, seen: Seen, text: str | None) -> bool:
        return await self._ports.swap(key, seen.text, text)

    async def expire(self, key: str, seen: Seen, text: str, ttl: float) -> None:
        await self._ports.set(key, text, ttl)


class _Version:
    __slots__ = ("number", "text")

    def __init__(self, number: int, text: str | None) -> None:
        self.number = number
        self.text = text or None


class VersionedRecords:
    def __init__(self, ports: Ports) -> None:
        self._ports = ports

    async def read(self, key: str) -> _Version:
        noted = int(await self._ports.get(key) or 0)
        latest = await self._latest(key, noted)
        if latest.number != noted:
            await self._ports.set(key, str(latest.number))
        return latest

    async def _latest(self, key: str, noted: int) -> _Version:
        """Walk on from the noted version to the last one."""
        number, text = noted, await self._ports.get(f"{key}@{noted}") if noted else None
        if text is None and noted:
            return await self._search(key, noted)
        while (later := await self._ports.get(f"{key}@{number + 1}")) is not None:
            number, text = number + 1, later
        return _Version(number, text)

    async def _search(self, key: str, noted: int) -> _Version:
        """The noted version was forgotten: a later one, if there is any, is not far."""
        for number in range(noted + 1, noted + AHEAD):
            if await self._ports.get(f"{key}@{number}") is not None:
                return await self._latest(key, number)
        return _Version(noted, None)

    async def create(self, key: str, text: str) -> bool:
        seen = await self.read(key)
        return seen.text is None and await self.replace(key, seen, text)

    async def replace(self, key: str, seen: Seen, text: str | None) -> bool:
        assert isinstance(seen, _Version)
        number = seen.number + 1
        ttl = LATE if text is None else None
        if not await self._ports.set_if_absent(f"{key}@{number}", text or "", ttl):
            return False
        await self._ports.set(key, str(number), ttl)
        old = number - (1 if text is None else 2)
        if old > 0:
            await self._ports.set(f"{key}@{old}", "", LATE)
        return True

    async def expire(self, key: str, seen: Seen, text: str, ttl: float) -> None:
        assert isinstance(seen, _Version)
        ttl = max(ttl, LATE)
        for number in range(max(1, seen.number - 1), seen.number + 1):
            await self._ports.set(f"{key}@{number}", text, ttl)
        await self._ports.set(key, str(seen.number), ttl)


def records(ports: Ports) -> Records:
    return VersionedRecords(ports) if ports.swaps is None else SwappedRecords(ports)
