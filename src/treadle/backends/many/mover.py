"""Mover: a tenant moves from one store to another while both are in use.

| step | at | what | after a crash here |
| --- | --- | --- | --- |
| 1 | old | the move begins: it gets a number | nothing has moved; resume, or give up |
| 2 | new | takes records of this move from now on, and stores nothing else of the tenant | the same |
| 3 | old | a freeze gets a number | the same |
| 4 | new | takes records of this freeze; what came before is dropped | the same |
| 5 | old | others wait to write | it thaws by itself, with the connection |
| 6 | new | keeps the records, which no one sees | they are dropped by the next attempt |
| 7 | both | counts and checksums are compared | as 5 |
| 8 | old | **the decision**: what it had is removed, its mark says where it went | 9, by the next who asks |
| 9 | new | makes items of the records, and owns them, in one step | repeated |
| 10 | old | its mark stays, and sends on who asks | |

So at no time do two stores own a tenant, and the one that decides has seen all of it at the other. A mover
that is late names an old number: it is refused. To give up, the old store ends the move first.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from msgspec.structs import replace

from treadle.backend import MovesTenants, TenantMoves, store_name
from treadle.base.timing import Clock
from treadle.errors import BackendError, InputError, PlacementError, StoreUnavailable, UnsupportedError
from treadle.item import AuditNote
from treadle.records import MovedTenant, TenantMark
from treadle.store import portable
from treadle.store.portable import PortableAudit, PortableItem, RecordsChecksum, Tally
from treadle.store.rules.tenant_moves import (
    committed,
    copying,
    discarded,
    frozen,
    given_up,
    prepared,
    started,
)

from .member import Member
from .places import OWN, TenantPlaces

PORTION: Final = 1000
FREEZE: Final = 10.0
"""Seconds for which others may have to wait to write, in the old store, by default."""
LONGER: Final = 60.0
"""Seconds beyond that in which the decision may be made."""
SKEW: Final = 1.0
"""Seconds by which the clocks of the stores may differ: instants are taken as they are."""


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
        frozen_mark = await self._freeze(tenant, there, old, began, freeze)
        copy = await self._copy_begins(tenant, here, new, frozen_mark)
        moved = await self._copied(tenant, there, here, old, new, frozen_mark, copy, freeze, note, progress)
        await self._end(tenant, old, new)
        return moved

    async def give_up(self, tenant: str) -> bool:
        """End a move without a decision. False: there is none."""
        found = False
        for old in self._places.members:
            mark = await self._places.mark_at(old, tenant)
            if mark is None or not mark.move or mark.state not in ("owned", "frozen"):
                continue
            ended = given_up(mark, mark.move)
            if ended is None or not await _moves(old).put_mark(tenant, mark, ended):
                raise _overtaken(tenant)
            found = True
        for new in self._places.members:
            mark = await self._places.mark_at(new, tenant)
            if mark is None or mark.state != "importing":
                continue
            if await self._is_decided(tenant, mark):
                raise BackendError(f"the move of {tenant!r} to {new.name!r} is decided: end it with --resume")
            dropped = discarded(mark, mark.move)
            if dropped is not None:
                await _moves(new).put_mark(tenant, mark, dropped)
                found = True
        return found

    async def _is_decided(self, tenant: str, importing: TenantMark) -> bool:
        for old in self._places.members:
            mark = await self._places.mark_at(old, tenant)
            if mark is not None and mark.state == "away" and mark.move == importing.move:
                return True
        return False

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
        tally, checksum, running = Tally(), RecordsChecksum(), 0
        async with there.give(tenant, frozen_mark) as giving:
            began = self._monotonic()
            while portion := [*await giving.read(PORTION)]:
                decoded = [portable.decode(data) for data in portion]
                tally.add(decoded)
                running += sum([isinstance(one, PortableItem) and one.lease is not None for one in decoded])
                checksum.add(portion)
                if not await here.stage(tenant, copy, portion):
                    raise _overtaken(tenant)
                progress(tally.total)
                if self._monotonic() - began > freeze:
                    raise BackendError(
                        f"to copy {tenant!r} takes longer than the {freeze:g} s for which others may wait: "
                        f"{tally.total:,} records were read. Nothing was moved. Go on with --resume and a "
                        "larger --freeze, when there is little to do, or end it with --give-up"
                    )
            if note is not None:
                entry = portable.encode(_entry(note, tally, await old.call("now"), old, new))
                checksum.add([entry])
                if not await here.stage(tenant, copy, [entry]):
                    raise _overtaken(tenant)
            if await here.staged(tenant) != checksum.total:
                raise BackendError(f"{new.name} has not kept what was sent: nothing was moved")
            away = committed(frozen_mark, frozen_mark.move, frozen_mark.freeze, await old.call("now"))
            if away is None:
                raise _overtaken(tenant)
            await giving.commit(away)
            waited = self._monotonic() - began
        return MovedTenant(
            tenant=tenant,
            source=old.name,
            to=new.name,
            items=tally.counts.get("item", 0),
            records=tally.total,
            running=running,
            waited=waited,
        )

    async def _end(self, tenant: str, old: Member, new: Member) -> None:
        mark = await self._places.mark_at(old, tenant)
        if mark is not None and mark.state == "away":
            await self._places.finish(tenant, mark, new)
        self._places.learn(tenant, new)


def _entry(note: AuditNote, tally: Tally, at: float, old: Member, new: Member) -> PortableAudit:
    return PortableAudit(
        no=0,
        at=at,
        actor=note.actor,
        verb="move",
        count=tally.counts.get("item", 0),
        about=f"{old.name} to {new.name}",
        reason=note.reason,
        address=note.address,
    )


def _moves(member: Member) -> TenantMoves:
    if not isinstance(member.backend, MovesTenants):
        raise UnsupportedError(
            "tenant_moves",
            store_name(member.backend),
            advice="tenants move between SQLite and PostgreSQL while they are in use. Stop their workers, "
            "and use treadle export --tenant and import",
        )
    return member.backend.tenant_moves


def _overtaken(tenant: str) -> StoreUnavailable:
    return StoreUnavailable(f"another command moves {tenant!r}, or has given its move up: try again")
