"""Follow: what an end sets in motion outside its ledger. It can be done again, until it was done once.

The ledger says what is owed before anything is done about it, and the note of the ended item stays in the
queue until all of it is done. So a crash in between leaves a note that leads back here.
"""

from __future__ import annotations

import msgspec

from treadle.item import DEFAULT_TENANT, Ref

from . import ledger as moves
from .archive import LEDGER, Archive, written
from .gates import Gates, Told
from .papers import Header, Ledger

GRACE = 60.0
"""What has ended stays for so long at least: somebody may be about to look."""
REMEMBERED = 1000


class Following:
    def __init__(self, archive: Archive, gates: Gates) -> None:
        self._archive = archive
        self._gates = gates
        self._done: dict[Ref, list[str]] = {}
        """What was done by this process, and is still noted as owed."""

    def paid(self, group: Ref, ledger: Ledger) -> None:
        """Strike from a ledger, on the occasion of another change, what is no longer owed."""
        for id in self._done.pop(group, ()):
            ledger.owing.pop(id, None)

    async def finish(self, ref: Ref, group: Ref, ledger: Ledger | None) -> None:
        """Do what is still owed for an item that has ended, if anything is."""
        if ledger is not None and ref[1] in ledger.owing:
            await self.follow(ref, group, ledger)

    async def follow(self, ref: Ref, group: Ref, ledger: Ledger) -> Told:
        """Tell and wake all whom the end of an item concerns."""
        told = Told()
        past = ledger.past[ref[1]]
        await self._gates.tell(ref, past.status, told)
        for id in ledger.owing.get(ref[1], ()):
            await self._look((ref[0], id), ledger)
        if past.status == "dead":
            await self._record_dead(ref, past.token)
        self._remember(group, ref[1])
        if ledger.last == ref[1]:
            await self._retire(group)
        return told

    def _remember(self, group: Ref, id: str) -> None:
        self._done.setdefault(group, []).append(id)
        if len(self._done) > REMEMBERED:
            del self._done[next(iter(self._done))]

    async def _look(self, ref: Ref, ledger: Ledger) -> None:
        """A member that is new, or that may go on."""
        member = ledger.open.get(ref[1])
        if member is None:
            return
        outside = [id for id in member.waits if id not in ledger.open]
        if outside and member.status == "blocked" and member.doomed is None:
            header = await self._archive.header(ref)
            if header is not None and await self._gates.look(header, outside):
                return
        if (due := moves.look_at(member)) is not None:
            await self._archive.notify(ref, due, self._archive.now())

    async def _record_dead(self, ref: Ref, token: int) -> None:
        """For the record that the queue keeps, if it does."""
        archive = self._archive
        if not archive.ports.keeps_dead:
            return
        header, ending = await archive.header(ref), await archive.ending(ref, token)
        if header is None or ending is None:
            return
        item = header.item
        body = {
            "id": item.id,
            "tenant": item.tenant,
            "type": item.type,
            "input": item.input.decode(errors="replace"),
            "attempt": ending.attempt,
            "reason": ending.reason,
        }
        last = ending.history[-1] if ending.history else None
        error = str(ending.reason) if last is None else f"{last.error_type}: {last.message}"
        await archive.ports.dead_letter(msgspec.json.encode(body).decode(), error)

    # -- retention -------------------------------------------------------------------------------------

    async def _retire(self, group: Ref) -> None:
        """The group has ended: what it leaves behind has its time to stay."""
        archive, key = self._archive, self._archive.names.group(group)
        draft = await archive.draft(key, LEDGER)
        ledger = draft.paper
        if ledger is None or ledger.ended_at is None:
            return
        self.paid(group, ledger)
        longest: float | None = GRACE
        for id, past in ledger.past.items():
            header = await archive.header((group[0], id))
            if header is not None:
                keep = _keep(header, past.status == "dead")
                await self._expire(header, past.token, keep)
                longest = None if keep is None or longest is None else max(longest, keep)
        if longest is None:
            await archive.put(key, draft, ledger)
            return
        await archive.records.expire(key, draft.seen, written(ledger), longest)
        if ledger.value:
            await self._set_ttl(archive.names.value(group, ledger.value), longest)

    async def _expire(self, header: Header, token: int, keep: float | None) -> None:
        if keep is not None:
            archive = self._archive
            await archive.ports.set(archive.names.item(header.ref), written(header), keep)
            await self._set_ttl(archive.names.end(header.ref, token), keep)
            if header.item.tenant != DEFAULT_TENANT:
                await self._set_ttl(archive.names.first(header.item.id), keep)

    async def _set_ttl(self, key: str, ttl: float) -> None:
        if (text := await self._archive.ports.get(key)) is not None:
            await self._archive.ports.set(key, text, ttl)


def _keep(header: Header, dead: bool) -> float | None:
    keep = header.item.keep_dead if dead else header.item.keep
    return None if keep is None else max(keep, GRACE)
