"""Submit: roots become groups of one.

    reserve its header -> register with what it waits for -> push a note -> write its ledger
    -> look at what it waits for

The header is the record of what was asked for: whoever finds one without a ledger finishes what was begun.
Where there is a ledger, there is a note.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

from treadle.item import Item, Ref, Rejected, Status, Submission, Submitted

from . import ledger as moves
from .admit import Admitter
from .archive import LEDGER, Archive
from .gates import Gates
from .papers import Header, Held, Ledger, Member
from .read import lease_of
from .workers import Workers


class Submitting:
    def __init__(self, archive: Archive, admitter: Admitter, gates: Gates, workers: Workers) -> None:
        self._archive = archive
        self._admitter = admitter
        self._gates = gates
        self._workers = workers

    async def submit(self, submissions: Sequence[Submission]) -> list[tuple[Submitted, ...] | Rejected]:
        return [await self.together(submission.items) for submission in submissions]

    async def together(self, items: Sequence[Item]) -> tuple[Submitted, ...] | Rejected:
        """Store these, or none of them. (A crash may leave some of them stored.)"""
        now = self._archive.now()
        admission = await self._admitter.admit(items, now)
        if isinstance(admission, Rejected):
            await self._finish(items, admission)
            return admission
        headers = admission.headers
        for header in headers.values():
            await self._gates.register(header, header.item.after)
        tokens = await self._hold(headers.values(), now)
        stored = {ref: await self.establish(header, tokens.get(ref, 0)) for ref, header in headers.items()}
        answers: list[Submitted] = []
        for ref, existing in admission.answers:
            answers.append(await self._existing(ref) if existing else stored[ref])
        return tuple(answers)

    async def establish(self, header: Header, token: int = 0) -> Submitted:
        """Make a group of one of a header. May be repeated."""
        now, id = self._archive.now(), header.item.id
        ledger = Ledger(header.item.type, {id: moves.joining(header)})
        moves.assess(ledger, id, now)
        if token:
            moves.lease(ledger.open[id], token, header.item.lease_to or "", None, now)
        else:
            # Whoever looks at it while it is blocked looks at what it waits for.
            due = now if header.item.after else moves.look_at(ledger.open[id])
            await self._archive.notify(header.ref, now if due is None else due, now)
        member = await self._written(header, ledger)
        status: Status = member.status
        if member.waits and await self._gates.look(header, member.waits) == "released":
            status = "scheduled" if member.due > now else "ready"
        held = token and member.token == token
        return Submitted(id, False, status, lease_of(header, member) if held else None, id)

    async def _written(self, header: Header, ledger: Ledger) -> Member:
        """The member as it is in the store. What an item of that id left behind long ago is overwritten."""
        archive, id = self._archive, header.item.id
        key = archive.names.group(header.group)
        while not await archive.create(key, ledger):
            draft = await archive.draft(key, LEDGER)
            if draft.paper is not None and id in draft.paper.open:
                return draft.paper.open[id]
            if draft.paper is None or await archive.put(key, draft, ledger):
                break
        return ledger.open[id]

    async def _hold(self, headers: Iterable[Header], now: float) -> dict[Ref, int]:
        """Tokens for those that are to be leased at once, to a worker that is alive."""
        wanted: dict[str, list[Header]] = defaultdict(list)
        for header in headers:
            overdue = header.deadline is not None and header.deadline <= now
            if header.item.lease_to and not header.item.after and header.due_at <= now and not overdue:
                wanted[header.item.lease_to].append(header)
        tokens: dict[Ref, int] = {}
        for worker, some in wanted.items():
            given = await self._archive.tokens(len(some))
            held = {token: Held(*h.ref, h.group_id) for token, h in zip(given, some, strict=True)}
            if await self._workers.hold(worker, held):
                tokens.update({h.ref: token for token, h in zip(given, some, strict=True)})
        return tokens

    # -- what was there before -------------------------------------------------------------------------

    async def _existing(self, ref: Ref) -> Submitted:
        """The earlier item that answers for a key."""
        header = await self._archive.header(ref)
        if header is None:
            return Submitted(ref[1], existing=True, group_id=ref[1])
        ledger = await self._archive.ledger(header.group)
        if ledger is None:
            await self.finish(header)
        member = None if ledger is None else ledger.open.get(ref[1]) or ledger.past.get(ref[1])
        status: Status = "ready" if member is None else member.status
        return Submitted(ref[1], existing=True, status=status, group_id=header.group_id)

    async def finish(self, header: Header) -> None:
        """Somebody has begun to submit it."""
        await self._gates.register(header, header.item.after)
        await self.establish(header)

    async def _finish(self, items: Iterable[Item], rejected: Rejected) -> None:
        """An id that is taken may be that of a submission that was cut short, perhaps this one."""
        if rejected.why != "duplicate_id":
            return
        for item in items:
            if item.id in rejected.ids:
                header = await self._archive.header((item.tenant, item.id))
                if header is not None and not header.by and await self._archive.ledger(header.group) is None:
                    await self.finish(header)
