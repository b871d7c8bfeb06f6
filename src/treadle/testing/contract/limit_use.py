"""Limits: how far they are used, by whom, and what a worker keeps of them."""

from __future__ import annotations

from typing import Any

from treadle.backend import Backend
from treadle.item import Heartbeat, Limit, PermitRequest
from treadle.item_facts import LimitHolder, LimitUse

from .build import LEASE, apply, beat, claim, item, items, near, only, submit, succeed
from .limits import at_the_start_of_a_window, every_algorithm, take_permits
from .subject import Subject, needs


async def use(backend: Backend, name: str) -> LimitUse | None:
    found = await backend.limits([name])
    return only(found) if found else None


class LimitUseCases:
    @needs("watching", "limits")
    @every_algorithm
    async def test_a_rate_limit_says_how_many_starts_count(self, subject: Subject, algorithm: Any) -> None:
        """And when the next one is allowed. It is left out once none counts."""
        await at_the_start_of_a_window(subject, 10_000)
        backend, limit = subject.backend, Limit("l", 4, 10_000, algorithm)
        assert await use(backend, "l") is None
        await take_permits(backend, limit, count=3)
        found = await use(backend, "l")
        assert found is not None
        assert (found.name, found.algorithm, found.limit, found.holders) == ("l", algorithm, 4, ())
        assert 2.9 < found.used <= 3
        assert found.retry_after == 0
        await take_permits(backend, limit, count=3)
        found = await use(backend, "l")
        assert found is not None
        reply = only(await backend.take_permits([PermitRequest((limit,), 0)]))
        assert 3.9 < found.used <= 4
        assert found.retry_after == near(reply.retry_after)
        assert found.retry_after > 1000
        await subject.advance(5000)
        half = await use(backend, "l")
        assert half is not None
        assert half.used < found.used or algorithm != "token_bucket"
        await subject.advance(25_000)
        assert await use(backend, "l") is None
        assert list(await backend.limits()) == []

    @needs("watching", "limits")
    async def test_a_limit_is_as_the_last_request_said(self, backend: Backend) -> None:
        """What was used before counts on."""
        await take_permits(backend, Limit("l", 4, 10_000, "fixed_window"), count=2)
        await take_permits(backend, Limit("l", 9, 10_000, "fixed_window"), count=1)
        assert await use(backend, "l") == LimitUse("l", "fixed_window", 3, 9)

    @needs("watching", "limits")
    async def test_slots_name_the_workers_that_hold_them(self, backend: Backend) -> None:
        """Those that are returned are not counted. A limit without any is left out."""
        slots = Limit("s", 10, algorithm="slots")
        await beat(backend, "a")
        await beat(backend, "b")
        await take_permits(backend, slots, count=3, worker="a")
        await take_permits(backend, slots, count=2, worker="b")
        found = await use(backend, "s")
        assert found is not None
        assert (found.algorithm, found.used, found.limit, found.retry_after) == ("slots", 5, None, 0)
        assert set(found.holders) == {LimitHolder("a", 3), LimitHolder("b", 2)}
        await backend.return_permits([PermitRequest((slots,), 1)], worker="a")
        await backend.remove_worker("b")
        assert await use(backend, "s") == LimitUse("s", "slots", 2, holders=(LimitHolder("a", 2),))
        await backend.return_permits([PermitRequest((slots,), 2)], worker="a")
        assert await use(backend, "s") is None

    @needs("watching", "limits", "strict")
    async def test_slots_name_the_items_whose_leases_hold_them(self, backend: Backend) -> None:
        """Not those that have ended: only their permits are still held."""
        slots = Limit("s", 10, algorithm="slots")
        await submit(backend, *(item(id) for id in ("x", "y", "z")))
        leases = await claim(backend)
        for lease in leases:
            await backend.take_permits([PermitRequest((slots,), 1, lease)], worker="w")
        await take_permits(backend, slots, worker="w")
        found = await use(backend, "s")
        assert found is not None
        holder = only(found.holders)
        assert (found.used, holder.worker, holder.count) == (4, "w", 4)
        assert sorted(holder.items) == ["x", "y", "z"]
        await apply(backend, succeed(leases[0]))
        found = await use(backend, "s")
        assert found is not None
        assert (found.used, sorted(only(found.holders).items)) == (4, ["y", "z"])

    @needs("watching", "limits")
    async def test_limits_are_found_by_name_or_in_order(self, backend: Backend) -> None:
        """Those named that are in use; or the first by name."""
        await beat(backend, "w")
        for name in ("c", "a", "d"):
            await take_permits(backend, Limit(name, 5, 10_000))
        await take_permits(backend, Limit("b", 5, algorithm="slots"), worker="w")
        await take_permits(backend, Limit("unused", 5, 10_000), count=0)
        assert [one.name for one in await backend.limits()] == ["a", "b", "c", "d"]
        assert [one.name for one in await backend.limits(count=2)] == ["a", "b"]
        assert {one.name for one in await backend.limits(["d", "none", "b", "unused"])} == {"b", "d"}
        assert sorted(one.name for one in await backend.limits(["b", "d", "b"])) == ["b", "d"]
        assert list(await backend.limits([])) == []

    @needs("watching", "limits")
    async def test_limits_of_one_name_and_two_algorithms_are_two(self, backend: Backend) -> None:
        """They count together only if they use the same algorithm."""
        await beat(backend, "w")
        await take_permits(backend, Limit("l", 5, 10_000, "fixed_window"), count=2)
        await take_permits(backend, Limit("l", 5, algorithm="slots"), count=3, worker="w")
        assert {one.algorithm: one.used for one in await backend.limits(["l"])} == {
            "fixed_window": 2,
            "slots": 3,
        }

    @needs("watching", "limits")
    async def test_a_hundred_holders_are_named(self, backend: Backend) -> None:
        """All are counted."""
        slots = Limit("s", 500, algorithm="slots")
        await submit(backend, *items(1))
        for n in range(105):
            await beat(backend, f"w{n}")
            await take_permits(backend, slots, worker=f"w{n}")
        found = await use(backend, "s")
        assert found is not None
        assert (found.used, len(found.holders)) == (105, 100)


class KeptPermitCases:
    """A store that has forgotten what it answered is told what a worker holds."""

    PAIR = Limit("pair", 2, algorithm="slots")
    TRIO = Limit("trio", 3, algorithm="slots")

    async def _count(self, backend: Backend, worker: str = "w") -> int:
        return (await backend.beat(Heartbeat(worker=worker, lease=LEASE))).permits

    @needs("limits")
    async def test_a_heartbeat_counts_the_permits_of_its_worker(self, backend: Backend) -> None:
        """Those of all limits together. Rates are not held."""
        await beat(backend, "w")
        await beat(backend, "other")
        assert await self._count(backend) == 0
        await take_permits(backend, self.PAIR, worker="w")
        await take_permits(backend, self.TRIO, count=2, worker="w")
        await take_permits(backend, self.PAIR, self.TRIO, worker="other")
        await take_permits(backend, Limit("rate", 9), worker="w")
        assert (await self._count(backend), await self._count(backend, "other")) == (3, 2)
        await backend.return_permits([PermitRequest((self.TRIO,))], worker="w")
        assert await self._count(backend) == 2

    @needs("limits")
    async def test_a_worker_keeps_the_permits_that_it_names(self, backend: Backend) -> None:
        """The others are free. Those of other workers stay."""
        await beat(backend, "w")
        await beat(backend, "other")
        await take_permits(backend, self.TRIO, count=2, worker="w")
        await take_permits(backend, self.TRIO, self.PAIR, worker="other")
        await take_permits(backend, self.PAIR, worker="w")
        assert await backend.keep_permits([PermitRequest((self.TRIO,), 1)], 3, worker="w") == 3
        assert (await self._count(backend), await self._count(backend, "other")) == (1, 2)
        assert await take_permits(backend, self.PAIR, count=2, worker="w") == 1
        assert await take_permits(backend, self.TRIO, count=3, worker="w") == 1

    @needs("limits")
    async def test_a_permit_that_the_store_has_lost_is_counted_again(self, backend: Backend) -> None:
        """The limit is not exceeded any further."""
        await beat(backend, "w")
        await take_permits(backend, self.TRIO, worker="w")
        assert await backend.keep_permits([PermitRequest((self.TRIO,), 2)], 1, worker="w") == 1
        assert await self._count(backend) == 2
        assert await take_permits(backend, self.TRIO, count=3, worker="w") == 1
        await backend.return_permits([PermitRequest((self.TRIO,), 3)], worker="w")
        assert await self._count(backend) == 0

    @needs("limits")
    async def test_nothing_changes_if_another_number_is_counted(self, backend: Backend) -> None:
        """The call came late: the worker has taken or returned permits since."""
        await beat(backend, "w")
        await take_permits(backend, self.PAIR, count=2, worker="w")
        assert await backend.keep_permits([], 1, worker="w") == 2
        assert await backend.keep_permits([PermitRequest((self.TRIO,))], 0, worker="unknown") == 0
        assert await self._count(backend) == 2
        assert await backend.keep_permits([], 2, worker="w") == 2
        assert await self._count(backend) == 0

    @needs("limits", "strict")
    async def test_permits_of_leases_are_kept_with_their_leases(self, backend: Backend) -> None:
        """The permit of a lease that is not named is free."""
        await submit(backend, *items(3))
        first, second, third = await claim(backend)
        kept, lost, new = (PermitRequest((self.PAIR,), 1, lease) for lease in (first, second, third))
        assert [reply.count for reply in await backend.take_permits([kept, lost], worker="w")] == [1, 1]
        assert await backend.keep_permits([kept], 2, worker="w") == 2
        assert only(await backend.take_permits([new], worker="w")).count == 1
        denied = only(await backend.take_permits([lost], worker="w"))
        assert (denied.count, {holder.id for holder in denied.holders}) == (0, {first.id, third.id})
        await backend.return_permits([kept, new], worker="w")
        assert await self._count(backend) == 0
