"""Cancel: items and their open descendants end, a group at a time."""

from __future__ import annotations

from collections.abc import Sequence

from treadle.item import Changed, Effects, EndedGroup, ItemState, Ref

from . import ledger as moves
from .archive import LEDGER, Archive, give_way, written
from .follow import Following
from .ledger import Moves
from .papers import Ending, Ledger, Member
from .read import Reading
from .settle import released
from .workers import Workers


class Sum:
    """What a cancellation adds up to."""

    def __init__(self) -> None:
        self.items: list[ItemState] = []
        self.released: list[Ref] = []
        self.closed: list[EndedGroup] = []
        self.doomed = 0


class Cancelling:
    def __init__(self, archive: Archive, reading: Reading, following: Following, workers: Workers) -> None:
        self._archive = archive
        self._reading = reading
        self._following = following
        self._workers = workers

    async def cancel(self, ids: Sequence[str], tenant: str | None) -> Changed:
        groups: dict[Ref, list[str]] = {}
        for id in dict.fromkeys(ids):
            header = await self._archive.find(id, tenant)
            if header is not None:
                groups.setdefault(header.group, []).append(id)
        total = Sum()
        for group, members in groups.items():
            await self._cancel(group, members, total)
        going_on = [released(header) for header in await self._archive.headers(total.released)]
        return Changed(tuple(total.items), Effects(tuple(going_on), tuple(total.closed), total.doomed))

    async def _cancel(self, group: Ref, ids: list[str], total: Sum) -> None:
        archive, key = self._archive, self._archive.names.group(group)
        (token,) = await archive.tokens(1)
        while True:
            draft = await archive.draft(key, LEDGER)
            ledger = draft.paper
            if ledger is None:
                return
            victims = {id: ledger.open[id] for id in moves.descendants(ledger, ids)}
            if not victims:
                await self._finish(group, ids, ledger)
                return
            before = await self._before(group[0], victims, ledger)
            for state in before:
                await self._write(state, token)
            followed = _cancelled(ledger, victims, token, archive.now())
            if await archive.put(key, draft, ledger):
                break
            await give_way()
        total.items += before
        await self._follow(group, victims, ledger, followed, total)

    async def _before(self, tenant: str, victims: dict[str, Member], ledger: Ledger) -> list[ItemState]:
        states: list[ItemState] = []
        for header in await self._archive.headers((tenant, id) for id in victims):
            state = await self._reading.state(header, ledger)
            assert state is not None
            states.append(state)
        return states

    async def _write(self, state: ItemState, token: int) -> None:
        ending = Ending(
            "cancelled",
            self._archive.now(),
            attempt=state.attempt,
            due_at=state.due_at,
            started_at=state.started_at,
            history=state.history,
        )
        key = self._archive.names.end((state.tenant, state.id), token)
        await self._archive.ports.set(key, written(ending))

    async def _follow(
        self, group: Ref, victims: dict[str, Member], ledger: Ledger, followed: Moves, total: Sum
    ) -> None:
        tenant = group[0]
        for id, member in victims.items():
            told = await self._following.follow((tenant, id), group, ledger)
            total.released += told.released
            total.doomed += told.doomed
            if member.token:
                await self._workers.drop(member.worker, [member.token])
        total.released += [(tenant, id) for id in followed.released]
        total.doomed += len(followed.doomed)
        if followed.closed:
            value = await self._archive.value(group, ledger)
            total.closed.append(EndedGroup(group[1], tenant, value, ledger.type))

    async def _finish(self, group: Ref, ids: list[str], ledger: Ledger) -> None:
        """They have ended, perhaps by a cancellation that was cut short."""
        for id in ids:
            await self._following.finish((group[0], id), group, ledger)


def _cancelled(ledger: Ledger, victims: dict[str, Member], token: int, now: float) -> Moves:
    followed = Moves()
    for id in victims:
        moves.end(ledger, id, "cancelled", token, now, followed)
    followed.released = [id for id in followed.released if id in ledger.open]
    followed.doomed = [id for id in followed.doomed if id in ledger.open]
    ledger.owing.update({id: [*followed.released, *followed.doomed] for id in victims})
    return followed
