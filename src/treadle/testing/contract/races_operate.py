"""Races between operators, submissions and settlements."""

from __future__ import annotations

import asyncio

from treadle.errors import ReferencedError
from treadle.item import Changed, Filter, Outcome, Rejected, Submission

from .build import (
    apply,
    claim,
    claim_ids,
    connections,
    dependent,
    die,
    end,
    exists,
    item,
    items,
    settle_one,
    start,
    state,
    status,
    statuses,
    submit,
    submit_one,
    succeed,
)
from .check import consistent
from .races import rounds, run_rounds
from .subject import Subject, needs


class OperatorRaceCases:
    @needs("operating")
    async def test_concurrent_requeues_by_filter_requeue_each_item_once(self, subject: Subject) -> None:
        """Each dead item is requeued by one of them."""
        backends = await connections(subject, 4)
        await end(subject.backend, *items(60), how=die)
        changed: list[Changed] = await asyncio.gather(
            *(backend.requeue(Filter(status=("dead",)), limit=10) for backend in backends * 2)
        )
        names = [one.id for some in changed for one in some.items]
        assert len(names) == len(set(names))
        assert len(await claim_ids(subject.backend)) == len(names)
        await consistent(subject.backend)

    @needs("fencing")
    async def test_a_child_settles_while_its_parent_is_cancelled(self, subject: Subject) -> None:
        """In either order no descendant is left open."""
        backends = await connections(subject, 2)
        count = rounds(60)
        roots = await start(subject.backend, *(item(f"r{n}") for n in range(count)))
        await apply(subject.backend, *(succeed(lease, item(f"{lease.id}-a")) for lease in roots))
        leases = {lease.id: lease for lease in await claim(subject.backend)}

        async def race(n: int) -> None:
            more = succeed(leases[f"r{n}-a"], item(f"r{n}-b"), item(f"r{n}-c", delay=100))
            answers: tuple[Outcome, Changed] = await asyncio.gather(
                settle_one(backends[0], more), backends[1].cancel([f"r{n}"])
            )
            found = await statuses(subject.backend, f"r{n}-a", f"r{n}-b", f"r{n}-c")
            if answers[0].verb == "applied":
                assert found == ["success", "cancelled", "cancelled"]
            else:
                assert found == ["cancelled", None, None]

        await run_rounds(count, race)
        assert await claim_ids(subject.backend) == []
        await consistent(subject.backend)

    @needs("operating")
    async def test_an_item_is_completed_while_it_is_released(self, subject: Subject) -> None:
        """It ends once and is not claimed afterwards."""
        backends = await connections(subject, 2)
        count = rounds(50)
        leases = await start(subject.backend, *(item(f"p{n}") for n in range(count)))
        await submit(subject.backend, *(dependent(f"p{n}", id=f"g{n}") for n in range(count)))

        async def race(n: int) -> None:
            await asyncio.gather(
                apply(backends[0], succeed(leases[n])), backends[1].complete(f"g{n}", b"hand")
            )
            assert await status(subject.backend, f"g{n}") == "success"

        await run_rounds(count, race)
        assert await claim_ids(subject.backend) == []
        await consistent(subject.backend)

    async def test_an_item_is_cancelled_while_it_is_released(self, subject: Subject) -> None:
        """It ends once and is not claimed afterwards."""
        backends = await connections(subject, 2)
        count = rounds(50)
        leases = await start(subject.backend, *(item(f"p{n}") for n in range(count)))
        await submit(subject.backend, *(dependent(f"p{n}", id=f"g{n}") for n in range(count)))

        async def race(n: int) -> None:
            await asyncio.gather(apply(backends[0], succeed(leases[n])), backends[1].cancel([f"g{n}"]))
            assert await status(subject.backend, f"g{n}") == "cancelled"

        await run_rounds(count, race)
        assert await claim_ids(subject.backend) == []
        await consistent(subject.backend)

    @needs("operating")
    async def test_an_item_is_pruned_while_a_dependent_is_submitted(self, subject: Subject) -> None:
        """It is kept and counted, or it is gone and counts as not yet submitted."""
        backends = await connections(subject, 2)
        count = rounds(40)
        await end(subject.backend, *(item(f"p{n}", keep=10) for n in range(count)))
        await subject.advance(20)

        async def race(n: int) -> None:
            answer, _ = await asyncio.gather(
                submit_one(backends[0], dependent(f"p{n}", id=f"g{n}")), backends[1].prune(5)
            )
            kept = await exists(subject.backend, f"p{n}")
            found = await state(subject.backend, f"g{n}")
            assert found.status == answer.status == ("ready" if kept else "blocked")
            assert found.waiting_for == (() if kept else (f"p{n}",))

        await run_rounds(count, race)
        await consistent(subject.backend)

    @needs("operating")
    async def test_an_item_is_deleted_while_a_dependent_is_submitted(self, subject: Subject) -> None:
        """The delete is refused, or the dependent waits for an id that is not yet submitted."""
        backends = await connections(subject, 2)
        count = rounds(40)
        await submit(subject.backend, *(item(f"p{n}") for n in range(count)))

        async def delete(n: int) -> bool:
            try:
                return bool((await backends[1].delete([f"p{n}"])).items)
            except ReferencedError:
                return False

        async def race(n: int) -> None:
            _, deleted = await asyncio.gather(
                submit_one(backends[0], dependent(f"p{n}", id=f"g{n}")), delete(n)
            )
            assert await exists(subject.backend, f"p{n}") != deleted
            found = await state(subject.backend, f"g{n}")
            assert (found.status, found.waiting_for) == ("blocked", (f"p{n}",) if deleted else ())

        await run_rounds(count, race)
        await consistent(subject.backend)

    async def test_a_key_is_submitted_while_its_group_ends(self, subject: Subject) -> None:
        """Exactly one of two: the existing item is returned, or the new item is stored."""
        backends = await connections(subject, 2)
        count = rounds(60)
        leases = await start(subject.backend, *(item(f"a{n}", key=f"k{n}") for n in range(count)))

        async def race(n: int) -> None:
            _, answer = await asyncio.gather(
                apply(backends[0], succeed(leases[n])),
                submit_one(backends[1], item(f"b{n}", key=f"k{n}")),
            )
            assert answer.id == (f"a{n}" if answer.existing else f"b{n}")
            assert await exists(subject.backend, f"b{n}") != answer.existing

        await run_rounds(count, race)
        await consistent(subject.backend)

    @needs("operating")
    async def test_a_key_is_submitted_while_its_item_is_deleted(self, subject: Subject) -> None:
        """The existing item is returned, or the new item is stored."""
        backends = await connections(subject, 2)
        count = rounds(40)
        await submit(subject.backend, *(item(f"a{n}", key=f"k{n}") for n in range(count)))

        async def race(n: int) -> None:
            _, answer = await asyncio.gather(
                backends[0].delete([f"a{n}"]), submit_one(backends[1], item(f"b{n}", key=f"k{n}"))
            )
            assert await statuses(subject.backend, f"a{n}", f"b{n}") == [
                None,
                None if answer.existing else "ready",
            ]

        await run_rounds(count, race)
        await consistent(subject.backend)

    @needs("operating")
    async def test_an_id_is_submitted_while_its_item_is_deleted(self, subject: Subject) -> None:
        """The id is taken, or the new item is stored whole: it can be read, and claimed once."""
        backends = await connections(subject, 4)
        count = rounds(100)
        await submit(subject.backend, *(item(f"a{n}") for n in range(count)))

        async def race(n: int) -> bool:
            new = Submission((item(f"a{n}", input=b"new"), item(f"b{n}")))
            _, (answer,) = await asyncio.gather(
                backends[n % 2].delete([f"a{n}"]), backends[2 + n % 2].submit([new])
            )
            return not isinstance(answer, Rejected)

        stored = [n for n, accepted in enumerate(await run_rounds(count, race)) if accepted]
        found = await claim(subject.backend, 3 * count)
        assert sorted(lease.id for lease in found) == sorted(f"{x}{n}" for n in stored for x in "ab")
        assert {lease.input for lease in found if lease.id[0] == "a"} <= {b"new"}
        await consistent(subject.backend)

    @needs("operating")
    async def test_an_item_is_requeued_while_it_is_deleted(self, subject: Subject) -> None:
        """It exists and can be claimed, or it is gone and cannot."""
        backends = await connections(subject, 4)
        count = rounds(100)
        leases = await start(subject.backend, *(item(f"a{n}") for n in range(count)))
        await apply(subject.backend, *(die(lease) for lease in leases))

        async def race(n: int) -> None:
            await asyncio.gather(backends[n % 2].delete([f"a{n}"]), backends[2 + n % 2].requeue([f"a{n}"]))

        await run_rounds(count, race)
        found = await subject.backend.get([f"a{n}" for n in range(count)])
        assert sorted(await claim_ids(subject.backend)) == sorted(one.id for one in found if one is not None)
        await consistent(subject.backend)

    @needs("operating")
    async def test_a_member_is_requeued_while_its_group_ends(self, subject: Subject) -> None:
        """The counter of the group stays exact, and the group ends with its last member."""
        backends = await connections(subject, 2)
        count = rounds(40)
        roots = await start(subject.backend, *(item(f"r{n}") for n in range(count)))
        await apply(
            subject.backend,
            *(succeed(lease, item(f"{lease.id}-a"), item(f"{lease.id}-b")) for lease in roots),
        )
        leases = {lease.id: lease for lease in await claim(subject.backend)}
        await apply(subject.backend, *(die(leases[f"r{n}-a"]) for n in range(count)))

        async def race(n: int) -> int:
            settled, _ = await asyncio.gather(
                apply(backends[0], succeed(leases[f"r{n}-b"])), backends[1].requeue([f"r{n}-a"])
            )
            return len(settled.effects.ended_groups)

        closed = sum(await run_rounds(count, race))
        await consistent(subject.backend)
        again = await claim(subject.backend)
        settled = await apply(subject.backend, *(succeed(lease) for lease in again))
        assert (len(settled.effects.ended_groups), closed <= count) == (count, True)
        await consistent(subject.backend)
