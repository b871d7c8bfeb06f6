"""Hands: what this process has popped and not yet given back to the queue, by the token of the lease."""

from __future__ import annotations

from treadle.item import Ref

from .archive import Archive
from .protocols import Pulled


class Hands:
    def __init__(self, archive: Archive) -> None:
        self._archive = archive
        self._pulled: dict[int, tuple[str, Pulled]] = {}

    def take(self, token: int, worker: str, pulled: Pulled) -> None:
        self._pulled[token] = (worker, pulled)

    def of(self, worker: str) -> list[Pulled]:
        return [pulled for owner, pulled in self._pulled.values() if owner == worker]

    async def done(self, token: int) -> None:
        """It has been dealt with. (What another process popped comes back when its lease lapses, and is seen
        to be done then.)"""
        if (mine := self._pulled.pop(token, None)) is not None:
            await self._archive.ports.ack(mine[1])

    async def renew(self, token: int, ref: Ref, due: float, now: float) -> None:
        """Have it looked at again, at the end of the line. First the new note, then the old one goes."""
        await self._archive.notify(ref, due, now)
        await self.done(token)

    async def put_back(self, token: int, ref: Ref, due: float, now: float) -> None:
        """Have it looked at again, in its old place if it is due."""
        if (mine := self._pulled.pop(token, None)) is None:
            await self._archive.notify(ref, due, now)
        else:
            await self._archive.ports.fail(mine[1], due - now)

    async def let_go(self, token: int) -> None:
        """The item is somebody else's: whoever looks at the note will see what is to be done."""
        if (mine := self._pulled.pop(token, None)) is not None:
            await self._archive.ports.fail(mine[1])
