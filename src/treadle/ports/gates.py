"""Gates: dependents in other groups than what they wait for.

Both sides write, then read. A dependent is noted with what it waits for, stored, and then looks whether that
has ended; what ends is stored as ended, and then looks who was noted. At least one of them sees the other,
and the dependent's ledger counts each prerequisite once, whoever says so.
"""

from __future__ import annotations

from collections.abc import Iterable

from treadle.item import Ref, Status

from . import ledger as moves
from .archive import AWAITED, LEDGER, UNCHANGED, Archive, Unchanged
from .papers import Awaited, Header, Ledger, Member


class Told:
    """Who was released, and how many were doomed, because something ended."""

    __slots__ = ("doomed", "released")

    def __init__(self) -> None:
        self.released: list[Ref] = []
        self.doomed = 0


class Gates:
    def __init__(self, archive: Archive) -> None:
        self._archive = archive

    async def register(self, header: Header, prerequisites: Iterable[str]) -> None:
        """Note, with what it waits for, that an item is about to."""
        tenant, id = header.ref

        def note(awaited: Awaited | None) -> tuple[None, Awaited | Unchanged]:
            known = {} if awaited is None else awaited.dependents
            if known.get(id) == header.group_id:
                return None, UNCHANGED
            return None, Awaited({**known, id: header.group_id})

        for prerequisite in dict.fromkeys(prerequisites):
            await self._archive.change(self._archive.names.awaited((tenant, prerequisite)), AWAITED, note)

    async def look(self, header: Header, prerequisites: Iterable[str]) -> str | None:
        """Count what has ended already. Whether that `released` or `doomed` the item."""
        for prerequisite in dict.fromkeys(prerequisites):
            ended = await self.ended((header.item.tenant, prerequisite))
            if ended is not None and (
                counted := await self._count(header.group, header.ref, prerequisite, ended)
            ):
                return counted
        return None

    async def ended(self, ref: Ref) -> Status | None:
        """How an item ended; None if it has not, or does not exist."""
        header = await self._archive.header(ref)
        ledger = None if header is None else await self._archive.ledger(header.group)
        past = None if ledger is None else ledger.past.get(ref[1])
        return None if past is None else past.status

    async def tell(self, ref: Ref, ended: Status, told: Told) -> None:
        """Tell those who wait for it in other groups. May be repeated."""
        archive = self._archive
        key = archive.names.awaited(ref)
        draft = await archive.draft(key, AWAITED)
        if draft.paper is None:
            return
        for id, group_id in draft.paper.dependents.items():
            dependent = (ref[0], id)
            match await self._count((ref[0], group_id), dependent, ref[1], ended):
                case "released":
                    told.released.append(dependent)
                case "doomed":
                    told.doomed += 1
                case _:
                    pass
        # Who was noted in the meantime will see for himself that it has ended.
        await archive.put(key, draft, None)

    async def _count(self, group: Ref, dependent: Ref, prerequisite: str, ended: Status) -> str | None:
        archive, id, now = self._archive, dependent[1], self._archive.now()

        def step(ledger: Ledger | None) -> tuple[tuple[str | None, Member | None], Ledger | Unchanged]:
            member = None if ledger is None else ledger.open.get(id)
            if ledger is None or member is None or prerequisite not in member.waits:
                return (None, member), UNCHANGED
            return (moves.count(ledger, id, prerequisite, ended, now), member), ledger

        counted, member = await archive.change(archive.names.group(group), LEDGER, step)
        # Also if it had been counted before: whoever did may not have come to this.
        going_on = member is not None and (member.status != "blocked" or member.doomed is not None)
        if member is not None and going_on and (due := moves.look_at(member)) is not None:
            await archive.notify(dependent, due, now)
        return counted
