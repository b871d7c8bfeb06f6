"""Times: when an item became ready, was claimed, and when its handler began."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from treadle.backend import Backend

from .build import (
    apply,
    beat,
    begin,
    cancel,
    claim_one,
    defer,
    dependent,
    die,
    item,
    near,
    release,
    retry,
    start_one,
    state,
    submit,
    succeed,
)
from .subject import Subject, needs


class TimeCases:
    async def test_a_running_item_shows_when_its_lease_began(self, subject: Subject) -> None:
        """The store does not know better until it is settled."""
        await submit(subject.backend, item("a"))
        before = await state(subject.backend, "a")
        assert (before.claimed_at, before.started_at) == (None, None)
        await subject.advance(50)
        now = (await claim_one(subject.backend)).claimed_at
        found = await state(subject.backend, "a")
        assert (found.claimed_at, found.started_at) == (near(now), near(now))
        assert found.claimed_at == near(await subject.backend.now())

    @pytest.mark.parametrize("how", [succeed, die, retry, defer, cancel])
    async def test_a_settlement_says_when_the_handler_began(self, subject: Subject, how: Any) -> None:
        """That many seconds ago, by the store's clock."""
        backend = subject.backend
        lease = await start_one(backend, item("a"))
        await subject.advance(100)
        now = await backend.now()
        await apply(backend, replace(how(lease), ran=60.0))
        found = await state(backend, "a")
        assert (found.claimed_at, found.started_at) == (near(now - 100), near(now - 60))

    async def test_a_handler_does_not_begin_before_its_claim(self, backend: Backend) -> None:
        """The worker's clock may be wrong."""
        lease = await start_one(backend, item("a"))
        await apply(backend, replace(succeed(lease), ran=1000.0))
        found = await state(backend, "a")
        assert found.claimed_at is not None
        assert found.started_at == found.claimed_at
        assert found.claimed_at <= (found.ended_at or 0)

    @pytest.mark.parametrize("how", [succeed, die, retry])
    async def test_without_a_handler_nothing_started(self, backend: Backend, how: Any) -> None:
        """As with an item whose input cannot be read."""
        await apply(backend, how(await start_one(backend, item("a"))))
        found = await state(backend, "a")
        assert found.claimed_at is not None
        assert found.started_at is None

    async def test_the_last_attempt_that_began_counts(self, subject: Subject) -> None:
        """A later lease that was given back does not."""
        backend = subject.backend
        await apply(backend, replace(retry(await start_one(backend, item("a"))), ran=0.0))
        began = (await state(backend, "a")).started_at
        await subject.advance(100)
        lease = await claim_one(backend)
        await apply(backend, release(lease))
        found = await state(backend, "a")
        assert (found.started_at, found.claimed_at) == (began, near(lease.claimed_at))
        assert began != near(lease.claimed_at)

    async def test_an_item_whose_worker_died_began_with_its_lease(self, subject: Subject) -> None:
        """Nothing better is known."""
        backend = subject.backend
        await submit(backend, item("a"))
        lease = await claim_one(backend, worker="w1", lease=10)
        await begin(backend, [lease])
        await subject.advance(20)
        await beat(backend, "w2")
        await backend.remove_worker("w1")
        assert (await state(backend, "a")).started_at == near(lease.claimed_at)

    async def test_a_cancelled_item_began_with_its_lease(self, subject: Subject) -> None:
        """Its worker is not asked."""
        lease = await start_one(subject.backend, item("a"))
        await subject.advance(50)
        await subject.backend.cancel(["a"])
        found = await state(subject.backend, "a")
        assert (found.started_at, found.claimed_at) == (near(lease.claimed_at), near(lease.claimed_at))

    @needs("operating")
    async def test_a_requeued_item_has_not_started(self, backend: Backend) -> None:
        """Neither has it been claimed."""
        await apply(backend, replace(die(await start_one(backend, item("a"))), ran=0.0))
        await backend.requeue(["a"])
        found = await state(backend, "a")
        assert (found.claimed_at, found.started_at) == (None, None)

    async def test_a_success_shows_no_error(self, backend: Backend) -> None:
        """The history has the failures."""
        await apply(backend, retry(await start_one(backend, item("a"))))
        assert (await state(backend, "a")).error == "Oops: no"
        await apply(backend, succeed(await claim_one(backend)))
        found = await state(backend, "a")
        assert (found.error, found.error_type) == (None, None)
        assert [attempt.message for attempt in found.history] == ["no"]

    async def test_a_death_shows_its_error(self, backend: Backend) -> None:
        """The last one."""
        await apply(backend, die(await start_one(backend, item("a"))))
        assert (await state(backend, "a")).error_type == "Oops"

    async def test_a_lease_says_when_its_item_became_ready(self, subject: Subject) -> None:
        """At once, if it waits for nothing."""
        await submit(subject.backend, item("a"))
        now = await subject.backend.now()
        await subject.advance(50)
        assert (await claim_one(subject.backend)).ready_at == near(now)

    async def test_a_lease_at_submit_was_ready_at_once(self, backend: Backend) -> None:
        """As everywhere."""
        lease = await start_one(backend, item("a"))
        assert lease.ready_at == near(await backend.now())

    async def test_a_scheduled_item_became_ready_when_it_was_due(self, subject: Subject) -> None:
        """Not when a claim found it."""
        now = await subject.backend.now()
        await submit(subject.backend, item("a", delay=100))
        await subject.advance(300)
        assert (await claim_one(subject.backend)).ready_at == near(now + 100)

    async def test_a_blocked_item_became_ready_when_it_was_released(self, subject: Subject) -> None:
        """Not when it was submitted."""
        backend = subject.backend
        lease = await start_one(backend, item("p"))
        await submit(backend, dependent("p", id="a"))
        await subject.advance(100)
        now = await backend.now()
        await apply(backend, succeed(lease))
        await subject.advance(50)
        assert (await claim_one(backend)).ready_at == near(now)

    async def test_an_item_that_is_given_back_has_been_ready_all_the_time(self, subject: Subject) -> None:
        """A limit holds it back: a worker claims it and gives it back, again and again."""
        backend = subject.backend
        now = await backend.now()
        lease = await start_one(backend, item("a"))
        for _ in range(2):
            await subject.advance(100)
            await apply(backend, release(lease))
            if "watching" in backend.capabilities:
                assert [age.oldest_ready for age in (await backend.overview()).ages] == [near(now)]
            lease = await claim_one(backend)
            assert lease.ready_at == near(now)

    async def test_an_item_that_is_given_back_for_later_became_ready_when_it_was_due(
        self, subject: Subject
    ) -> None:
        """As one that was submitted for later."""
        backend = subject.backend
        lease = await start_one(backend, item("a"))
        await subject.advance(100)
        now = await backend.now()
        await apply(backend, release(lease, delay=50))
        await subject.advance(150)
        assert (await claim_one(backend)).ready_at == near(now + 50)

    async def test_an_item_that_is_tried_again_became_ready_anew(self, subject: Subject) -> None:
        """For each attempt."""
        backend = subject.backend
        lease = await start_one(backend, item("a"))
        await subject.advance(100)
        now = await backend.now()
        await apply(backend, retry(lease))
        await subject.advance(50)
        assert (await claim_one(backend)).ready_at == near(now)
