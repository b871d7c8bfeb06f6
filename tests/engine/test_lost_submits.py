"""A submit whose answer was lost: what it stored is the caller's own, and is run."""

from __future__ import annotations

import asyncio

import pytest
from msgspec.structs import replace

from tests.engine.kit import PATIENCE, MakeApp
from treadle import DuplicateIdError, work
from treadle.testing import Faults


@work(name="add")
async def add(n: int) -> int:
    return n


async def test_it_is_no_duplicate_of_itself(make_faulty: MakeApp, faults: Faults) -> None:
    """The repeated call finds the item in the store: the caller is answered as if nothing had happened."""
    lost = faults.fail("submit", when="after")
    async with make_faulty(add) as app:
        handle = await app.enqueue(add(1))
        assert (lost.hits, handle.existing) == (1, False)
        assert await handle.result(PATIENCE) == 1


async def test_a_key_is_no_ones_but_its_own(make_faulty: MakeApp, faults: Faults) -> None:
    """`existing` speaks of an earlier item, not of the one that the first try has stored."""
    lost = faults.fail("submit", when="after")
    async with make_faulty(add) as app:
        first = await app.enqueue(add(1), key="k", key_scope="any")
        assert (lost.hits, first.existing) == (1, False)
        second = await app.enqueue(add(2), key="k", key_scope="any")
        assert (second.existing, second.id) == (True, first.id)


async def test_several_at_once_one_of_them_known(make_faulty: MakeApp, faults: Faults) -> None:
    """Items that were stored, and one that an earlier item had answered for, are all found again."""
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


async def test_a_real_duplicate_is_still_one(make_faulty: MakeApp, faults: Faults) -> None:
    """An id that is taken by other work is refused, whatever happened to the call."""
    async with make_faulty(add) as app:
        one = add(1)
        await app.enqueue(one)
        two = replace(add(2), id=one.id)
        lost = faults.fail("submit", when="before")
        with pytest.raises(DuplicateIdError):
            await app.enqueue(two)
        assert lost.hits == 1


async def test_what_was_to_skip_the_queue_is_run(make_faulty: MakeApp, faults: Faults) -> None:
    """It was stored leased to this worker, which was not told: it asks for it, and runs it once."""
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


async def test_a_caller_that_gives_up_strands_nothing(make_faulty: MakeApp, faults: Faults) -> None:
    """Cancelled while its item is stored already leased: the worker takes it up all the same."""

    @work(name="local", skip_queue=True)
    async def local(n: int) -> int:
        return n

    slow = faults.hold("submit", when="after")
    async with make_faulty(local) as app:
        minted = local(7)
        enqueuing = asyncio.ensure_future(app.enqueue(minted).result())
        await slow.reached()
        enqueuing.cancel()
        await asyncio.wait({enqueuing})
        slow.release()
        await app._core.submitter.flush()
        assert await app.handle(minted.id).result(PATIENCE) == 7
