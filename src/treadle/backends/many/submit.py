"""Submit and settle over several stores: each request is one step in one store."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Final

from msgspec.structs import replace

from treadle.backend import all_stores
from treadle.errors import PlacementError, StoreUnavailable, TenantElsewhere
from treadle.item import (
    Fire,
    Lease,
    Loss,
    Outcome,
    Record,
    Rejected,
    Schedule,
    Settled,
    Settlement,
    Submission,
    Submitted,
)

from .claim import ManyClaims
from .member import Member, in_parts
from .merge import effects_of
from .places import SENT_ON, TenantPlaces
from .read import Answers
from .roots import RootPlaces
from .transactions import check_transactions, place_of_submission, within
from .view import Views

Answer = tuple[Submitted, ...] | Rejected

PATIENCE: Final = 1.0
"""Seconds to wait for the schedules of each store: they are few, and others are due meanwhile."""
FORGED: Final = Outcome(verb="stale", loss="not_found")
"""The answer for a lease with the tenant of another one."""


class ManyWrites:
    def __init__(self, places: TenantPlaces, views: Views, claims: ManyClaims) -> None:
        self._places = places
        self._views = views
        self._claims = claims

    async def submit(self, submissions: Sequence[Submission], *, tx: object = None) -> Sequence[Answer]:
        if tx is not None:
            check_transactions(self._places)
            await self._check_placed(submissions)
        return await self._submit(submissions, tx, SENT_ON)

    async def _submit(self, submissions: Sequence[Submission], tx: object, hops: int) -> Sequence[Answer]:
        """hops: how often a tenant may have moved meanwhile."""
        pairs = [(each, await place_of_submission(self._places, each)) for each in submissions]

        async def one(member: Member, some: list[tuple[Submission, Member]]) -> Sequence[Answer]:
            tenant = some[0][0].items[0].tenant if some[0][0].items else None
            given = [each for each, _ in some]
            try:
                with within(tx, member, tenant):
                    answers: Sequence[Answer] = await member.call("submit", given, tx=tx)
            except TenantElsewhere as error:
                if tx is not None or not hops:
                    raise
                for whose in {item.tenant for each in given for item in each.items}:
                    await self._places.moved_from(whose, member)
                stored, rest = error.answers, given[len(error.answers) :]
                sent_on = [answer for each in rest for answer in await self._submit([each], None, hops - 1)]
                return [*(self._outer(answer, member) for answer in stored), *sent_on]
            self._views.heat([member.number])
            return [self._outer(answer, member) for answer in answers]

        return await in_parts(pairs, lambda pair: pair[1], one)

    async def _check_placed(self, submissions: Sequence[Submission]) -> None:
        """In the user's transaction a tenant cannot be given its place if home has one writer: that may be
        the transaction itself."""
        if "sqlite" not in getattr(self._places.home.backend, "address", ""):
            return
        for tenant in {item.tenant for each in submissions for item in each.items}:
            if await self._places.find(tenant) is None:
                raise PlacementError(
                    f"the tenant {tenant!r} has no store yet, and gets none while a transaction is open: "
                    f"call app.place({tenant!r}) before it begins",
                    parameters=("tx",),
                )

    def _outer(self, answer: Answer, member: Member) -> Answer:
        if isinstance(answer, Rejected) or all(each.lease is None for each in answer):
            return answer
        return tuple(
            each if each.lease is None else replace(each, lease=self._claims.taken(each.lease, member))
            for each in answer
        )

    async def settle(self, settlements: Sequence[Settlement]) -> Settled:
        """The engine settles those of one store at a time. What has moved is settled where it is now."""
        parts: list[Settled] = []
        adopted = self._views.adopted

        async def one(member: Member, some: list[Settlement]) -> Sequence[Outcome]:
            for each in some:
                if isinstance(self._places, RootPlaces) and each.children:
                    self._places.check_children(each.lease, each.children)
            sent = [replace(each, lease=adopted.inner(each.lease)) for each in some]
            answer: Settled = await member.call("settle", sent)
            parts.append(answer)
            self._views.heat([member.number])
            outcomes = list(answer.outcomes)
            for n, each in enumerate(some):
                if outcomes[n].loss == "not_found" and (new := await adopted.moved(each.lease, member)):
                    (outcomes[n],) = await one(new, [each])
            return outcomes

        sent = [each for each in settlements if await self._is_of_tenant(each.lease)]
        settled = await in_parts(sent, lambda each: adopted.place_of(each.lease), one)
        answers = {id(each): outcome for each, outcome in zip(sent, settled, strict=True)}
        outcomes = [answers.get(id(each), FORGED) for each in settlements]
        held = self._views.held
        for settlement, outcome in zip(settlements, outcomes, strict=True):
            if outcome.verb in ("applied", "stale"):
                held.discard(settlement.lease.token)
                adopted.drop(settlement.lease.token)
        at = max([part.at for part in parts], default=0.0)
        return Settled(tuple(outcomes), effects_of(part.effects for part in parts), at)

    async def _is_of_tenant(self, lease: Lease) -> bool:
        """Whether the store that gave a lease, or that has it now, has its tenant."""
        places, adopted = self._places, self._views.adopted
        known, place = places.known(lease.tenant, lease.id), adopted.place_of(lease)
        if known is None or known is place:
            return True
        if places.by_root:
            return False
        if await adopted.find(lease, known):
            return True
        if await places.moved_from(lease.tenant, known) is place:
            return True
        return await adopted.moved(lease, known) is not None

    async def record(self, records: Sequence[Record]) -> Sequence[Loss | None]:
        adopted = self._views.adopted

        async def one(member: Member, some: list[Record]) -> Sequence[Loss | None]:
            sent = [replace(each, lease=adopted.inner(each.lease)) for each in some]
            losses: list[Loss | None] = list(await member.call("record", sent))
            for n, each in enumerate(some):
                if losses[n] == "not_found" and (new := await adopted.moved(each.lease, member)):
                    (losses[n],) = await one(new, [each])
            return losses

        return await in_parts(records, lambda each: adopted.place_of(each.lease), one)


class ManySchedules:
    """A schedule is in the store of the tenant whose items it submits, so that it fires in one step. One
    that names no tenant is at home. By root: in that of its name."""

    def __init__(self, places: TenantPlaces, answers: Answers, views: Views, claims: ManyClaims) -> None:
        self._places = places
        self._answers = answers
        self._views = views
        self._claims = claims
        self._known: dict[str, Member] = {}
        """Where schedules are, by name."""

    async def put_schedule(self, schedule: Schedule, *, again: bool = False) -> Schedule:
        member = self._known.get(schedule.name)
        if isinstance(self._places, RootPlaces):
            member = self._places.of_schedule(schedule.name)
        elif schedule.tenant is not None:
            member = await self._places.of(schedule.tenant)
        elif member is None:
            member = await self._find(schedule.name) or self._places.home
        stored: Schedule = await member.call("put_schedule", replace(schedule, tenant=None), again=again)
        self._known[schedule.name] = member
        return stored

    async def schedules(self) -> Sequence[Schedule]:
        found: dict[str, Schedule] = {}
        for member, rows in await self._answers.by_store("schedules", patience=PATIENCE):
            for row in rows:
                if row.name not in found or _is_ahead(row, found[row.name]):
                    found[row.name], self._known[row.name] = row, member
        return [row for _, row in sorted(found.items())]

    async def drop_schedule(self, name: str, *, note: object = None) -> bool:
        """Where it is, and where a copy of it may be left. All stores note that it was removed."""
        member = self._known.get(name) or await self._find(name)
        if not self._places.by_root:
            for other in self._places.members:
                if other is not (member or self._places.home):
                    with suppress(StoreUnavailable):
                        await other.call("drop_schedule", name)
        member = member or self._places.home
        dropped: bool = await member.call("drop_schedule", name, note=note)
        return dropped

    async def pause_schedule(self, name: str, paused: bool, *, note: object = None) -> bool:
        member = await self._having(name)
        found: bool = await member.call("pause_schedule", name, paused, note=note)
        return found

    async def fire(self, fire: Fire) -> Answer | None:
        return await self._fire(fire, SENT_ON)

    async def _fire(self, fire: Fire, hops: int) -> Answer | None:
        member = await self._of_fire(fire)
        try:
            answer: Answer | None = await member.call("fire", fire)
        except TenantElsewhere:
            if not hops:
                raise
            await self._places.moved_from(fire.items[0].tenant, member)
            return await self._fire(fire, hops - 1)
        self._views.heat([member.number])
        if answer is None or isinstance(answer, Rejected):
            return answer
        return tuple(
            each if each.lease is None else replace(each, lease=self._taken(each.lease, member))
            for each in answer
        )

    async def _of_fire(self, fire: Fire) -> Member:
        if isinstance(self._places, RootPlaces):
            return self._places.of_fire(fire)
        member = self._known.get(fire.name) or await self._find(fire.name)
        place = await self._places.of(fire.items[0].tenant) if fire.items else self._places.home
        if member is None:
            return place  # no store has it: any says so
        if fire.items and place is not member:
            if await self._places.moved_from(fire.items[0].tenant, member) is None:
                raise PlacementError(
                    f"the schedule {fire.name!r} is in the store {member.name!r}, and submits for the tenant "
                    f"{fire.items[0].tenant!r}, which is in {place.name!r}",
                    parameters=("tenant",),
                )
            await self._take_along(fire.name, member, place)
        elif fire.items and await self._places.last_move(fire.items[0].tenant, member):
            for other in self._places.members:
                if other is not member:
                    with suppress(StoreUnavailable):
                        await self._take_along(fire.name, other, member)
        self._known[fire.name] = place if fire.items else member
        return self._known[fire.name]

    async def _take_along(self, name: str, old: Member, new: Member) -> None:
        """Store a schedule where its tenant is, as it is, and remove it here. If this process dies in
        between, a copy is left here. When the tenant comes back, what was fired meanwhile is not fired
        again."""
        there: Sequence[Schedule] = await old.call("schedules")
        for schedule in there:
            if schedule.name != name:
                continue
            stored: Schedule = await new.call("put_schedule", schedule)
            if _is_ahead(schedule, stored) and stored.next_at is not None:
                if stored.paused:
                    await new.call("pause_schedule", name, False)
                await new.call("fire", Fire(name=name, at=stored.next_at, next_at=schedule.next_at))
            if schedule.paused:
                await new.call("pause_schedule", name, True)
            await old.call("drop_schedule", name)

    def _taken(self, lease: Lease, member: Member) -> Lease:
        return self._claims.taken(lease, member)

    async def _having(self, name: str) -> Member:
        return self._known.get(name) or await self._find(name) or self._places.home

    async def _find(self, name: str) -> Member | None:
        """A store that does not answer may have it."""
        if isinstance(self._places, RootPlaces):
            return self._places.of_schedule(name)
        with all_stores():
            await self.schedules()
        return self._known.get(name)


def _is_ahead(schedule: Schedule, other: Schedule) -> bool:
    """Whether it has fired since there were two copies of one schedule."""
    return (schedule.last_at or 0.0) > (other.last_at or 0.0)
