"""Coordination: keys claimed once, and limits that the fleet shares."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from treadle.backend import Backend
from treadle.item import Limit, PermitRequest

from .build import beat, claim, connections, near
from .subject import Subject, needs

ALGORITHMS = ("token_bucket", "fixed_window", "sliding_window")
every_rate = pytest.mark.parametrize("algorithm", ALGORITHMS)


async def take(backend: Backend, *limits: Limit, count: int = 1, worker: str = "") -> int:
    return (await backend.take_permits([PermitRequest(limits, count)], worker=worker))[0].count


async def at_the_start_of_a_window(subject: Subject, window: float) -> None:
    """Move to just behind the beginning of a window that is aligned to the clock."""
    now = await subject.backend.now()
    await subject.advance(window - now % window + 1)


class ClaimedKeyCases:
    async def test_the_first_owner_has_it(self, backend: Backend) -> None:
        """True for the first to ask, and for that owner again; False for any other."""
        assert await backend.claim_key("k", "me", 100, tenant="default")
        assert await backend.claim_key("k", "me", 100, tenant="default")
        assert not await backend.claim_key("k", "you", 100, tenant="default")
        assert await backend.claim_key("other", "you", 100, tenant="default")

    async def test_until_its_time_is_over(self, subject: Subject) -> None:
        """`ttl` seconds since it was given; asking again does not prolong it."""
        backend = subject.backend
        assert await backend.claim_key("k", "me", 100, tenant="default")
        await subject.advance(80)
        assert await backend.claim_key("k", "me", 100, tenant="default")
        assert not await backend.claim_key("k", "you", 100, tenant="default")
        await subject.advance(30)
        assert await backend.claim_key("k", "you", 100, tenant="default")
        assert not await backend.claim_key("k", "me", 100, tenant="default")

    async def test_fifty_ask_at_once_and_one_has_it(self, subject: Subject) -> None:
        """Once per key across the fleet."""
        backends = await connections(subject, 5)
        answers = await asyncio.gather(
            *(backends[n % 5].claim_key("k", f"o{n}", 100, tenant="default") for n in range(50))
        )
        assert sum(answers) == 1

    async def test_fifty_ask_at_once_for_one_that_has_expired(self, subject: Subject) -> None:
        """The same when somebody had it before."""
        await subject.backend.claim_key("k", "old", 10, tenant="default")
        await subject.advance(20)
        backends = await connections(subject, 5)
        answers = await asyncio.gather(
            *(backends[n % 5].claim_key("k", f"o{n}", 100, tenant="default") for n in range(50))
        )
        assert sum(answers) == 1


class RateLimitCases:
    @needs("limits")
    @every_rate
    async def test_no_more_permits_than_the_limit(self, subject: Subject, algorithm: Any) -> None:
        """`limit` starts per window; what is not there is not given, and `retry_after` says when it is."""
        await at_the_start_of_a_window(subject, 1000)
        limit = Limit("l", 10, 1000, algorithm)
        assert await take(subject.backend, limit, count=4) == 4
        assert await take(subject.backend, limit, count=10) == 6
        grant = (await subject.backend.take_permits([PermitRequest((limit,), 1)]))[0]
        assert grant.count == 0
        assert 0 < grant.retry_after <= 1110

    @needs("limits")
    @every_rate
    async def test_retry_after_is_long_enough(self, subject: Subject, algorithm: Any) -> None:
        """After it, one more is granted; well before it, none."""
        await at_the_start_of_a_window(subject, 1000)
        limit = Limit("l", 4, 1000, algorithm)
        await take(subject.backend, limit, count=4)
        wait = (await subject.backend.take_permits([PermitRequest((limit,))]))[0].retry_after
        assert wait > 20
        await subject.advance(wait - 20)
        assert await take(subject.backend, limit) == 0
        await subject.advance(21)
        assert await take(subject.backend, limit) == 1

    @needs("limits")
    @every_rate
    async def test_limits_have_names(self, backend: Backend, algorithm: Any) -> None:
        """Each name is its own."""
        first, second = Limit("a", 1, 1000, algorithm), Limit("b", 1, 1000, algorithm)
        assert await take(backend, first) == 1
        assert await take(backend, first) == 0
        assert await take(backend, second) == 1

    @needs("limits")
    @every_rate
    async def test_the_fleet_shares_a_limit(self, subject: Subject, algorithm: Any) -> None:
        """60 ask at once on several connections, 7 are granted."""
        backends = await connections(subject, 4)
        await at_the_start_of_a_window(subject, 10_000)
        limit = Limit("l", 7, 10_000, algorithm)
        grants = await asyncio.gather(*(take(backends[n % 4], limit) for n in range(60)))
        assert sum(grants) == 7

    @needs("limits")
    async def test_a_bucket_refills(self, subject: Subject) -> None:
        """`limit / window` a second, up to `limit`; it starts full."""
        limit = Limit("l", 10, 1000)
        assert await take(subject.backend, limit, count=99) == 10
        await subject.advance(310)
        assert await take(subject.backend, limit, count=99) == 3
        await subject.advance(100_000)
        assert await take(subject.backend, limit, count=99) == 10
        wait = (await subject.backend.take_permits([PermitRequest((limit,))]))[0].retry_after
        assert wait == near(100)

    @needs("limits")
    async def test_a_fixed_window_begins_with_its_first_permit(self, subject: Subject) -> None:
        """`limit` per window; the next window begins with the first permit after the last one ended."""
        limit = Limit("l", 10, 1000, "fixed_window")
        assert await take(subject.backend, limit, count=4) == 4
        await subject.advance(900)
        assert await take(subject.backend, limit, count=99) == 6
        await subject.advance(110)
        assert await take(subject.backend, limit, count=3) == 3
        await subject.advance(900)
        assert await take(subject.backend, limit, count=99) == 7
        wait = (await subject.backend.take_permits([PermitRequest((limit,))]))[0].retry_after
        assert wait == near(100)

    @needs("limits")
    async def test_a_sliding_window_remembers_the_last_one(self, subject: Subject) -> None:
        """The previous window still weighs by the share of it that a window ending now overlaps."""
        await at_the_start_of_a_window(subject, 1000)
        limit = Limit("l", 10, 1000, "sliding_window")
        assert await take(subject.backend, limit, count=99) == 10
        await subject.advance(1000)
        assert await take(subject.backend, limit, count=99) == 0
        await subject.advance(501)
        assert await take(subject.backend, limit, count=99) == 5
        await subject.advance(5000)
        assert await take(subject.backend, limit, count=99) == 10

    @needs("limits")
    @every_rate
    async def test_a_limit_is_not_charged_for_what_another_denied(
        self, subject: Subject, algorithm: Any
    ) -> None:
        """A take is granted the most that all of its limits allow, and only that is spent in each."""
        await at_the_start_of_a_window(subject, 10_000)
        wide, narrow = Limit("wide", 10, 10_000, algorithm), Limit("narrow", 3, 10_000, algorithm)
        assert await take(subject.backend, wide, narrow, count=5) == 3
        assert await take(subject.backend, narrow, wide, count=5) == 0
        assert await take(subject.backend, wide, count=99) == 7

    @needs("limits")
    async def test_limits_of_different_kinds_together(self, subject: Subject) -> None:
        """All of them allow it, or none is charged."""
        await at_the_start_of_a_window(subject, 10_000)
        await beat(subject.backend, "w")
        bucket, window = Limit("b", 6, 10_000), Limit("f", 5, 10_000, "fixed_window")
        sliding, slots = Limit("s", 4, 10_000, "sliding_window"), Limit("h", 3, algorithm="slots")
        assert await take(subject.backend, bucket, window, sliding, slots, count=9, worker="w") == 3
        assert await take(subject.backend, bucket, window, sliding, slots, count=9, worker="w") == 0
        left = [await take(subject.backend, limit, count=9) for limit in (bucket, window, sliding)]
        assert left == [3, 2, 1]

    @needs("limits")
    async def test_takes_are_granted_in_order(self, backend: Backend) -> None:
        """One call, one step: the first takes its part before the next; none for none."""
        limit = Limit("l", 10, 10_000)
        grants = await backend.take_permits(
            [PermitRequest((limit,), 7), PermitRequest((limit,), 7), PermitRequest((limit,), 7)]
        )
        assert [grant.count for grant in grants] == [7, 3, 0]
        assert list(await backend.take_permits([])) == []

    @needs("limits")
    async def test_no_limits_no_denial(self, backend: Backend) -> None:
        """A take under no limit is granted."""
        assert await take(backend, count=5) == 5


class ConcurrencyLimitCases:
    SLOTS = Limit("slots", 3, algorithm="slots")

    @needs("limits")
    async def test_held_until_given_back(self, subject: Subject) -> None:
        """`limit` held at once by the live workers together; time does not give them back."""
        backend = subject.backend
        await beat(backend, "w1")
        await beat(backend, "w2")
        assert await take(backend, self.SLOTS, count=2, worker="w1") == 2
        assert await take(backend, self.SLOTS, count=5, worker="w2") == 1
        await subject.advance(10_000)
        assert await take(backend, self.SLOTS, worker="w2") == 0
        await backend.return_permits([PermitRequest((self.SLOTS,), 2)], worker="w1")
        assert await take(backend, self.SLOTS, count=5, worker="w2") == 2

    @needs("limits")
    async def test_how_long_is_not_known(self, backend: Backend) -> None:
        """`retry_after` is 0 for slots."""
        await beat(backend, "w")
        await take(backend, self.SLOTS, count=3, worker="w")
        grant = (await backend.take_permits([PermitRequest((self.SLOTS,))], worker="w"))[0]
        assert (grant.count, grant.retry_after) == (0, 0)

    @needs("limits")
    async def test_a_dead_workers_slots_are_free(self, subject: Subject) -> None:
        """Given back when it is buried, by whoever finds that its lease has lapsed too."""
        backend = subject.backend
        await beat(backend, "w1")
        await beat(backend, "w2", lease=50)
        assert await take(backend, self.SLOTS, count=1, worker="w1") == 1
        assert await take(backend, self.SLOTS, count=2, worker="w2") == 2
        await backend.remove_worker("w1")
        await beat(backend, "w3")
        assert await take(backend, self.SLOTS, count=9, worker="w3") == 1
        await subject.advance(60)
        await claim(backend, worker="w3")
        assert await take(backend, self.SLOTS, count=9, worker="w3") == 2

    @needs("limits")
    async def test_nobody_gives_what_it_does_not_hold(self, backend: Backend) -> None:
        """Giving back more than one holds, or what another holds, makes no room."""
        await beat(backend, "w1")
        await beat(backend, "w2")
        await take(backend, self.SLOTS, count=2, worker="w1")
        await take(backend, self.SLOTS, count=1, worker="w2")
        await backend.return_permits([PermitRequest((self.SLOTS,), 9)], worker="w2")
        await backend.return_permits([PermitRequest((self.SLOTS,), 9)], worker="nobody")
        assert await take(backend, self.SLOTS, count=9, worker="w2") == 1

    @needs("limits")
    async def test_only_slots_are_given_back(self, backend: Backend) -> None:
        """Starts per window are spent; others are not touched."""
        await beat(backend, "w")
        bucket = Limit("b", 2, 100_000)
        assert await take(backend, bucket, self.SLOTS, count=2, worker="w") == 2
        await backend.return_permits([PermitRequest((bucket, self.SLOTS), 2)], worker="w")
        assert await take(backend, bucket, worker="w") == 0
        assert await take(backend, self.SLOTS, count=9, worker="w") == 3

    @needs("limits")
    async def test_the_fleet_shares_slots(self, subject: Subject) -> None:
        """40 ask at once on several connections, 3 are granted."""
        backends = await connections(subject, 4)
        await asyncio.gather(*(beat(backend, f"w{n}") for n, backend in enumerate(backends)))
        grants = await asyncio.gather(
            *(take(backends[n % 4], self.SLOTS, worker=f"w{n % 4}") for n in range(40))
        )
        assert sum(grants) == 3
