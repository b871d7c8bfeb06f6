"""Mover: a tenant moves from one store to another while both are in use.

| step | at | what | after a crash here |
| --- | --- | --- | --- |
| 1 | old | the move begins: it gets a number | nothing has moved; resume, or give up |
| 2 | new | takes records of this move from now on, and stores nothing else of the tenant | the same |
| 3 | both | what has ended is copied ahead. Others go on: the old store notes changes | the same |
| 4 | old | a freeze gets a number | the same |
| 5 | new | takes records of this freeze; nothing more is copied ahead | the same |
| 6 | old | others wait to write | it thaws by itself, with the connection |
| 7 | new | drops what has changed, and keeps the rest, which no one sees | the next attempt drops the rest |
| 8 | both | counts and checksums are compared | as 6 |
| 9 | old | **the decision**: what it had is removed, its mark says where it went | 10, by the next who asks |
| 10 | new | makes items of the records, and owns them, in one step | repeated |
| 11 | old | its mark stays, and sends on who asks | |

So at no time do two stores own a tenant, and the one that decides has seen all of it at the other. A mover
that is late names an old number: it is refused. To give up, the old store ends the move first.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from msgspec.structs import replace

from treadle.backend import (
    GivesAhead,
    Giving,
    MovesAhead,
    MovesTenants,
    ReadAhead,
    TenantMoves,
    store_name,
)
from treadle.base.timing import Clock
from treadle.errors import BackendError, InputError, PlacementError, StoreUnavailable, UnsupportedError
from treadle.item import AuditNote
from treadle.records import MovedTenant, TenantMark
from treadle.store import portable
from treadle.store.portable import PortableAudit, PortableItem, RecordsChecksum
from treadle.store.rules.tenant_moves import (
    committed,
    copying,
    discarded,
    frozen,
    given_up,
    may_come_ahead,
    prepared,
    started,
)

from .member import Member
from .places import OWN, TenantPlaces

PORTION: Final = 1000
AHEAD: Final = 500
"""Numbers that are read ahead at once. Others go on between two portions."""
RECEIVED: Final = 2000
"""Records of which a store makes items in a second, in one step: others wait to write meanwhile."""
FREEZE: Final = 10.0
"""Seconds for which others may have to wait to write, in the old store, by default."""
LONGER: Final = 60.0
"""Seconds beyond that in which the decision may be made."""
SKEW: Final = 1.0
"""Seconds by which the clocks of the stores may differ: instants are taken as they are."""


class _NotKept(BackendError):
    """The new store has not what was read. So it is too if another mover has read ahead of this one what it
    could not send any more."""


class TenantMover:
    def __init__(self, places: TenantPlaces, clock: Clock) -> None:
        self._places = places
        self._monotonic = clock.monotonic

    # -- verbs -----------------------------------------------------------------------------------------

    async def move(
        self,
        tenant: str,
        to: str,
        *,
        source: str | None,
        resume: bool,
        freeze: float,
        skew: float,
        note: AuditNote | None,
        progress: Callable[[int], object],
    ) -> MovedTenant:
        new = self._places.named(to)
        old, mark = await self._source(tenant, new, source)
        if mark is not None and mark.state == "away":
            await self._places.finish(tenant, mark, new)
            self._places.learn(tenant, new)
            return MovedTenant(tenant=tenant, source=old.name, to=to, finished=True)
        if old is new:
            return MovedTenant(tenant=tenant, source=old.name, to=to, finished=True)
        there, here = _moves(old), _moves(new)
        await self._check_clocks(old, new, skew)
        began = await self._begin(tenant, old, new, mark, resume=resume)
        await self._prepare(tenant, here, new, began.move)
        await self._copy_ahead(tenant, there, here, began, new, progress)
        frozen_mark = await self._freeze(tenant, there, old, began, freeze)
        copy = await self._copy_begins(tenant, here, new, frozen_mark)
        try:
            moved = await self._copied(
                tenant, there, here, old, new, frozen_mark, copy, freeze, note, progress
            )
        except _NotKept:
            await self.give_up(tenant, began.move)
            raise
        await self._end(tenant, old, new)
        return moved

    async def give_up(self, tenant: str, move: int | None = None) -> bool:
        """End a move without a decision. False: there is none. move: only this one."""
        found = False
        for old in self._places.members:
            mark = await self._places.mark_at(old, tenant)
            if mark is None or not mark.move or mark.state not in ("owned", "frozen"):
                continue
            if mark.move != (move or mark.move):
                continue
            ended = given_up(mark, mark.move)
            if ended is None or not await _moves(old).put_mark(tenant, mark, ended):
                raise _overtaken(tenant)
            found = True
        for new in self._places.members:
            mark = await self._places.mark_at(new, tenant)
            if mark is None or mark.state != "importing" or mark.move != (move or mark.move):
                continue
            # It has begun in the old store before. So it is under way there, or has ended for good.
            there = await self._old_state(tenant, mark.move)
            if there == "away":
                raise BackendError(f"the move of {tenant!r} to {new.name!r} is decided: end it with --resume")
            if there is not None:
                raise _overtaken(tenant)
            dropped = discarded(mark, mark.move)
            if dropped is not None:
                await _moves(new).put_mark(tenant, mark, dropped)
                found = True
        return found

    async def _old_state(self, tenant: str, move: int) -> str | None:
        """The state of a move in the store that gives the tenant away. None: it has ended without a
        decision."""
        for old in self._places.members:
            mark = await self._places.mark_at(old, tenant)
            if mark is not None and mark.state != "importing" and mark.move == move:
                return mark.state
        return None

    # -- where it is -----------------------------------------------------------------------------------

    async def _source(self, tenant: str, new: Member, source: str | None) -> tuple[Member, TenantMark | None]:
        """The store that has a tenant, or that has given it away to `new` by a move that is not ended."""
        if tenant.startswith(OWN):
            raise InputError.of("tenant", tenant, "is treadle's own: it stays at home")
        for old in self._places.members:
            mark = await self._places.mark_at(old, tenant)
            if mark is not None and mark.state == "away" and mark.to == new.name and old is not new:
                coming = await self._places.mark_at(new, tenant)
                if coming is not None and coming.state == "importing" and coming.move == mark.move:
                    return old, mark
        found = await self._places.checked(tenant)
        if found is None:
            raise PlacementError(
                f"the tenant {tenant!r} has no store yet, so there is nothing to move: "
                f"treadle stores place {tenant} {new.name}",
                parameters=("tenant",),
            )
        if source is not None and found.name != source and found is not new:
            raise PlacementError(
                f"the tenant {tenant!r} is in the store {found.name!r}, not {source!r}",
                parameters=("tenant",),
            )
        return found, await self._places.mark_at(found, tenant)

    async def _check_clocks(self, old: Member, new: Member, skew: float) -> None:
        difference = abs(await new.call("now") - await old.call("now"))
        if difference > skew:
            raise BackendError(
                f"the clocks of {old.name} and {new.name} differ by {difference:.1f} s: set them right, or "
                "allow it with --skew"
            )

    # -- the steps -------------------------------------------------------------------------------------

    async def _begin(
        self, tenant: str, old: Member, new: Member, seen: TenantMark | None, *, resume: bool
    ) -> TenantMark:
        mark = seen or TenantMark()
        if mark.move and mark.to != new.name:
            raise BackendError(
                f"a move of {tenant!r} to {mark.to!r} has begun: end it with --resume, or with --give-up"
            )
        if mark.move:
            if not resume:
                raise BackendError(
                    f"a move of {tenant!r} to {new.name!r} has begun: go on with --resume, or end it "
                    "with --give-up"
                )
            return mark
        coming = await self._places.mark_at(new, tenant)
        number = max(mark.number, 0 if coming is None else coming.number)
        began = started(replace(mark, number=number), number, new.name)
        if began is None or not await _moves(old).put_mark(tenant, seen, began):
            raise _overtaken(tenant)
        return began

    async def _prepare(self, tenant: str, here: TenantMoves, new: Member, move: int) -> None:
        seen = await self._places.mark_at(new, tenant)
        mark = prepared(seen, move, is_empty=True)
        if mark is None:
            raise _overtaken(tenant)
        if mark != seen and not await here.put_mark(tenant, seen, mark, empty=True):
            raise _overtaken(tenant)

    async def _copy_ahead(
        self,
        tenant: str,
        there: TenantMoves,
        here: TenantMoves,
        began: TenantMark,
        new: Member,
        progress: Callable[[int], object],
    ) -> None:
        """Copy what has ended, while others go on. After a freeze nothing comes ahead any more: a mover that
        is late could be at it still."""
        mark = await self._places.mark_at(new, tenant)
        if not (isinstance(there, MovesAhead) and isinstance(here, MovesAhead) and may_come_ahead(mark)):
            return
        assert mark is not None
        last, count = await here.staged_ahead(tenant), 0
        while ended := await there.read_ahead(tenant, began, last, AHEAD):
            if not await here.stage_ahead(tenant, mark, ended):
                raise _overtaken(tenant)
            last = ended[-1].number
            count += sum([len(one.records) for one in ended])
            progress(count)

    async def _freeze(
        self, tenant: str, there: TenantMoves, old: Member, began: TenantMark, seconds: float
    ) -> TenantMark:
        now = await old.call("now")
        before = replace(
            began, state="owned"
        )  # an attempt that was left behind has thawed with its connection
        mark = frozen(before, began.move, now, now + seconds + LONGER)
        if mark is None or not await there.put_mark(tenant, began, mark):
            raise _overtaken(tenant)
        return mark

    async def _copy_begins(
        self, tenant: str, here: TenantMoves, new: Member, frozen_mark: TenantMark
    ) -> TenantMark:
        seen = await self._places.mark_at(new, tenant)
        mark = None if seen is None else copying(seen, frozen_mark.move, frozen_mark.freeze)
        if mark is None or not await here.put_mark(tenant, seen, mark):
            raise _overtaken(tenant)
        return mark

    async def _copied(
        self,
        tenant: str,
        there: TenantMoves,
        here: TenantMoves,
        old: Member,
        new: Member,
        frozen_mark: TenantMark,
        copy: TenantMark,
        freeze: float,
        note: AuditNote | None,
        progress: Callable[[int], object],
    ) -> MovedTenant:
        async with there.give(tenant, frozen_mark) as giving:
            began = self._monotonic()
            ahead = await _ahead(tenant, here, giving, copy)
            if (takes := ahead.records / RECEIVED) > freeze:
                raise BackendError(
                    f"to make items of the {ahead.records:,} records that were copied ahead takes {new.name} "
                    f"about {takes:.0f} s, and others may wait for {freeze:g} s. Nothing was moved. Prune "
                    "and begin anew after --give-up, or go on with --resume and a larger --freeze"
                )
            items, running, checksum = ahead.items, 0, RecordsChecksum(ahead.records, ahead.checksum)
            while portion := [*await giving.read(PORTION)]:
                for data in portion:
                    record = portable.decode(data)
                    if isinstance(record, PortableItem):
                        items += 1
                        running += record.lease is not None
                checksum.add(portion)
                if not await here.stage(tenant, copy, portion):
                    raise _overtaken(tenant)
                progress(checksum.total[0])
                if self._monotonic() - began > freeze:
                    raise BackendError(
                        f"to copy {tenant!r} takes longer than the {freeze:g} s for which others may wait: "
                        f"{checksum.total[0]:,} records were read. Nothing was moved. Go on with --resume "
                        "and a larger --freeze, when there is little to do, or end it with --give-up"
                    )
            records = checksum.total[0]
            if note is not None:
                entry = portable.encode(_entry(note, items, await old.call("now"), old, new))
                checksum.add([entry])
                if not await here.stage(tenant, copy, [entry]):
                    raise _overtaken(tenant)
            if await here.staged(tenant) != checksum.total:
                if await self._places.mark_at(new, tenant) != copy:
                    raise _overtaken(tenant)
                raise _NotKept(
                    f"{new.name} has not kept what was sent. Nothing was moved, and the move has ended: "
                    "begin it anew"
                )
            away = committed(frozen_mark, frozen_mark.move, frozen_mark.freeze, await old.call("now"))
            if away is None:
                raise _overtaken(tenant)
            await giving.commit(away)
            waited = self._monotonic() - began
        return MovedTenant(
            tenant=tenant,
            source=old.name,
            to=new.name,
            items=items,
            records=records,
            running=running,
            waited=waited,
        )

    async def _end(self, tenant: str, old: Member, new: Member) -> None:
        mark = await self._places.mark_at(old, tenant)
        if mark is not None and mark.state == "away":
            await self._places.finish(tenant, mark, new)
        self._places.learn(tenant, new)


async def _ahead(tenant: str, here: TenantMoves, giving: Giving, copy: TenantMark) -> ReadAhead:
    """What the new store has and that is as it was. It drops the rest."""
    if not isinstance(giving, GivesAhead):
        return ReadAhead(0, 0, 0, ())
    found = await giving.ahead()
    if (
        isinstance(here, MovesAhead)
        and found.changed
        and not await here.drop_ahead(tenant, copy, found.changed)
    ):
        raise _overtaken(tenant)
    return found


def _entry(note: AuditNote, items: int, at: float, old: Member, new: Member) -> PortableAudit:
    return PortableAudit(
        no=0,
        at=at,
        actor=note.actor,
        verb="move",
        count=items,
        about=f"{old.name} to {new.name}",
        reason=note.reason,
        address=note.address,
    )


def _moves(member: Member) -> TenantMoves:
    if not isinstance(member.backend, MovesTenants):
        raise UnsupportedError(
            "tenant_moves",
            store_name(member.backend),
            advice="tenants move between the stores of treadle while they are in use. Stop their "
            "workers, and use treadle export --tenant and import",
        )
    return member.backend.tenant_moves


def _overtaken(tenant: str) -> StoreUnavailable:
    return StoreUnavailable(f"another command moves {tenant!r}, or has given its move up: try again")
