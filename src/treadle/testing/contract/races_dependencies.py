"""Races of settlements and submissions that share dependents and groups, on several connections.

The outcome must be that of some sequential order of the calls.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TypeAlias

from treadle.item import Lease, Rejected, Settled, Submission, Submitted

from .build import (
    apply,
    claim,
    claim_ids,
    connections,
    dependent,
    die,
    exists,
    item,
    only,
    start,
    submit,
    submit_each,
    succeed,
    verdicts,
)
from .check import consistent
from .races import ended_groups, released_items, rounds, run_rounds
from .subject import Subject, needs

Answers: TypeAlias = Sequence[tuple[Submitted, ...] | Rejected]


class DependencyRaceCases:
    async def test_eight_prerequisites_that_succeed_at_once_release_once(self, subject: Subject) -> None:
        """The last of the eight settlements releases the dependent."""
        backends = await connections(subject, 8)
        count = rounds(200)
        names = [[f"p{n}-{k}" for k in range(8)] for n in range(count)]
        leases = await start(subject.backend, *(item(name) for row in names for name in row))
        await submit(subject.backend, *(dependent(*row, id=f"g{n}") for n, row in enumerate(names)))

        async def race(n: int) -> list[Settled]:
            row = leases[8 * n : 8 * n + 8]
            return await asyncio.gather(*(apply(backends[k], succeed(lease)) for k, lease in enumerate(row)))

        for n, settled in enumerate(await run_rounds(count, race)):
            assert released_items([one.effects for one in settled]) == [f"g{n}"]
        ready = await claim_ids(subject.backend, count + 1)
        assert sorted(ready) == sorted(f"g{n}" for n in range(count))
        await consistent(subject.backend)

    async def test_eight_prerequisites_that_end_at_once_doom_and_release_once(self, subject: Subject) -> None:
        """Each end is counted once: a dependent of all is doomed, a dependent of four is released."""
        backends = await connections(subject, 8)
        count = rounds(50)
        names = [[f"p{n}-{k}" for k in range(8)] for n in range(count)]
        leases = await start(subject.backend, *(item(name) for row in names for name in row))
        await submit(subject.backend, *(dependent(*row, id=f"all{n}") for n, row in enumerate(names)))
        await submit(
            subject.backend, *(dependent(*row, id=f"four{n}", need=4) for n, row in enumerate(names))
        )

        async def race(n: int) -> list[Settled]:
            row = leases[8 * n : 8 * n + 8]
            return await asyncio.gather(
                *(apply(backends[k], (succeed if k % 2 else die)(lease)) for k, lease in enumerate(row))
            )

        for n, settled in enumerate(await run_rounds(count, race)):
            assert released_items([one.effects for one in settled]) == [f"four{n}"]
            assert sum(one.effects.doomed for one in settled) == 1
        assert len(await verdicts(subject.backend)) == count
        await consistent(subject.backend)

    async def test_eight_members_that_end_at_once_end_their_group_once(self, subject: Subject) -> None:
        """The last of the eight settlements ends the group."""
        backends = await connections(subject, 8)
        count = rounds(50)
        roots = await start(subject.backend, *(item(f"r{n}") for n in range(count)))
        await apply(
            subject.backend,
            *(succeed(lease, *(item(f"{lease.id}-{k}") for k in range(8))) for lease in roots),
        )
        leases: dict[str, list[Lease]] = {}
        for lease in await claim(subject.backend, 8 * count):
            leases.setdefault(lease.group_id, []).append(lease)

        async def race(n: int) -> list[Settled]:
            row = leases[f"r{n}"]
            return await asyncio.gather(*(apply(backends[k], succeed(lease)) for k, lease in enumerate(row)))

        for n, settled in enumerate(await run_rounds(count, race)):
            assert ended_groups([one.effects for one in settled]) == [f"r{n}"]
        await consistent(subject.backend)

    async def test_a_group_does_not_end_while_another_member_queues_children(self, subject: Subject) -> None:
        """The group does not end between the two."""
        backends = await connections(subject, 2)
        count = rounds(100)
        roots = await start(subject.backend, *(item(f"r{n}") for n in range(count)))
        pairs = [succeed(lease, item(f"{lease.id}-a"), item(f"{lease.id}-b")) for lease in roots]
        await apply(subject.backend, *pairs)
        leases = {lease.id: lease for lease in await claim(subject.backend, 2 * count)}

        async def race(n: int) -> Sequence[Settled]:
            more = succeed(leases[f"r{n}-a"], item(f"r{n}-c"))
            return await asyncio.gather(
                apply(backends[0], more), apply(backends[1], succeed(leases[f"r{n}-b"]))
            )

        for settled in await run_rounds(count, race):
            assert ended_groups([one.effects for one in settled]) == []
        last = await claim(subject.backend, count)
        ended = await apply(subject.backend, *(succeed(lease) for lease in last))
        assert sorted(ended_groups([ended.effects])) == sorted(f"r{n}" for n in range(count))
        await consistent(subject.backend)

    async def test_settle_calls_with_shared_dependents_do_not_deadlock(self, subject: Subject) -> None:
        """Whole batches at once, in opposite orders: each dependent is released once."""
        backends = await connections(subject, 4)
        leases = await start(subject.backend, *(item(f"p{n}") for n in range(80)))
        names = [lease.id for lease in leases]
        await submit(subject.backend, *(dependent(*names[n::20], id=f"g{n}") for n in range(20)))
        parts = [leases[:20], leases[39:19:-1], leases[40:60], leases[:59:-1]]
        settled = await asyncio.gather(
            *(apply(backends[k], *(succeed(lease) for lease in part)) for k, part in enumerate(parts))
        )
        assert sorted(released_items([one.effects for one in settled])) == sorted(f"g{n}" for n in range(20))
        await consistent(subject.backend)


class SubmitRaceCases:
    async def test_a_dependent_is_submitted_while_its_prerequisite_ends(self, subject: Subject) -> None:
        """200 races: the dependent is never left blocked and never released twice."""
        backends = await connections(subject, 4)
        count = rounds(200)
        leases = await start(subject.backend, *(item(f"p{n}") for n in range(count)))

        async def race(n: int) -> None:
            new = dependent(f"p{n}", id=f"g{n}")
            settled, answer = await asyncio.gather(
                apply(backends[n % 4], succeed(leases[n])), submit(backends[(n + 1) % 4], new)
            )
            is_released = released_items([settled.effects]) == [f"g{n}"]
            assert (answer[0].status == "blocked") == is_released

        await run_rounds(count, race)
        assert len(await claim_ids(subject.backend, 2 * count)) == count
        await consistent(subject.backend)

    async def test_a_child_is_queued_while_its_prerequisite_ends(self, subject: Subject) -> None:
        """A settlement queues the dependent."""
        backends = await connections(subject, 4)
        count = rounds(100)
        leases = await start(subject.backend, *(item(f"p{n}") for n in range(2 * count)))

        async def race(n: int) -> None:
            await asyncio.gather(
                apply(backends[n % 4], succeed(leases[2 * n])),
                apply(backends[(n + 1) % 4], succeed(leases[2 * n + 1], dependent(f"p{2 * n}", id=f"g{n}"))),
            )

        await run_rounds(count, race)
        assert len(await claim_ids(subject.backend, 2 * count)) == count
        await consistent(subject.backend)

    async def test_two_settlements_with_crossed_dependencies_do_not_deadlock(self, subject: Subject) -> None:
        """Each has a child that waits for the other's item."""
        backends = await connections(subject, 2)
        count = rounds(50)
        leases = await start(subject.backend, *(item(f"p{n}") for n in range(2 * count)))

        async def race(n: int) -> None:
            left, right = leases[2 * n : 2 * n + 2]
            await asyncio.gather(
                apply(backends[0], succeed(left, dependent(right.id, id=f"l{n}"))),
                apply(backends[1], succeed(right, dependent(left.id, id=f"r{n}"))),
            )

        await run_rounds(count, race)
        assert len(await claim_ids(subject.backend, 3 * count)) == 2 * count
        await consistent(subject.backend)

    async def test_a_prerequisite_and_its_dependent_are_submitted_at_once(self, subject: Subject) -> None:
        """In either order the dependency is counted."""
        backends = await connections(subject, 2)
        count = rounds(100)

        async def race(n: int) -> None:
            await asyncio.gather(
                submit(backends[0], item(f"p{n}")), submit(backends[1], dependent(f"p{n}", id=f"g{n}"))
            )

        await run_rounds(count, race)
        leases = await claim(subject.backend, 2 * count)
        assert sorted(lease.id for lease in leases) == sorted(f"p{n}" for n in range(count))
        settled = await apply(subject.backend, *(succeed(lease) for lease in leases))
        assert len(settled.effects.released) == count
        await consistent(subject.backend)

    @needs("batches")
    async def test_two_concurrent_submits_close_no_cycle(self, subject: Subject) -> None:
        """One of the two is refused, as if they came one after the other."""
        backends = await connections(subject, 2)

        async def race(n: int) -> Sequence[Answers]:
            a, b = f"a{n}", f"b{n}"
            return await asyncio.gather(
                submit_each(backends[0], dependent(b, id=a)), submit_each(backends[1], dependent(a, id=b))
            )

        for answers in await run_rounds(rounds(50), race):
            assert sum(isinstance(answer[0], Rejected) for answer in answers) == 1
        await consistent(subject.backend)

    async def test_one_id_submitted_concurrently_is_stored_once(self, subject: Subject) -> None:
        """Exactly one is stored."""
        backends = await connections(subject, 4)
        answers = await asyncio.gather(*(submit_each(backends[n % 4], item("a")) for n in range(20)))
        assert sum(not isinstance(only(answer), Rejected) for answer in answers) == 1
        assert await claim_ids(subject.backend) == ["a"]
        await consistent(subject.backend)

    @needs("batches")
    async def test_overlapping_submissions_are_stored_whole_or_not_at_all(self, subject: Subject) -> None:
        """They name the same ids in opposite orders and do not deadlock."""
        backends = await connections(subject, 4)

        async def race(n: int) -> Sequence[Answers]:
            names = [f"{n}-{k}" for k in range(4)]
            orders = [names, names[::-1], names[:2], names[3:1:-1]]
            return await asyncio.gather(
                *(
                    backend.submit([Submission(tuple(item(name) for name in order))])
                    for backend, order in zip(backends, orders, strict=True)
                )
            )

        for n, answers in enumerate(await run_rounds(rounds(25), race)):
            accepted = [one for answer in answers for one in answer if not isinstance(one, Rejected)]
            stored = [one.id for answer in accepted for one in answer]
            assert len(stored) == len(set(stored))
            there = [name for name in (f"{n}-{k}" for k in range(4)) if await exists(subject.backend, name)]
            assert sorted(stored) == there
        await consistent(subject.backend)
