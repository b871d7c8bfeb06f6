"""Races for one item: settled, completed, cancelled, buried, deleted at once; and answers that were lost."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable

from treadle.errors import AlreadyEnded
from treadle.item import Changed, Lease, Outcome

from .build import (
    apply,
    beat,
    claim,
    claim_ids,
    connections,
    die,
    exists,
    item,
    only,
    settle,
    settle_one,
    start,
    start_one,
    status,
    statuses,
    submit,
    succeed,
)
from .check import consistent, recount
from .races import rounds
from .subject import Subject, needs


class SettleRaceCases:
    async def test_two_settle_with_the_same_token(self, subject: Subject) -> None:
        """One takes effect; the other is told that it has."""
        backends = await connections(subject, 2)
        leases = await start(subject.backend, *(item(f"a{n}") for n in range(50)))

        async def play(n: int) -> list[Outcome]:
            settlement = succeed(leases[n], item(f"c{n}"))
            return await asyncio.gather(*(settle_one(backend, settlement) for backend in backends))

        for outcomes in await rounds(50, play):
            assert {outcome.verb for outcome in outcomes} == {"applied"}
            assert sorted(outcome.again for outcome in outcomes) == [False, True]
        assert len(await claim_ids(subject.backend)) == 50
        await consistent(subject.backend)

    @needs("operating", "fencing")
    async def test_an_operator_completes_while_the_worker_settles(self, subject: Subject) -> None:
        """One of them wins, and the other is told so."""
        backends = await connections(subject, 2)
        leases = await start(subject.backend, *(item(f"a{n}") for n in range(50)))

        async def by_hand(n: int) -> bool:
            try:
                await backends[1].complete(f"a{n}", b"hand")
            except AlreadyEnded:
                return False
            return True

        async def play(n: int) -> None:
            outcome, completed = await asyncio.gather(
                settle_one(backends[0], succeed(leases[n], item(f"c{n}"), result=b"worker")), by_hand(n)
            )
            assert (outcome.verb, outcome.loss) == (
                ("stale", "completed") if completed else ("applied", None)
            )
            found = only(await subject.backend.get([f"a{n}"]))
            assert found is not None
            assert found.result == (b"hand" if completed else b"worker")
            assert await exists(subject.backend, f"c{n}") != completed

        await rounds(50, play)
        await consistent(subject.backend)

    @needs("fencing")
    async def test_cancelled_while_the_worker_settles(self, subject: Subject) -> None:
        """Exactly one wins; and what the settlement queued is cancelled too, or never was."""
        backends = await connections(subject, 2)
        leases = await start(subject.backend, *(item(f"a{n}") for n in range(100)))

        async def play(n: int) -> None:
            answers: tuple[Outcome, Changed] = await asyncio.gather(
                settle_one(backends[0], succeed(leases[n], item(f"c{n}"))), backends[1].cancel([f"a{n}"])
            )
            outcome, changed = answers
            statuses_now = await statuses(subject.backend, f"a{n}", f"c{n}")
            if outcome.verb == "applied":
                assert [one.id for one in changed.items] == [f"c{n}"]
                assert statuses_now == ["success", "cancelled"]
            else:
                assert (outcome.loss, [one.id for one in changed.items]) == ("cancelled", [f"a{n}"])
                assert statuses_now == ["cancelled", None]

        await rounds(100, play)
        assert await claim_ids(subject.backend) == []
        await consistent(subject.backend)

    @needs("fencing")
    async def test_buried_while_it_settles(self, subject: Subject) -> None:
        """Settled or freed, not both."""
        backends = await connections(subject, 2)
        leases = [await start_one(subject.backend, item(f"a{n}"), f"w{n}") for n in range(50)]

        async def play(n: int) -> None:
            outcome, freed = await asyncio.gather(
                settle_one(backends[0], succeed(leases[n])), backends[1].remove_worker(f"w{n}")
            )
            assert (outcome.verb, freed) in {("applied", 0), ("stale", 1)}
            expected = "success" if outcome.verb == "applied" else "ready"
            assert await status(subject.backend, f"a{n}") == expected

        await rounds(50, play)
        await consistent(subject.backend)

    @needs("operating", "fencing")
    async def test_deleted_while_it_settles(self, subject: Subject) -> None:
        """Gone either way, and nothing of it is left: not the child, not the group."""
        backends = await connections(subject, 2)
        leases = await start(subject.backend, *(item(f"a{n}") for n in range(50)))

        async def play(n: int) -> None:
            outcome, _ = await asyncio.gather(
                settle_one(backends[0], succeed(leases[n], item(f"c{n}"))), backends[1].delete([f"a{n}"])
            )
            assert outcome.verb == "applied" or outcome.loss == "not_found"
            assert await statuses(subject.backend, f"a{n}", f"c{n}") == [None, None]
            assert list(await subject.backend.group([f"a{n}"])) == [None]

        await rounds(50, play)
        assert await claim_ids(subject.backend) == []
        await consistent(subject.backend)

    @needs("operating")
    async def test_requeued_by_two_at_once(self, subject: Subject) -> None:
        """One of them changes it; the group opens once."""
        backends = await connections(subject, 4)
        leases = await start(subject.backend, *(item(f"a{n}") for n in range(40)))
        await apply(subject.backend, *(die(lease) for lease in leases))

        async def play(n: int) -> list[Changed]:
            return await asyncio.gather(*(backend.requeue([f"a{n}"]) for backend in backends))

        for changed in await rounds(40, play):
            assert sum(len(one.items) for one in changed) == 1
        assert await recount(subject.backend, "a0") == 1
        assert len(await claim_ids(subject.backend)) == 40
        await consistent(subject.backend)

    @needs("operating")
    async def test_operators_and_claims_at_once(self, subject: Subject) -> None:
        """Cancels, triggers, completions and claims of the same items end, each item in one state."""
        backends = await connections(subject, 4)
        names = [f"a{n}" for n in range(60)]
        await submit(subject.backend, *(item(name) for name in names))
        await beat(subject.backend, "w")

        async def complete(name: str) -> None:
            try:
                await backends[0].complete(name, None)
            except AlreadyEnded:
                assert await status(subject.backend, name) in {"cancelled", "success"}

        await asyncio.gather(
            *(complete(name) for name in names[::3]),
            *(backends[1].cancel(names[n : n + 5]) for n in range(0, 60, 10)),
            *(claim(backends[2 + n % 2], 10) for n in range(6)),
        )
        await consistent(subject.backend)


class LostAnswerCases:
    async def test_a_settle_that_was_cancelled_can_be_repeated(self, subject: Subject) -> None:
        """It may or may not have happened; repeated, it has, once."""
        leases = await start(subject.backend, *(item(f"a{n}") for n in range(30)))
        for n, lease in enumerate(leases):
            settlement = succeed(lease, item(f"c{n}"))
            await cut_short(settle(subject.backend, settlement), n % 6)
            assert (await settle_one(subject.backend, settlement)).verb == "applied"
        assert len(await claim_ids(subject.backend)) == 30
        await consistent(subject.backend)

    async def test_a_submit_that_was_cancelled_can_be_repeated(self, subject: Subject) -> None:
        """With a key: stored once, and answered the same."""
        for n in range(30):
            new = item(f"a{n}", key=f"k{n}")
            await cut_short(submit(subject.backend, new), n % 6)
            assert only(await submit(subject.backend, new)).id == f"a{n}"
        assert len(await claim_ids(subject.backend)) == 30
        await consistent(subject.backend)

    async def test_a_claim_that_was_cancelled_leaves_orphans(self, subject: Subject) -> None:
        """What nobody holds is found through `unknown_leases`; nothing is lost."""
        backend = subject.backend
        await submit(backend, *(item(f"a{n}") for n in range(30)))
        held: dict[str, Lease] = {}
        for n in range(30):
            await cut_short(claim(backend, 1), n % 6)
            for lease in await backend.unknown_leases("w", [one.token for one in held.values()]):
                held[lease.id] = lease
        for lease in [*await claim(backend), *await backend.unknown_leases("w", [])]:
            held[lease.id] = lease
        assert len(held) == 30
        await apply(backend, *(succeed(lease) for lease in held.values()))
        await consistent(backend)


async def cut_short(call: Awaitable[object], turns: int) -> None:
    """Start a call and cancel it after so many turns of the loop. It has ended when this returns."""
    task = asyncio.ensure_future(call)
    for _ in range(turns):
        await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait([task])
    if not task.cancelled():
        task.result()
