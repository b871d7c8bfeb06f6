"""Races between claims: several workers find the same lost, due or parked items at once."""

from __future__ import annotations

import asyncio

from treadle.backend import Backend
from treadle.item import Demand, Lease

from .build import (
    apply,
    beat,
    claim,
    claim_ids,
    connections,
    item,
    items,
    state,
    submit,
    succeed,
)
from .check import consistent
from .subject import Subject, needs


async def drain(backend: Backend, demand: Demand) -> list[Lease]:
    """Claim until no items are left for this worker."""
    seen: list[Lease] = []
    while leases := (await backend.claim(demand)).leases:
        seen += leases
    return seen


class ClaimRaceCases:
    async def test_concurrent_claims_remove_a_lapsed_worker_once(self, subject: Subject) -> None:
        """Its items are freed once each."""
        backends = await connections(subject, 4)
        await submit(subject.backend, *items(100))
        assert len(await claim(subject.backend, 100, "mortal", lease=50)) == 100
        for n in range(8):
            await beat(subject.backend, f"w{n}")
        await subject.advance(60)
        demands = [Demand(worker=f"w{n}", limit=20) for n in range(8)]
        found = await asyncio.gather(*(drain(backends[n % 4], demand) for n, demand in enumerate(demands)))
        leases = [lease for some in found for lease in some]
        leases += await claim(subject.backend)
        assert len(leases) == len({lease.id for lease in leases}) == 100
        assert {lease.attempt for lease in leases} == {2}
        assert len((await state(subject.backend, leases[0].id)).history) == 1
        await consistent(subject.backend)

    async def test_concurrent_claims_return_due_items_once(self, subject: Subject) -> None:
        """Each due item becomes ready once and is returned once."""
        backends = await connections(subject, 4)
        await submit(subject.backend, *items(300, delay=50))
        for n in range(8):
            await beat(subject.backend, f"w{n}")
        await subject.advance(60)
        demands = [Demand(worker=f"w{n}", limit=20) for n in range(8)]
        found = await asyncio.gather(*(drain(backends[n % 4], demand) for n, demand in enumerate(demands)))
        seen = [lease.id for some in found for lease in some]
        seen += await claim_ids(subject.backend, 300)
        assert len(seen) == len(set(seen)) == 300
        await consistent(subject.backend)

    @needs("parking")
    async def test_workers_of_different_types_share_a_queue(self, subject: Subject) -> None:
        """Each parks the items of the others at the same time. Each finds all items of its own type."""
        backends = await connections(subject, 4)
        await submit(subject.backend, *(item(type=f"t{n % 4}", lane=f"l{n % 3}") for n in range(400)))
        for n in range(4):
            await beat(subject.backend, f"w{n}", types=(f"t{n}",))
        demands = [Demand(worker=f"w{n}", limit=9, types={f"t{n}": 9}) for n in range(4)]

        async def work(n: int) -> list[Lease]:
            seen: list[Lease] = []
            for _ in range(40):
                leases = (await backends[n].claim(demands[n])).leases
                await apply(backends[n], *(succeed(lease) for lease in leases))
                seen += leases
            return seen

        for n, seen in enumerate(await asyncio.gather(*(work(n) for n in range(4)))):
            assert {lease.type for lease in seen} == {f"t{n}"}
            assert len(seen) == 100
        await consistent(subject.backend)
