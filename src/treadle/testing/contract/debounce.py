"""The key policy `debounce`: each submit with the key starts the delay of the earlier item again."""

from __future__ import annotations

import asyncio
from typing import Any

from treadle.backend import Backend
from treadle.item import Item

from .build import (
    apply,
    claim,
    claim_ids,
    claim_one,
    connections,
    item,
    near,
    start_one,
    state,
    submit,
    submit_one,
    succeed,
)
from .check import consistent
from .key_policies import first
from .subject import Subject, needs


def debouncing(id: str, delay: float, debounce_max: float | None = None, **fields: Any) -> Item:
    return item(id, key="k", key_policy="debounce", delay=delay, debounce_max=debounce_max, **fields)


class KeyDebounceCases:
    @needs("updates")
    async def test_the_delay_starts_again(self, subject: Subject) -> None:
        """From now, with the newest data."""
        await submit(subject.backend, debouncing("a", 100, input=b"1"))
        await subject.advance(60)
        answer = await submit_one(subject.backend, debouncing("b", 100, input=b"2"))
        assert (answer.id, answer.existing, answer.status) == ("a", True, "scheduled")
        found = await state(subject.backend, "a")
        assert (found.due_at, found.input) == (near(await subject.backend.now() + 100), b"2")
        await subject.advance(60)
        assert await claim(subject.backend) == []
        await subject.advance(60)
        assert (await claim_one(subject.backend)).input == b"2"

    @needs("updates")
    async def test_it_is_put_off_no_longer_than_the_limit(self, subject: Subject) -> None:
        """`debounce_max` counts from the submission of the earlier item."""
        await submit(subject.backend, debouncing("a", 100, 250))
        latest = await subject.backend.now() + 250
        for n in range(3):
            await subject.advance(80)
            await submit(subject.backend, debouncing(f"b{n}", 100, 250))
        assert (await state(subject.backend, "a")).due_at == near(latest)
        await subject.advance(20)
        assert (await claim_one(subject.backend)).id == "a"

    @needs("updates")
    async def test_a_ready_item_is_put_off_again(self, backend: Backend) -> None:
        """As long as no worker has claimed it."""
        await submit(backend, first())
        assert (await submit_one(backend, debouncing("b", 100))).status == "scheduled"
        assert await claim(backend) == []
        await consistent(backend)

    @needs("updates")
    async def test_an_item_that_is_not_put_off_any_more_is_ready(self, subject: Subject) -> None:
        """The limit has passed: it keeps its newest data, and is due."""
        await submit(subject.backend, debouncing("a", 100))
        await subject.advance(50)
        answer = await submit_one(subject.backend, debouncing("b", 100, 20, input=b"2"))
        assert answer.status == "ready"
        assert (await claim_one(subject.backend)).input == b"2"

    @needs("updates")
    async def test_a_blocked_item_is_put_off_while_it_waits(self, backend: Backend) -> None:
        """It is due later once it is released."""
        lease = await start_one(backend, item("p"))
        await submit(backend, first(after=("p",), need=1))
        assert (await submit_one(backend, debouncing("b", 100))).status == "blocked"
        await apply(backend, succeed(lease))
        assert (await state(backend, "a")).status == "scheduled"
        await consistent(backend)

    @needs("updates")
    async def test_a_running_item_is_not_put_off(self, backend: Backend) -> None:
        """It has started."""
        lease = await start_one(backend, first())
        before = await state(backend, "a")
        assert (await submit_one(backend, debouncing("b", 100))).status == "running"
        assert await state(backend, "a") == before
        await apply(backend, succeed(lease))

    @needs("updates")
    async def test_a_repeated_submit_puts_nothing_off(self, subject: Subject) -> None:
        """Its answer was lost: the delay starts once."""
        await submit(subject.backend, first(delay=100))
        await submit(subject.backend, debouncing("b", 100))
        due = (await state(subject.backend, "a")).due_at
        await subject.advance(50)
        await submit(subject.backend, debouncing("b", 100))
        assert (await state(subject.backend, "a")).due_at == due

    @needs("updates")
    async def test_fifty_concurrent_submits_put_one_item_off(self, subject: Subject) -> None:
        """It is due once, after the last of them."""
        backends = await connections(subject, 5)
        answers = await asyncio.gather(
            *(submit_one(backends[n % 5], debouncing(f"i{n}", 100, 300)) for n in range(50))
        )
        assert sum(not answer.existing for answer in answers) == 1
        assert len({answer.id for answer in answers}) == 1
        await subject.advance(130)
        assert await claim_ids(subject.backend) == [answers[0].id]
        await consistent(subject.backend)
