"""World: residents of one store, and what happens to all of them alike."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence

from msgspec.structs import replace

from tests.tenancy.conftest import Place
from tests.tenancy.resident import LONG, Resident, Told, bare, by_name
from treadle.item import Demand, Heartbeat, Lease, Settlement

ROUNDS = 60
COMMON = "common"
"""A worker that serves every tenant."""


class World:
    """The same seed is the same fate, whoever lives here."""

    def __init__(self, place: Place, residents: Sequence[Resident], seed: int) -> None:
        self._place = place
        self._backend = place.backend
        self._residents = residents
        self._fate = random.Random(f"fate {seed}")

    async def turn(self, rounds: int = ROUNDS) -> None:
        events = {self._each: 12, self._time: 3, self._serve: 3, self._receive: 1, self._prune: 1}
        for _ in range(rounds):
            happens = self._fate.choices(list(events), weights=list(events.values()))[0]
            await happens()
            await self._attack()
            await asyncio.gather(*(resident.look() for resident in self._residents))

    async def _each(self) -> None:
        """Everybody does something, at the same time."""
        await asyncio.gather(*(resident.step() for resident in self._residents))

    async def _time(self) -> None:
        """Passes. Who notices first that something is due, or somebody dead, is not part of the bargain: so
        it is noticed at once, on behalf of nobody."""
        await self._place.advance(self._fate.choice((2.0, 10.0, 40.0)))
        await self._backend.beat(Heartbeat(worker=COMMON, lease=LONG))
        await self._backend.claim(Demand(worker=COMMON, limit=0, tenants=("nobody",)))

    async def _serve(self) -> None:
        """One worker claims for all tenants in one call, and settles in one call."""
        await self._backend.beat(Heartbeat(worker=COMMON, lease=LONG))
        found = await self._backend.claim(Demand(worker=COMMON, limit=1000))
        for resident in self._residents:
            mine = [lease for lease in found.leases if lease.tenant == resident.tenant]
            resident.told.append(("served", bare(by_name(mine))))
            resident.leases += by_name(mine)
        ends = [resident.settlements() for resident in self._residents]
        await self._settle_together(ends)

    async def _settle_together(self, ends: Sequence[Sequence[Settlement]]) -> None:
        settled = await self._backend.settle([each for some in ends for each in some])
        outcomes = iter(settled.outcomes)
        for resident, some in zip(self._residents, ends, strict=True):
            mine = [next(outcomes) for _ in some]
            followed = (*settled.effects.released, *settled.effects.closed)
            mine_too = by_name([each for each in followed if each.tenant == resident.tenant])
            resident.told.append((f"settled {bare(some)}", bare([mine, mine_too])))

    async def _receive(self) -> None:
        """One call submits for all tenants."""
        new = [resident.submissions() for resident in self._residents]
        answers = iter(await self._backend.submit([each for some in new for each in some]))
        for resident, some in zip(self._residents, new, strict=True):
            mine = [next(answers) for _ in some]
            resident.told.append((f"received {bare(some)}", bare(mine)))
            resident.submitted(mine)

    async def _prune(self) -> None:
        await self._backend.prune(1000)

    async def _attack(self) -> None:
        """Somebody has got hold of a neighbour's tokens. It is of no use."""
        for resident in self._residents:
            for other in self._residents:
                if other is not resident and other.leases:
                    await self._forge(replace(other.leases[-1], tenant=resident.tenant))

    async def _forge(self, lease: Lease) -> None:
        (outcome,) = (await self._backend.settle([Settlement(lease=lease, kind="cancelled")])).outcomes
        assert outcome.verb == "stale", f"a neighbour's token is of use: {outcome}"
        pulse = await self._backend.beat(Heartbeat(worker=COMMON, lease=LONG, held=[lease]))
        assert lease.token in pulse.lost


def compare(alone: list[Told], together: list[Told]) -> None:
    """The first difference, if there is one."""
    for number, (expected, found) in enumerate(zip(alone, together, strict=False)):
        if found != expected:  # not an assert: leaks are planted, and pytest would look for every difference
            raise AssertionError(
                f"answer {number} depends on a neighbour: {found[0]}\nalone:    {expected}\ntogether: {found}"
            )
    assert len(alone) == len(together)
