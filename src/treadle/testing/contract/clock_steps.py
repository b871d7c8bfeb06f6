"""The store's clock is set back: nothing waits until it shows the old time again."""

from __future__ import annotations

import pytest

from treadle.item import Demand, Heartbeat, Lease, Limit

from .build import claim_one, item, statuses, submit
from .limits import every_algorithm, take_permits
from .subject import Subject, needs, set_back

HOUR = 3600.0


class ClockStepCases:
    @needs("limits")
    @every_algorithm
    @pytest.mark.parametrize("step", [30.0, HOUR])
    async def test_a_limit_waits_for_its_window_only(
        self, subject: Subject, algorithm: str, step: float
    ) -> None:
        """What was taken stays taken. After two windows at the latest there are permits again."""
        limit = Limit("l", 2, 10.0, algorithm)  # type: ignore[arg-type]
        await subject.advance(step)
        assert await take_permits(subject.backend, limit, count=2) == 2
        await set_back(subject, step)
        assert await take_permits(subject.backend, limit) == 0
        await subject.advance(21)
        assert await take_permits(subject.backend, limit, count=2) == 2

    @pytest.mark.parametrize("step", [30.0, HOUR])
    async def test_a_worker_that_died_is_gone_within_two_leases(self, subject: Subject, step: float) -> None:
        """It died while the clock was ahead. Those that send heartbeats keep what they hold."""
        backend = subject.backend
        await submit(backend, item("mine"), item("lost"))
        await subject.advance(step)
        held: dict[str, Lease] = {}
        for worker in ("alive", "dead"):
            await backend.beat(Heartbeat(worker=worker, lease=10))
            (held[worker],) = (await backend.claim(Demand(worker=worker, limit=1))).leases
        await set_back(subject, step)
        for _ in range(5):
            await subject.advance(4)
            await backend.beat(Heartbeat(worker="alive", lease=10))
            await backend.claim(Demand(worker="alive", limit=0))
        await subject.advance(1)
        found = await claim_one(backend, worker="alive")
        assert found.id == held["dead"].id
        assert await statuses(backend, held["alive"].id) == ["running"]
        reply = await backend.beat(Heartbeat(worker="alive", lease=10, held=[held["alive"]]))
        assert not reply.lost

    async def test_a_worker_that_died_is_gone_also_if_no_other_was_there(self, subject: Subject) -> None:
        """A worker that is new has not seen that the clock went back."""
        backend = subject.backend
        await submit(backend, item("lost"))
        await subject.advance(HOUR)
        await backend.beat(Heartbeat(worker="dead", lease=10))
        assert len((await backend.claim(Demand(worker="dead", limit=1))).leases) == 1
        await set_back(subject, HOUR)
        await subject.advance(4)
        for _ in range(5):
            await backend.beat(Heartbeat(worker="new", lease=30))
            await backend.claim(Demand(worker="new", limit=0))
            await subject.advance(4)
        assert (await claim_one(backend, worker="new")).id == "lost"

    async def test_a_worker_that_asks_for_less_time_shortens_no_other_lease(self, subject: Subject) -> None:
        """Its lease ends earlier than before, as if the clock had gone back."""
        backend = subject.backend
        for worker, lease in (("other", 10), ("w", 10), ("other", 100), ("w", 100), ("w", 10)):
            await backend.beat(Heartbeat(worker=worker, lease=lease))
        await subject.advance(50)
        assert (await backend.claim(Demand(worker="other", limit=1))).alive
        assert not (await backend.claim(Demand(worker="w", limit=1))).alive
