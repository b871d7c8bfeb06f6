"""Races for one item between settle, complete, cancel, remove_worker and delete; and cancelled calls."""

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
from .check import consistent, open_members
from .races import rounds, run_rounds
from .subject import Subject, needs


class SettleRaceCases:
    async def test_two_concurrent_settlements_of_one_token_apply_once(self, subject: Subject) -> None:
        """The other is reported as `applied` with `again`."""
        backends = await connections(subject, 2)
        count = rounds(50)
        leases = await start(subject.backend, *(item(f"a{n}") for n in range(count)))

        async def race(n: int) -> list[Outcome]:
            settlement = succeed(leases[n], item(f"c{n}"))
            return await asyncio.gather(*(settle_one(backend, settlement) for backend in backends))

        for outcomes in await run_rounds(count, race):
            assert {outcome.verb for outcome in outcomes} == {"applied"}
            assert sorted(outcome.again for outcome in outcomes) == [False, True]
        assert len(await claim_ids(subject.backend)) == count
        await consistent(subject.backend)

    @needs("operating", "fencing")
    async def test_an_operator_completes_while_the_worker_settles(self, subject: Subject) -> None:
        """Exactly one of the two takes effect, and the other reports it."""
        backends = await connections(subject, 2)
        count = rounds(50)
        leases = await start(subject.backend, *(item(f"a{n}") for n in range(count)))

        async def by_hand(n: int) -> bool:
            try:
                await backends[1].complete(f"a{n}", b"hand")
            except AlreadyEnded:
                return False
            return True

        async def race(n: int) -> None:
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

        await run_rounds(count, race)
        await consistent(subject.backend)

    @needs("fencing")
    async def test_an_operator_cancels_while_the_worker_settles(self, subject: Subject) -> None:
        """Exactly one takes effect. Children of an applied settlement are cancelled too."""
        backends = await connections(subject, 2)
        count = rounds(100)
        leases = await start(subject.backend, *(item(f"a{n}") for n in range(count)))

        async def race(n: int) -> None:
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

        await run_rounds(count, race)
        assert await claim_ids(subject.backend) == []
        await consistent(subject.backend)

    @needs("fencing")
    async def test_a_worker_is_removed_while_it_settles(self, subject: Subject) -> None:
        """The item is settled or freed, not both."""
        backends = await connections(subject, 2)
        count = rounds(50)
        leases = [await start_one(subject.backend, item(f"a{n}"), f"w{n}") for n in range(count)]

        async def race(n: int) -> None:
            outcome, freed = await asyncio.gather(
                settle_one(backends[0], succeed(leases[n])), backends[1].remove_worker(f"w{n}")
            )
            assert (outcome.verb, freed) in {("applied", 0), ("stale", 1)}
            expected = "success" if outcome.verb == "applied" else "ready"
            assert await status(subject.backend, f"a{n}") == expected

        await run_rounds(count, race)
        await consistent(subject.backend)

    @needs("operating", "fencing")
    async def test_an_item_is_deleted_while_it_settles(self, subject: Subject) -> None:
        """It is gone either way, with its child and its group."""
        backends = await connections(subject, 2)
        count = rounds(50)
        leases = await start(subject.backend, *(item(f"a{n}") for n in range(count)))

        async def race(n: int) -> None:
            outcome, _ = await asyncio.gather(
                settle_one(backends[0], succeed(leases[n], item(f"c{n}"))), backends[1].delete([f"a{n}"])
            )
            assert outcome.verb == "applied" or outcome.loss == "not_found"
            assert await statuses(subject.backend, f"a{n}", f"c{n}") == [None, None]
            assert list(await subject.backend.group([f"a{n}"])) == [None]

        await run_rounds(count, race)
        assert await claim_ids(subject.backend) == []
        await consistent(subject.backend)

    @needs("operating")
    async def test_two_operators_requeue_one_item(self, subject: Subject) -> None:
        """One of them changes it, and the group opens once."""
        backends = await connections(subject, 4)
        count = rounds(40)
        leases = await start(subject.backend, *(item(f"a{n}") for n in range(count)))
        await apply(subject.backend, *(die(lease) for lease in leases))

        async def race(n: int) -> list[Changed]:
            return await asyncio.gather(*(backend.requeue([f"a{n}"]) for backend in backends))

        for changed in await run_rounds(count, race):
            assert sum(len(one.items) for one in changed) == 1
        assert await open_members(subject.backend, "a0") == 1
        assert len(await claim_ids(subject.backend)) == count
        await consistent(subject.backend)

    @needs("operating")
    async def test_operators_and_claims_race_for_the_same_items(self, subject: Subject) -> None:
        """Cancels, completions and claims all end, and each item is in one state."""
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
    async def test_a_cancelled_settle_can_be_repeated(self, subject: Subject) -> None:
        """The first call may or may not have happened. After the second it has happened once."""
        leases = await start(subject.backend, *(item(f"a{n}") for n in range(30)))
        for n, lease in enumerate(leases):
            settlement = succeed(lease, item(f"c{n}"))
            await cancel_after(settle(subject.backend, settlement), n % 6)
            assert (await settle_one(subject.backend, settlement)).verb == "applied"
        assert len(await claim_ids(subject.backend)) == 30
        await consistent(subject.backend)

    async def test_a_cancelled_submit_can_be_repeated(self, subject: Subject) -> None:
        """With a key the item is stored once, and the answer is the same."""
        for n in range(30):
            new = item(f"a{n}", key=f"k{n}")
            await cancel_after(submit(subject.backend, new), n % 6)
            assert only(await submit(subject.backend, new)).id == f"a{n}"
        assert len(await claim_ids(subject.backend)) == 30
        await consistent(subject.backend)

    async def test_leases_of_a_cancelled_claim_are_found(self, subject: Subject) -> None:
        """`unknown_leases` returns them, so that no item is lost."""
        backend = subject.backend
        await submit(backend, *(item(f"a{n}") for n in range(30)))
        found: dict[str, Lease] = {}
        for n in range(30):
            await cancel_after(claim(backend, 1), n % 6)
            for lease in await backend.unknown_leases("w", [one.token for one in found.values()]):
                found[lease.id] = lease
        for lease in [*await claim(backend), *await backend.unknown_leases("w", [])]:
            found[lease.id] = lease
        assert len(found) == 30
        await apply(backend, *(succeed(lease) for lease in found.values()))
        await consistent(backend)


async def cancel_after(call: Awaitable[object], iterations: int) -> None:
    """Start a call and cancel it after that many iterations of the event loop. Return when it has ended."""
    task = asyncio.ensure_future(call)
    for _ in range(iterations):
        await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait([task])
    if not task.cancelled():
        task.result()
