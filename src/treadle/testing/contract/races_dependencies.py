"""Races, with real concurrency: calls at once, on several connections. Every order of them is fine, as long
as it is an order."""

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
    die,
    exists,
    gate,
    item,
    only,
    start,
    submit,
    submit_each,
    succeed,
    verdicts,
)
from .check import consistent
from .races import ROUNDS, closed, released, rounds
from .subject import Subject, needs

Answers: TypeAlias = Sequence[tuple[Submitted, ...] | Rejected]


class DependencyRaceCases:
    async def test_eight_prerequisites_finish_at_once(self, subject: Subject) -> None:
        """200 rounds: the dependent is released exactly once, by whichever was the last."""
        backends = await connections(subject, 8)
        names = [[f"p{n}-{k}" for k in range(8)] for n in range(ROUNDS)]
        leases = await start(subject.backend, *(item(name) for row in names for name in row))
        await submit(subject.backend, *(gate(*row, id=f"g{n}") for n, row in enumerate(names)))

        async def play(n: int) -> list[Settled]:
            row = leases[8 * n : 8 * n + 8]
            return await asyncio.gather(*(apply(backends[k], succeed(lease)) for k, lease in enumerate(row)))

        for n, settled in enumerate(await rounds(ROUNDS, play)):
            assert released([one.effects for one in settled]) == [f"g{n}"]
        ready = await claim_ids(subject.backend, ROUNDS + 1)
        assert sorted(ready) == sorted(f"g{n}" for n in range(ROUNDS))
        await consistent(subject.backend)

    async def test_eight_prerequisites_fail_at_once(self, subject: Subject) -> None:
        """The same for doom, and for a threshold in the middle: counted once each, released once."""
        backends = await connections(subject, 8)
        count = 50
        names = [[f"p{n}-{k}" for k in range(8)] for n in range(count)]
        leases = await start(subject.backend, *(item(name) for row in names for name in row))
        await submit(subject.backend, *(gate(*row, id=f"all{n}") for n, row in enumerate(names)))
        await submit(subject.backend, *(gate(*row, id=f"four{n}", need=4) for n, row in enumerate(names)))

        async def play(n: int) -> list[Settled]:
            row = leases[8 * n : 8 * n + 8]
            return await asyncio.gather(
                *(apply(backends[k], (succeed if k % 2 else die)(lease)) for k, lease in enumerate(row))
            )

        for n, settled in enumerate(await rounds(count, play)):
            assert released([one.effects for one in settled]) == [f"four{n}"]
            assert sum(one.effects.doomed for one in settled) == 1
        assert len(await verdicts(subject.backend)) == count
        await consistent(subject.backend)

    async def test_eight_members_finish_at_once(self, subject: Subject) -> None:
        """The group ends exactly once, by whichever was the last."""
        backends = await connections(subject, 8)
        count = 50
        roots = await start(subject.backend, *(item(f"r{n}") for n in range(count)))
        await apply(
            subject.backend,
            *(succeed(lease, *(item(f"{lease.id}-{k}") for k in range(8))) for lease in roots),
        )
        leases: dict[str, list[Lease]] = {}
        for lease in await claim(subject.backend, 8 * count):
            leases.setdefault(lease.group_id, []).append(lease)

        async def play(n: int) -> list[Settled]:
            row = leases[f"r{n}"]
            return await asyncio.gather(*(apply(backends[k], succeed(lease)) for k, lease in enumerate(row)))

        for n, settled in enumerate(await rounds(count, play)):
            assert closed([one.effects for one in settled]) == [f"r{n}"]
        await consistent(subject.backend)

    async def test_a_member_ends_while_another_queues_more(self, subject: Subject) -> None:
        """The group does not end between the two."""
        backends = await connections(subject, 2)
        count = 100
        roots = await start(subject.backend, *(item(f"r{n}") for n in range(count)))
        pairs = [succeed(lease, item(f"{lease.id}-a"), item(f"{lease.id}-b")) for lease in roots]
        await apply(subject.backend, *pairs)
        leases = {lease.id: lease for lease in await claim(subject.backend, 2 * count)}

        async def play(n: int) -> Sequence[Settled]:
            more = succeed(leases[f"r{n}-a"], item(f"r{n}-c"))
            return await asyncio.gather(
                apply(backends[0], more), apply(backends[1], succeed(leases[f"r{n}-b"]))
            )

        for settled in await rounds(count, play):
            assert closed([one.effects for one in settled]) == []
        last = await claim(subject.backend, count)
        ended = await apply(subject.backend, *(succeed(lease) for lease in last))
        assert sorted(closed([ended.effects])) == sorted(f"r{n}" for n in range(count))
        await consistent(subject.backend)

    async def test_batches_that_meet_in_the_same_gates(self, subject: Subject) -> None:
        """Whole batches at once, in opposite orders: no deadlock, each gate released once."""
        backends = await connections(subject, 4)
        leases = await start(subject.backend, *(item(f"p{n}") for n in range(80)))
        names = [lease.id for lease in leases]
        await submit(subject.backend, *(gate(*names[n::20], id=f"g{n}") for n in range(20)))
        parts = [leases[:20], leases[39:19:-1], leases[40:60], leases[:59:-1]]
        settled = await asyncio.gather(
            *(apply(backends[k], *(succeed(lease) for lease in part)) for k, part in enumerate(parts))
        )
        assert sorted(released([one.effects for one in settled])) == sorted(f"g{n}" for n in range(20))
        await consistent(subject.backend)


class SubmitRaceCases:
    async def test_a_dependent_is_submitted_while_its_prerequisite_ends(self, subject: Subject) -> None:
        """200 races: never stranded, never released twice."""
        backends = await connections(subject, 4)
        leases = await start(subject.backend, *(item(f"p{n}") for n in range(ROUNDS)))

        async def play(n: int) -> None:
            dependent = gate(f"p{n}", id=f"g{n}")
            settled, answer = await asyncio.gather(
                apply(backends[n % 4], succeed(leases[n])), submit(backends[(n + 1) % 4], dependent)
            )
            told = released([settled.effects]) == [f"g{n}"]
            assert (answer[0].status == "blocked") == told

        await rounds(ROUNDS, play)
        assert len(await claim_ids(subject.backend, 2 * ROUNDS)) == ROUNDS
        await consistent(subject.backend)

    async def test_a_child_waits_for_what_ends_meanwhile(self, subject: Subject) -> None:
        """The same when a settlement queues the dependent."""
        backends = await connections(subject, 4)
        count = 100
        leases = await start(subject.backend, *(item(f"p{n}") for n in range(2 * count)))

        async def play(n: int) -> None:
            await asyncio.gather(
                apply(backends[n % 4], succeed(leases[2 * n])),
                apply(backends[(n + 1) % 4], succeed(leases[2 * n + 1], gate(f"p{2 * n}", id=f"g{n}"))),
            )

        await rounds(count, play)
        assert len(await claim_ids(subject.backend, 2 * count)) == count
        await consistent(subject.backend)

    async def test_each_waits_for_the_end_of_the_other(self, subject: Subject) -> None:
        """Two settlements at once, each with a child that waits for the other's item: no deadlock."""
        backends = await connections(subject, 2)
        count = 50
        leases = await start(subject.backend, *(item(f"p{n}") for n in range(2 * count)))

        async def play(n: int) -> None:
            left, right = leases[2 * n : 2 * n + 2]
            await asyncio.gather(
                apply(backends[0], succeed(left, gate(right.id, id=f"l{n}"))),
                apply(backends[1], succeed(right, gate(left.id, id=f"r{n}"))),
            )

        await rounds(count, play)
        assert len(await claim_ids(subject.backend, 3 * count)) == 2 * count
        await consistent(subject.backend)

    async def test_a_prerequisite_comes_while_it_is_being_named(self, subject: Subject) -> None:
        """Submitted at once with its dependent: whoever is first, the edge counts."""
        backends = await connections(subject, 2)
        count = 100

        async def play(n: int) -> None:
            await asyncio.gather(
                submit(backends[0], item(f"p{n}")), submit(backends[1], gate(f"p{n}", id=f"g{n}"))
            )

        await rounds(count, play)
        leases = await claim(subject.backend, 2 * count)
        assert sorted(lease.id for lease in leases) == sorted(f"p{n}" for n in range(count))
        settled = await apply(subject.backend, *(succeed(lease) for lease in leases))
        assert len(settled.effects.released) == count
        await consistent(subject.backend)

    @needs("batches")
    async def test_a_cycle_is_closed_by_two_at_once(self, subject: Subject) -> None:
        """As if one after the other: the second is refused, whichever it is."""
        backends = await connections(subject, 2)

        async def play(n: int) -> Sequence[Answers]:
            a, b = f"a{n}", f"b{n}"
            return await asyncio.gather(
                submit_each(backends[0], gate(b, id=a)), submit_each(backends[1], gate(a, id=b))
            )

        for answers in await rounds(50, play):
            assert sum(isinstance(answer[0], Rejected) for answer in answers) == 1
        await consistent(subject.backend)

    async def test_one_id_is_submitted_by_many_at_once(self, subject: Subject) -> None:
        """Exactly one is stored."""
        backends = await connections(subject, 4)
        answers = await asyncio.gather(*(submit_each(backends[n % 4], item("a")) for n in range(20)))
        assert sum(not isinstance(only(answer), Rejected) for answer in answers) == 1
        assert await claim_ids(subject.backend) == ["a"]
        await consistent(subject.backend)

    @needs("batches")
    async def test_overlapping_submissions_in_opposite_orders(self, subject: Subject) -> None:
        """Each is stored whole or not at all: no deadlock, no half."""
        backends = await connections(subject, 4)

        async def play(n: int) -> Sequence[Answers]:
            names = [f"{n}-{k}" for k in range(4)]
            orders = [names, names[::-1], names[:2], names[3:1:-1]]
            return await asyncio.gather(
                *(
                    backend.submit([Submission(tuple(item(name) for name in order))])
                    for backend, order in zip(backends, orders, strict=True)
                )
            )

        for n, answers in enumerate(await rounds(25, play)):
            accepted = [one for answer in answers for one in answer if not isinstance(one, Rejected)]
            stored = [one.id for answer in accepted for one in answer]
            assert len(stored) == len(set(stored))
            there = [name for name in (f"{n}-{k}" for k in range(4)) if await exists(subject.backend, name)]
            assert sorted(stored) == there
        await consistent(subject.backend)
