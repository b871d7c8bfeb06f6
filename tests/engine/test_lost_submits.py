"""A submit whose answer is lost. The caller gets its items, and they run."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from msgspec.structs import replace

from tests.engine.kit import PATIENCE, MakeApp
from treadle import Client, DuplicateIdError, MemoryBackend, work
from treadle.errors import UnsupportedError
from treadle.item import Rejected, Submission
from treadle.testing import Faults, FaultyBackend
from treadle.testing.contract.build import item


@work(name="add")
async def add(n: int) -> int:
    return n


async def test_a_repeated_submit_finds_its_own_item(make_faulty: MakeApp, faults: Faults) -> None:
    """The caller gets the same answer as without the loss."""
    lost = faults.fail("submit", when="after")
    async with make_faulty(add) as app:
        handle = await app.enqueue(add(1))
        assert (lost.hits, handle.existing) == (1, False)
        assert await handle.result(PATIENCE) == 1


async def test_a_repeated_submit_with_a_key_is_not_existing(make_faulty: MakeApp, faults: Faults) -> None:
    """`existing` means an earlier item, not the item that the first submit stored."""
    lost = faults.fail("submit", when="after")
    async with make_faulty(add) as app:
        first = await app.enqueue(add(1), key="k", key_scope="any")
        assert (lost.hits, first.existing) == (1, False)
        second = await app.enqueue(add(2), key="k", key_scope="any")
        assert (second.existing, second.id) == (True, first.id)


async def test_a_repeated_submit_of_several_items_finds_all_of_them(
    make_faulty: MakeApp, faults: Faults
) -> None:
    """New items, and one whose key belongs to an earlier item."""
    async with make_faulty(add) as app:
        first = await app.enqueue(add(1), key="k", key_scope="any")
        lost = faults.fail("submit", when="after")
        new = add(2)
        answers = await asyncio.gather(
            app.enqueue_many([add(3), add(4)]), app.enqueue(new, key="k", key_scope="any")
        )
        assert lost.hits == 1
        assert [handle.existing for handle in answers[0]] == [False, False]
        assert (answers[1].id, answers[1].existing) == (first.id, True)
        assert [await handle.result(PATIENCE) for handle in answers[0]] == [3, 4]


async def test_a_repeated_submit_of_an_id_that_is_taken_is_refused(
    make_faulty: MakeApp, faults: Faults
) -> None:
    """Another work has the id."""
    async with make_faulty(add) as app:
        one = add(1)
        await app.enqueue(one)
        two = replace(add(2), id=one.id)
        lost = faults.fail("submit", when="before")
        with pytest.raises(DuplicateIdError):
            await app.enqueue(two)
        assert lost.hits == 1


async def test_a_skip_queue_item_runs_if_the_answer_to_its_submit_is_lost(
    make_faulty: MakeApp, faults: Faults
) -> None:
    """It is stored with a lease of this worker. The worker asks for its unknown leases and runs it once."""
    calls: list[int] = []

    @work(name="local", skip_queue=True)
    async def local(n: int) -> int:
        calls.append(n)
        return n

    lost = faults.fail("submit", when="after")
    async with make_faulty(local) as app:
        handle = await app.enqueue(local(1))
        assert await handle.result(PATIENCE) == 1
        assert (lost.hits, calls) == (1, [1])


async def test_a_skip_queue_item_runs_if_its_caller_is_cancelled(
    make_faulty: MakeApp, faults: Faults
) -> None:
    """The item is already stored with a lease when the caller is cancelled."""

    @work(name="local", skip_queue=True)
    async def local(n: int) -> int:
        return n

    slow = faults.hold("submit", when="after")
    async with make_faulty(local) as app:
        cancelled = local(7)
        enqueuing = asyncio.ensure_future(app.enqueue(cancelled).result())
        await slow.reached()
        enqueuing.cancel()
        await asyncio.wait({enqueuing})
        slow.release()
        await app._core.submitter.flush()
        assert await app.handle(cancelled.id).result(PATIENCE) == 7


class WithoutListing(FaultyBackend):
    """A store that cannot list items. It refuses a repeated submit, as a store without nonces does."""

    def __init__(self, faults: Faults) -> None:
        super().__init__(MemoryBackend(), faults)
        self.capabilities = self.capabilities - {"listing"}

    async def around(self, verb: str, args: tuple[Any, ...], call: Callable[[], Awaitable[Any]]) -> Any:
        if verb == "list":
            raise UnsupportedError("listing")
        return await super().around(verb, args, call)


async def test_a_repeated_submit_needs_no_listing(faults: Faults) -> None:
    """One of its items has the key of an earlier one, which cannot be found without listing. The submission
    is answered as refused: the caller checks with get()."""
    async with Client(WithoutListing(faults), work=[add]) as client:
        submitter = client._core.submitter
        await submitter.submit_repeatedly([Submission((item("first", key="k"),))])
        lost = faults.fail("submit", when="after")
        (answer,) = await submitter.submit_repeatedly([Submission((item("new"), item("second", key="k")))])
        assert (lost.hits, answer) == (1, Rejected("duplicate_id", ("new",)))
