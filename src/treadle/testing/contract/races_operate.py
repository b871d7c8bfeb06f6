"""Races among many: claims, burials, promotions and removals at once."""

from __future__ import annotations

import asyncio

from treadle.errors import ReferencedError
from treadle.item import Changed, Filter, Outcome, Rejected, Submission

from .build import (
    apply,
    claim,
    claim_ids,
    connections,
    die,
    end,
    exists,
    gate,
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
from .races import rounds
from .subject import Subject, needs


class OperatorRaceCases:
    @needs("operating")
    async def test_many_requeue_by_filter(self, subject: Subject) -> None:
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
    async def test_a_child_settles_while_its_family_is_cancelled(self, subject: Subject) -> None:
        """Whoever is first: no descendant is left open."""
        backends = await connections(subject, 2)
        count = 60
        roots = await start(subject.backend, *(item(f"r{n}") for n in range(count)))
        await apply(subject.backend, *(succeed(lease, item(f"{lease.id}-a")) for lease in roots))
        leases = {lease.id: lease for lease in await claim(subject.backend)}

        async def play(n: int) -> None:
            more = succeed(leases[f"r{n}-a"], item(f"r{n}-b"), item(f"r{n}-c", delay=100))
            answers: tuple[Outcome, Changed] = await asyncio.gather(
                settle_one(backends[0], more), backends[1].cancel([f"r{n}"])
            )
            found = await statuses(subject.backend, f"r{n}-a", f"r{n}-b", f"r{n}-c")
            if answers[0].verb == "applied":
                assert found == ["success", "cancelled", "cancelled"]
            else:
                assert found == ["cancelled", None, None]

        await rounds(count, play)
        assert await claim_ids(subject.backend) == []
        await consistent(subject.backend)

    @needs("operating")
    async def test_a_gate_is_completed_while_it_is_released(self, subject: Subject) -> None:
        """It ends once, and does not come back."""
        backends = await connections(subject, 2)
        count = 50
        leases = await start(subject.backend, *(item(f"p{n}") for n in range(count)))
        await submit(subject.backend, *(gate(f"p{n}", id=f"g{n}") for n in range(count)))

        async def play(n: int) -> None:
            await asyncio.gather(
                apply(backends[0], succeed(leases[n])), backends[1].complete(f"g{n}", b"hand")
            )
            assert await status(subject.backend, f"g{n}") == "success"

        await rounds(count, play)
        assert await claim_ids(subject.backend) == []
        await consistent(subject.backend)

    async def test_a_gate_is_cancelled_while_it_is_released(self, subject: Subject) -> None:
        """The same for a cancellation."""
        backends = await connections(subject, 2)
        count = 50
        leases = await start(subject.backend, *(item(f"p{n}") for n in range(count)))
        await submit(subject.backend, *(gate(f"p{n}", id=f"g{n}") for n in range(count)))

        async def play(n: int) -> None:
            await asyncio.gather(apply(backends[0], succeed(leases[n])), backends[1].cancel([f"g{n}"]))
            assert await status(subject.backend, f"g{n}") == "cancelled"

        await rounds(count, play)
        assert await claim_ids(subject.backend) == []
        await consistent(subject.backend)

    @needs("operating")
    async def test_pruned_while_somebody_begins_to_wait(self, subject: Subject) -> None:
        """Either it is kept and counted, or it is gone and not yet submitted: nothing between."""
        backends = await connections(subject, 2)
        count = 40
        await end(subject.backend, *(item(f"p{n}", keep=10) for n in range(count)))
        await subject.advance(20)

        async def play(n: int) -> None:
            answer, _ = await asyncio.gather(
                submit_one(backends[0], gate(f"p{n}", id=f"g{n}")), backends[1].prune(5)
            )
            kept = await exists(subject.backend, f"p{n}")
            found = await state(subject.backend, f"g{n}")
            assert found.status == answer.status == ("ready" if kept else "blocked")
            assert found.waiting_for == (() if kept else (f"p{n}",))

        await rounds(count, play)
        await consistent(subject.backend)

    @needs("operating")
    async def test_deleted_while_somebody_begins_to_wait(self, subject: Subject) -> None:
        """Either the delete is refused, or the dependent waits for an id not yet submitted."""
        backends = await connections(subject, 2)
        count = 40
        await submit(subject.backend, *(item(f"p{n}") for n in range(count)))

        async def delete(n: int) -> bool:
            try:
                return bool((await backends[1].delete([f"p{n}"])).items)
            except ReferencedError:
                return False

        async def play(n: int) -> None:
            _, deleted = await asyncio.gather(submit_one(backends[0], gate(f"p{n}", id=f"g{n}")), delete(n))
            assert await exists(subject.backend, f"p{n}") != deleted
            found = await state(subject.backend, f"g{n}")
            assert (found.status, found.waiting_for) == ("blocked", (f"p{n}",) if deleted else ())

        await rounds(count, play)
        await consistent(subject.backend)

    async def test_a_key_is_asked_for_while_its_group_ends(self, subject: Subject) -> None:
        """The old item answers, or the new one is stored: never both, never neither."""
        backends = await connections(subject, 2)
        count = 60
        leases = await start(subject.backend, *(item(f"a{n}", key=f"k{n}") for n in range(count)))

        async def play(n: int) -> None:
            _, answer = await asyncio.gather(
                apply(backends[0], succeed(leases[n])),
                submit_one(backends[1], item(f"b{n}", key=f"k{n}")),
            )
            assert answer.id == (f"a{n}" if answer.existing else f"b{n}")
            assert await exists(subject.backend, f"b{n}") != answer.existing

        await rounds(count, play)
        await consistent(subject.backend)

    @needs("operating")
    async def test_a_key_is_asked_for_while_it_is_deleted(self, subject: Subject) -> None:
        """An answer names an item that was there."""
        backends = await connections(subject, 2)
        count = 40
        await submit(subject.backend, *(item(f"a{n}", key=f"k{n}") for n in range(count)))

        async def play(n: int) -> None:
            _, answer = await asyncio.gather(
                backends[0].delete([f"a{n}"]), submit_one(backends[1], item(f"b{n}", key=f"k{n}"))
            )
            assert await statuses(subject.backend, f"a{n}", f"b{n}") == [
                None,
                None if answer.existing else "ready",
            ]

        await rounds(count, play)
        await consistent(subject.backend)

    @needs("operating")
    async def test_submitted_again_while_it_is_deleted(self, subject: Subject) -> None:
        """The id is taken, or it is free and the new item is whole: it can be read, and claimed once."""
        backends = await connections(subject, 4)
        count = 100
        await submit(subject.backend, *(item(f"a{n}") for n in range(count)))

        async def play(n: int) -> bool:
            new = Submission((item(f"a{n}", input=b"new"), item(f"b{n}")))
            _, (answer,) = await asyncio.gather(
                backends[n % 2].delete([f"a{n}"]), backends[2 + n % 2].submit([new])
            )
            return not isinstance(answer, Rejected)

        stored = [n for n, accepted in enumerate(await rounds(count, play)) if accepted]
        found = await claim(subject.backend, 3 * count)
        assert sorted(lease.id for lease in found) == sorted(f"{x}{n}" for n in stored for x in "ab")
        assert {lease.input for lease in found if lease.id[0] == "a"} <= {b"new"}
        await consistent(subject.backend)

    @needs("operating")
    async def test_requeued_while_it_is_deleted(self, subject: Subject) -> None:
        """It is there and can be claimed, or it is gone: nothing is left of it to be claimed then."""
        backends = await connections(subject, 4)
        count = 100
        leases = await start(subject.backend, *(item(f"a{n}") for n in range(count)))
        await apply(subject.backend, *(die(lease) for lease in leases))

        async def play(n: int) -> None:
            await asyncio.gather(backends[n % 2].delete([f"a{n}"]), backends[2 + n % 2].requeue([f"a{n}"]))

        await rounds(count, play)
        found = await subject.backend.get([f"a{n}" for n in range(count)])
        assert sorted(await claim_ids(subject.backend)) == sorted(one.id for one in found if one is not None)
        await consistent(subject.backend)

    @needs("operating")
    async def test_a_member_is_requeued_while_its_group_ends(self, subject: Subject) -> None:
        """Open or ended, the counter is the recount, and the group ends with its last member."""
        backends = await connections(subject, 2)
        count = 40
        roots = await start(subject.backend, *(item(f"r{n}") for n in range(count)))
        await apply(
            subject.backend,
            *(succeed(lease, item(f"{lease.id}-a"), item(f"{lease.id}-b")) for lease in roots),
        )
        leases = {lease.id: lease for lease in await claim(subject.backend)}
        await apply(subject.backend, *(die(leases[f"r{n}-a"]) for n in range(count)))

        async def play(n: int) -> int:
            settled, _ = await asyncio.gather(
                apply(backends[0], succeed(leases[f"r{n}-b"])), backends[1].requeue([f"r{n}-a"])
            )
            return len(settled.effects.closed)

        closed = sum(await rounds(count, play))
        await consistent(subject.backend)
        again = await claim(subject.backend)
        settled = await apply(subject.backend, *(succeed(lease) for lease in again))
        assert (len(settled.effects.closed), closed <= count) == (count, True)
        await consistent(subject.backend)
