"""Workers: their leases, and what becomes of their items when they die.

A worker's record says what it holds, and says so *before* the item does. So whoever finds that its lease has
lapsed finds all that has to be freed, and a token that is not in the record of a live worker is nobody's.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from functools import partial

from treadle import rules
from treadle.item import Heartbeat

from . import ledger as moves
from .archive import LEDGER, ROSTER, UNCHANGED, WORKER, Archive, Unchanged, give_way, written
from .follow import Following
from .hands import Hands
from .papers import Held, Member, Roster, Worker

LOOK = 1.0
"""Seconds between two looks at whose lease has lapsed."""
EVERY_TYPE = ""


class Workers:
    def __init__(self, archive: Archive, hands: Hands, following: Following) -> None:
        self._archive = archive
        self._hands = hands
        self._following = following
        self._let_go: dict[str, set[int]] = {}
        """Tokens that are done with, by worker, and still in its record: see `forget`."""
        self.on_bury: Callable[[str], Awaitable[None]] | None = None
        """Told of a worker whose items have been freed."""
        self._looked = -math.inf

    async def get(self, id: str) -> Worker | None:
        return (await self._archive.draft(self._archive.names.worker(id), WORKER)).paper

    # -- leases ----------------------------------------------------------------------------------------

    async def beat(self, beat: Heartbeat) -> tuple[bool, Collection[int]]:
        """Keep a worker alive. Whether it was not known, and the tokens that are in its hands."""
        archive, key = self._archive, self._archive.names.worker(beat.worker)
        while True:
            draft = await archive.draft(key, WORKER)
            worker, now = draft.paper, archive.now()
            if worker is not None and worker.dying:
                await self.remove_worker(beat.worker)
            elif worker is None:
                await archive.change(archive.names.roster, ROSTER, partial(_enrolled, beat.worker))
                if await archive.put(key, draft, Worker(now + beat.lease, beat.lease, beat.types)):
                    return True, ()
            else:
                worker.until, worker.lease = now + beat.lease, beat.lease
                worker.types = worker.types if beat.types is None else beat.types
                self._forgotten(beat.worker, worker)
                if await archive.put(key, draft, worker):
                    return False, worker.held.keys()

    async def hold(self, id: str, leases: Mapping[int, Held]) -> bool:
        """Put these into a worker's hands. False: it is not alive."""
        now = self._archive.now()

        def step(worker: Worker | None) -> tuple[bool, Worker | Unchanged | None]:
            if worker is None or worker.dying or worker.until <= now:
                return False, UNCHANGED
            self._forgotten(id, worker)
            worker.held.update(leases)
            return True, worker

        return await self._archive.change(self._archive.names.worker(id), WORKER, step)

    def forget(self, id: str, tokens: Iterable[int]) -> None:
        """These were settled. It is enough that the worker's record says so when it changes next: whoever
        finds them there looks whether they are still in force."""
        self._let_go.setdefault(id, set()).update(tokens)

    def _forgotten(self, id: str, worker: Worker) -> None:
        gone = self._let_go.pop(id, None)
        if gone:
            worker.held = {token: held for token, held in worker.held.items() if token not in gone}

    async def drop(self, id: str, tokens: Collection[int]) -> None:
        """These are in its hands no more."""

        def step(worker: Worker | None) -> tuple[None, Worker | Unchanged | None]:
            if worker is None or worker.held.keys().isdisjoint(tokens):
                return None, UNCHANGED
            worker.held = {token: held for token, held in worker.held.items() if token not in tokens}
            return None, worker

        if tokens:
            await self._archive.change(self._archive.names.worker(id), WORKER, step)

    # -- deaths ----------------------------------------------------------------------------------------

    async def bury_lapsed(self) -> None:
        """Bury whoever's lease has lapsed. Looks now and then."""
        now = self._archive.now()
        if now - self._looked < LOOK:
            return
        for id, worker in await self._all():
            if worker.dying or worker.until <= now:
                await self.remove_worker(id)
        self._looked = now

    async def remove_worker(self, id: str) -> int:
        """Free all that a worker holds. May be repeated, also by several at once."""
        worker = await self._condemned(id)
        if worker is None:
            return 0
        freed = 0
        for token, held in worker.held.items():
            freed += await self.free(id, token, held)
        if self.on_bury is not None:
            await self.on_bury(id)
        archive = self._archive
        types = (EVERY_TYPE,) if worker.types is None else worker.types
        await archive.change(archive.names.roster, ROSTER, partial(_struck, id, types, archive.now()))
        await archive.change(archive.names.worker(id), WORKER, _removed)
        self._let_go.pop(id, None)
        return freed

    async def _condemned(self, id: str) -> Worker | None:
        def step(worker: Worker | None) -> tuple[Worker | None, Worker | Unchanged | None]:
            if worker is None or worker.dying:
                return worker, UNCHANGED
            worker.dying = True
            return worker, worker

        return await self._archive.change(self._archive.names.worker(id), WORKER, step)

    async def free(self, id: str, token: int, held: Held) -> bool:
        """Take an item away from a worker that is dead. Whether it was running it."""
        archive, key = self._archive, self._archive.names.group(held.group)
        while True:
            draft = await archive.draft(key, LEDGER)
            if draft.paper is None or (member := draft.paper.open.get(held.id)) is None:
                await self._following.finish(held.ref, held.group, draft.paper)
                return False
            now = archive.now()
            ran = member.token == token and member.status == "running"
            if member.token == token:
                await self._freed(id, token, held, member, now)
                if not await archive.put(key, draft, draft.paper):
                    await give_way()
                    continue
            elif token not in member.failed and token not in member.settled:
                return False  # it was never its own
            if (due := moves.look_at(member)) is not None:
                await self._hands.put_back(token, held.ref, due, now)
            return ran

    async def _freed(self, id: str, token: int, held: Held, member: Member, now: float) -> None:
        if member.status == "running":
            lost = rules.lost_attempt(member.attempt, now, id)
            await self._archive.ports.set(self._archive.names.failed(held.ref, token), written(lost))
        moves.free(member, now)

    # -- who there is ----------------------------------------------------------------------------------

    async def _all(self) -> list[tuple[str, Worker]]:
        roster = (await self._archive.draft(self._archive.names.roster, ROSTER)).paper or Roster()
        found = [(id, await self.get(id)) for id in roster.workers]
        return [(id, worker) for id, worker in found if worker is not None]

    async def has_type(self, type: str) -> bool:
        """Whether a live worker can run it."""
        now = self._archive.now()
        return any(w.has(type) and w.until > now and not w.dying for _, w in await self._all())

    async def gone_since(self, type: str) -> float:
        """When the last worker that had a type was buried, as far as that is known."""
        roster = (await self._archive.draft(self._archive.names.roster, ROSTER)).paper or Roster()
        return max(roster.gone.get(type, 0.0), roster.gone.get(EVERY_TYPE, 0.0))


def _enrolled(id: str, roster: Roster | None) -> tuple[None, Roster | Unchanged]:
    roster = roster or Roster()
    if id in roster.workers:
        return None, UNCHANGED
    roster.workers.append(id)
    return None, roster


def _struck(
    id: str, types: Iterable[str], now: float, roster: Roster | None
) -> tuple[None, Roster | Unchanged]:
    if roster is None or id not in roster.workers:
        return None, UNCHANGED
    roster.workers.remove(id)
    roster.gone.update(dict.fromkeys(types, now))
    return None, roster


def _removed(worker: Worker | None) -> tuple[None, Unchanged | None]:
    return None, None if worker is not None and worker.dying else UNCHANGED
