"""Claimed keys, and rate and concurrency limits that the fleet shares."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from treadle.backend import Backend
from treadle.item import Lease, Limit, PermitReply, PermitRequest

from .build import apply, beat, by_id, claim, connections, item, items, near, submit, succeed
from .subject import Subject, needs

ALGORITHMS = ("token_bucket", "fixed_window", "sliding_window")
every_algorithm = pytest.mark.parametrize("algorithm", ALGORITHMS)


async def take_permits(backend: Backend, *limits: Limit, count: int = 1, worker: str = "") -> int:
    return (await backend.take_permits([PermitRequest(limits, count)], worker=worker))[0].count


async def at_the_start_of_a_window(subject: Subject, window: float) -> None:
    """Advance to just after the start of a window that is aligned to the clock."""
    now = await subject.backend.now()
    await subject.advance(window - now % window + 1)


class ClaimedKeyCases:
    async def test_the_first_owner_gets_the_key(self, backend: Backend) -> None:
        """True for the first owner, also when it asks again. False for any other owner."""
        assert await backend.claim_key("k", "me", 100, tenant="default")
        assert await backend.claim_key("k", "me", 100, tenant="default")
        assert not await backend.claim_key("k", "you", 100, tenant="default")
        assert await backend.claim_key("other", "you", 100, tenant="default")
        assert [await backend.key_owner(key, tenant="default") for key in ("k", "other", "none")] == [
            "me",
            "you",
            None,
        ]
        assert await backend.key_owner("k", tenant="x") is None

    async def test_a_claimed_key_expires_after_its_ttl(self, subject: Subject) -> None:
        """`ttl` counts from the first claim. Claiming again does not extend it."""
        backend = subject.backend
        assert await backend.claim_key("k", "me", 100, tenant="default")
        await subject.advance(80)
        assert await backend.claim_key("k", "me", 100, tenant="default")
        assert not await backend.claim_key("k", "you", 100, tenant="default")
        await subject.advance(30)
        assert await backend.claim_key("k", "you", 100, tenant="default")
        assert not await backend.claim_key("k", "me", 100, tenant="default")

    async def test_fifty_concurrent_claims_give_the_key_to_one_owner(self, subject: Subject) -> None:
        """A key has one owner in the whole fleet."""
        backends = await connections(subject, 5)
        answers = await asyncio.gather(
            *(backends[n % 5].claim_key("k", f"o{n}", 100, tenant="default") for n in range(50))
        )
        assert sum(answers) == 1

    async def test_fifty_concurrent_claims_give_an_expired_key_to_one_owner(self, subject: Subject) -> None:
        """Another owner had it before."""
        await subject.backend.claim_key("k", "old", 10, tenant="default")
        await subject.advance(20)
        backends = await connections(subject, 5)
        answers = await asyncio.gather(
            *(backends[n % 5].claim_key("k", f"o{n}", 100, tenant="default") for n in range(50))
        )
        assert sum(answers) == 1


class RateLimitCases:
    @needs("limits")
    @every_algorithm
    async def test_at_most_limit_permits_per_window(self, subject: Subject, algorithm: Any) -> None:
        """`limit` starts per window. When none is left, `retry_after` says how long to wait."""
        await at_the_start_of_a_window(subject, 1000)
        limit = Limit("l", 10, 1000, algorithm)
        assert await take_permits(subject.backend, limit, count=4) == 4
        assert await take_permits(subject.backend, limit, count=10) == 6
        reply = (await subject.backend.take_permits([PermitRequest((limit,), 1)]))[0]
        assert reply.count == 0
        assert 0 < reply.retry_after <= 1110

    @needs("limits")
    @every_algorithm
    async def test_the_last_permit_says_when_the_next_one_is(self, subject: Subject, algorithm: Any) -> None:
        """No request has to be denied first. A request for no permit says the same, and takes none."""
        await at_the_start_of_a_window(subject, 1000)
        limit = Limit("l", 2, 1000, algorithm)
        requests = [PermitRequest((limit,), count) for count in (0, 1, 0, 1, 0)]
        replies = await subject.backend.take_permits(requests)
        assert [reply.count for reply in replies] == [0, 1, 0, 1, 0]
        assert [reply.retry_after > 0 for reply in replies] == [False, False, False, True, True]

    @needs("limits")
    @every_algorithm
    async def test_retry_after_is_accurate(self, subject: Subject, algorithm: Any) -> None:
        """After it one permit is given. Well before it none is."""
        await at_the_start_of_a_window(subject, 1000)
        limit = Limit("l", 4, 1000, algorithm)
        await take_permits(subject.backend, limit, count=4)
        wait = (await subject.backend.take_permits([PermitRequest((limit,))]))[0].retry_after
        assert wait > 20
        await subject.advance(wait - 20)
        assert await take_permits(subject.backend, limit) == 0
        await subject.advance(21)
        assert await take_permits(subject.backend, limit) == 1

    @needs("limits")
    @every_algorithm
    async def test_each_limit_name_is_counted_separately(self, backend: Backend, algorithm: Any) -> None:
        """A spent limit does not affect a limit of another name."""
        first, second = Limit("a", 1, 1000, algorithm), Limit("b", 1, 1000, algorithm)
        assert await take_permits(backend, first) == 1
        assert await take_permits(backend, first) == 0
        assert await take_permits(backend, second) == 1

    @needs("limits")
    @every_algorithm
    async def test_the_fleet_shares_a_limit(self, subject: Subject, algorithm: Any) -> None:
        """60 concurrent requests on several connections get 7 permits together."""
        backends = await connections(subject, 4)
        await at_the_start_of_a_window(subject, 10_000)
        limit = Limit("l", 7, 10_000, algorithm)
        given = await asyncio.gather(*(take_permits(backends[n % 4], limit) for n in range(60)))
        assert sum(given) == 7

    @needs("limits")
    async def test_a_token_bucket_refills(self, subject: Subject) -> None:
        """`limit / window` permits a second, up to `limit`. It starts full."""
        limit = Limit("l", 10, 1000)
        assert await take_permits(subject.backend, limit, count=99) == 10
        await subject.advance(310)
        assert await take_permits(subject.backend, limit, count=99) == 3
        await subject.advance(100_000)
        assert await take_permits(subject.backend, limit, count=99) == 10
        wait = (await subject.backend.take_permits([PermitRequest((limit,))]))[0].retry_after
        assert wait == near(100)

    @needs("limits")
    async def test_a_fixed_window_begins_with_its_first_permit(self, subject: Subject) -> None:
        """The next window begins with the first permit after the last window ended."""
        limit = Limit("l", 10, 1000, "fixed_window")
        assert await take_permits(subject.backend, limit, count=4) == 4
        await subject.advance(900)
        assert await take_permits(subject.backend, limit, count=99) == 6
        await subject.advance(110)
        assert await take_permits(subject.backend, limit, count=3) == 3
        await subject.advance(900)
        assert await take_permits(subject.backend, limit, count=99) == 7
        wait = (await subject.backend.take_permits([PermitRequest((limit,))]))[0].retry_after
        assert wait == near(100)

    @needs("limits")
    async def test_a_sliding_window_counts_part_of_the_previous_window(self, subject: Subject) -> None:
        """The previous window counts by the share that still overlaps a window ending now."""
        await at_the_start_of_a_window(subject, 1000)
        limit = Limit("l", 10, 1000, "sliding_window")
        assert await take_permits(subject.backend, limit, count=99) == 10
        await subject.advance(1000)
        assert await take_permits(subject.backend, limit, count=99) == 0
        await subject.advance(501)
        assert await take_permits(subject.backend, limit, count=99) == 5
        await subject.advance(5000)
        assert await take_permits(subject.backend, limit, count=99) == 10

    @needs("limits")
    @every_algorithm
    async def test_permits_that_one_limit_denies_are_not_charged_to_the_others(
        self, subject: Subject, algorithm: Any
    ) -> None:
        """A request is given the most that all of its limits allow, and only that is charged."""
        await at_the_start_of_a_window(subject, 10_000)
        wide, narrow = Limit("wide", 10, 10_000, algorithm), Limit("narrow", 3, 10_000, algorithm)
        assert await take_permits(subject.backend, wide, narrow, count=5) == 3
        assert await take_permits(subject.backend, narrow, wide, count=5) == 0
        assert await take_permits(subject.backend, wide, count=99) == 7

    @needs("limits")
    async def test_limits_of_different_algorithms_combine(self, subject: Subject) -> None:
        """Only what all of them allow is charged."""
        await at_the_start_of_a_window(subject, 10_000)
        await beat(subject.backend, "w")
        bucket, window = Limit("b", 6, 10_000), Limit("f", 5, 10_000, "fixed_window")
        sliding, slots = Limit("s", 4, 10_000, "sliding_window"), Limit("h", 3, algorithm="slots")
        assert await take_permits(subject.backend, bucket, window, sliding, slots, count=9, worker="w") == 3
        assert await take_permits(subject.backend, bucket, window, sliding, slots, count=9, worker="w") == 0
        left = [await take_permits(subject.backend, limit, count=9) for limit in (bucket, window, sliding)]
        assert left == [3, 2, 1]

    @needs("limits")
    async def test_requests_of_one_call_are_served_in_order(self, backend: Backend) -> None:
        """The first request is charged before the next. No requests give no replies."""
        limit = Limit("l", 10, 10_000)
        given = await backend.take_permits(
            [PermitRequest((limit,), 7), PermitRequest((limit,), 7), PermitRequest((limit,), 7)]
        )
        assert [reply.count for reply in given] == [7, 3, 0]
        assert list(await backend.take_permits([])) == []

    @needs("limits")
    async def test_a_request_without_limits_is_given_all(self, backend: Backend) -> None:
        """Nothing limits it."""
        assert await take_permits(backend, count=5) == 5


class ConcurrencyLimitCases:
    LIMIT = Limit("slots", 3, algorithm="slots")

    @needs("limits")
    async def test_a_concurrency_permit_is_held_until_it_is_returned(self, subject: Subject) -> None:
        """The live workers together hold at most `limit`. Time does not return permits."""
        backend = subject.backend
        await beat(backend, "w1")
        await beat(backend, "w2")
        assert await take_permits(backend, self.LIMIT, count=2, worker="w1") == 2
        assert await take_permits(backend, self.LIMIT, count=5, worker="w2") == 1
        await subject.advance(10_000)
        assert await take_permits(backend, self.LIMIT, worker="w2") == 0
        await backend.return_permits([PermitRequest((self.LIMIT,), 2)], worker="w1")
        assert await take_permits(backend, self.LIMIT, count=5, worker="w2") == 2

    @needs("limits")
    async def test_retry_after_is_0_for_concurrency_limits(self, backend: Backend) -> None:
        """It is not known when a permit will be returned."""
        await beat(backend, "w")
        await take_permits(backend, self.LIMIT, count=3, worker="w")
        reply = (await backend.take_permits([PermitRequest((self.LIMIT,))], worker="w"))[0]
        assert (reply.count, reply.retry_after) == (0, 0)

    @needs("limits")
    async def test_permits_of_a_dead_worker_are_returned(self, subject: Subject) -> None:
        """When the worker is removed, or when a claim finds that its lease has lapsed."""
        backend = subject.backend
        await beat(backend, "w1")
        await beat(backend, "w2", lease=50)
        assert await take_permits(backend, self.LIMIT, count=1, worker="w1") == 1
        assert await take_permits(backend, self.LIMIT, count=2, worker="w2") == 2
        await backend.remove_worker("w1")
        await beat(backend, "w3")
        assert await take_permits(backend, self.LIMIT, count=9, worker="w3") == 1
        await subject.advance(60)
        await claim(backend, worker="w3")
        assert await take_permits(backend, self.LIMIT, count=9, worker="w3") == 2

    @needs("limits")
    async def test_a_worker_returns_only_permits_that_it_holds(self, backend: Backend) -> None:
        """Returning more, or permits of another worker, frees nothing."""
        await beat(backend, "w1")
        await beat(backend, "w2")
        await take_permits(backend, self.LIMIT, count=2, worker="w1")
        await take_permits(backend, self.LIMIT, count=1, worker="w2")
        await backend.return_permits([PermitRequest((self.LIMIT,), 9)], worker="w2")
        await backend.return_permits([PermitRequest((self.LIMIT,), 9)], worker="missing")
        assert await take_permits(backend, self.LIMIT, count=9, worker="w2") == 1

    @needs("limits")
    async def test_only_concurrency_permits_are_returned(self, backend: Backend) -> None:
        """Starts per window stay spent."""
        await beat(backend, "w")
        bucket = Limit("b", 2, 100_000)
        assert await take_permits(backend, bucket, self.LIMIT, count=2, worker="w") == 2
        await backend.return_permits([PermitRequest((bucket, self.LIMIT), 2)], worker="w")
        assert await take_permits(backend, bucket, worker="w") == 0
        assert await take_permits(backend, self.LIMIT, count=9, worker="w") == 3

    @needs("limits")
    async def test_the_fleet_shares_a_concurrency_limit(self, subject: Subject) -> None:
        """40 concurrent requests on several connections get 3 permits together."""
        backends = await connections(subject, 4)
        await asyncio.gather(*(beat(backend, f"w{n}") for n, backend in enumerate(backends)))
        given = await asyncio.gather(
            *(take_permits(backends[n % 4], self.LIMIT, worker=f"w{n % 4}") for n in range(40))
        )
        assert sum(given) == 3


class LeasePermitCases:
    """Permits that belong to leases: the store knows which items hold them."""

    PAIR = Limit("slots", 2, algorithm="slots")

    async def _take_permit(self, backend: Backend, lease: Lease, worker: str = "w") -> PermitReply:
        return (await backend.take_permits([PermitRequest((self.PAIR,), 1, lease)], worker=worker))[0]

    async def _return_permit(self, backend: Backend, lease: Lease, worker: str = "w") -> None:
        await backend.return_permits([PermitRequest((self.PAIR,), 1, lease)], worker=worker)

    @needs("limits", "strict")
    async def test_a_denied_lease_learns_which_items_hold_the_permits(self, backend: Backend) -> None:
        """By the time at which they were due, then in the order of submission."""
        now = await backend.now()
        await submit(backend, item("late"), item("early", run_at=now - 50), item("new"))
        leases = by_id(await claim(backend))
        for id in ("late", "early"):
            assert (await self._take_permit(backend, leases[id])).count == 1
        reply = await self._take_permit(backend, leases["new"])
        assert (reply.count, reply.retry_after) == (0, 0)
        assert [(each.id, each.tenant) for each in reply.holders] == [
            ("early", "default"),
            ("late", "default"),
        ]
        assert [each.number for each in reply.holders] == [leases[id].ref for id in ("early", "late")]
        assert [each.due_at for each in reply.holders] == [leases[id].due_at for id in ("early", "late")]

    @needs("limits", "strict")
    async def test_a_lease_has_one_permit_however_often_it_asks(self, backend: Backend) -> None:
        """So a request whose answer was lost can be repeated."""
        await submit(backend, item("a"), item("b"), item("c"))
        leases = await claim(backend)
        assert [(await self._take_permit(backend, leases[0])).count for _ in range(3)] == [1, 1, 1]
        assert (await self._take_permit(backend, leases[1])).count == 1
        assert (await self._take_permit(backend, leases[0])).count == 1
        assert (await self._take_permit(backend, leases[2])).count == 0
        for _ in range(3):
            await self._return_permit(backend, leases[0])
        assert (await self._take_permit(backend, leases[2])).count == 1
        assert (await self._take_permit(backend, leases[0])).count == 0

    @needs("limits", "strict")
    async def test_an_item_that_has_ended_holds_its_permit_and_is_not_named(self, backend: Backend) -> None:
        """Its handler may still run. It is returned like any other."""
        await submit(backend, *items(5))
        ended, cancelled, third, *_ = await claim(backend)
        await self._take_permit(backend, ended)
        await self._take_permit(backend, cancelled)
        await apply(backend, succeed(ended))
        await backend.cancel([cancelled.id])
        assert await self._take_permit(backend, third) == PermitReply(0)
        await self._return_permit(backend, ended)
        assert (await self._take_permit(backend, third)).count == 1

    @needs("limits", "strict")
    async def test_a_lease_that_has_ended_gets_no_permit(self, backend: Backend) -> None:
        """A request that arrives late takes nothing that no task would return."""
        await submit(backend, *items(4))
        settled, cancelled, *others = await claim(backend)
        await apply(backend, succeed(settled))
        await backend.cancel([cancelled.id])
        for lease in (settled, cancelled):
            assert (await self._take_permit(backend, lease)).count == 0
        await beat(backend, "other")
        assert (await self._take_permit(backend, others[0], "other")).count == 0  # it is not its lease
        assert [(await self._take_permit(backend, lease)).count for lease in others] == [1, 1]

    @needs("limits", "strict")
    async def test_permits_of_leases_and_others_count_together(self, backend: Backend) -> None:
        """A worker returns the permit of a lease by naming the lease."""
        await submit(backend, *items(2))
        first, second = await claim(backend)
        assert await take_permits(backend, self.PAIR, worker="w") == 1
        assert (await self._take_permit(backend, first)).count == 1
        assert await take_permits(backend, self.PAIR, worker="w") == 0
        assert [each.id for each in (await self._take_permit(backend, second)).holders] == [first.id]
        await self._return_permit(backend, second)
        await self._return_permit(backend, first, "other")
        assert (await self._take_permit(backend, second)).count == 0
        await self._return_permit(backend, first)
        assert (await self._take_permit(backend, second)).count == 1

    @needs("limits", "strict")
    async def test_the_permits_of_a_dead_workers_leases_are_returned(self, backend: Backend) -> None:
        """With the other permits of that worker."""
        await submit(backend, *items(4))
        first, second, *others = [
            *await claim(backend, 2, worker="mortal"),
            *await claim(backend, 2, worker="w"),
        ]
        await self._take_permit(backend, first, "mortal")
        await self._take_permit(backend, second, "mortal")
        assert (await self._take_permit(backend, others[0])).count == 0
        await backend.remove_worker("mortal")
        assert [(await self._take_permit(backend, lease)).count for lease in others] == [1, 1]
        assert (await self._take_permit(backend, first, "mortal")).count == 0  # it is not alive

    @needs("limits", "strict")
    async def test_the_fleet_shares_the_permits_of_leases(self, subject: Subject) -> None:
        """40 leases ask at once, on several connections: two get a permit, and the others learn which."""
        backends = await connections(subject, 4)
        await submit(subject.backend, *items(40))
        leases = await claim(subject.backend)
        replies = await asyncio.gather(
            *(self._take_permit(backends[n % 4], lease) for n, lease in enumerate(leases))
        )
        assert sum(reply.count for reply in replies) == 2
        given = {lease.id for lease, reply in zip(leases, replies, strict=True) if reply.count}
        assert all({each.id for each in reply.holders} == given for reply in replies if not reply.count)
