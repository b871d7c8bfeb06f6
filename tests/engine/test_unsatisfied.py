"""What a dead item says that could not run: which item made it so (issue: unsatisfiable items)."""

from __future__ import annotations

import pytest

from tests.engine.kit import PATIENCE, MakeApp, failure
from treadle import Abort, Context, Result, group, work


@work(name="charge")
async def charge() -> None:
    raise Abort("the card was declined")


@work(name="email")
async def email() -> None: ...


@work(name="archive")
async def archive() -> None: ...


@work(name="order")
async def order(ctx: Context) -> Result[None, None]:
    return ctx.queue(charge())


async def test_it_names_the_item_that_died(make_app: MakeApp) -> None:
    async with make_app(charge, email) as app:
        first = await app.enqueue(charge())
        error = await failure(app.enqueue(email(), after=first).result(PATIENCE))
        assert error.reason == "unsatisfiable"
        assert error.error == (
            f"it waited for {first.id} (charge), which is dead: aborted: Abort: the card was declined"
        )


async def test_it_names_the_root_of_a_chain(make_app: MakeApp) -> None:
    async with make_app(charge, email, archive) as app:
        first = await app.enqueue(charge())
        second = await app.enqueue(email(), after=first)
        error = await failure(app.enqueue(archive(), after=second).result(PATIENCE))
        assert error.error == (
            f"it waited for {second.id} (email), which could not run, because {first.id} (charge) is dead: "
            "aborted: Abort: the card was declined"
        )


async def test_it_names_an_item_that_was_cancelled(make_app: MakeApp) -> None:
    async with make_app(charge, email) as app:
        first = await app.enqueue(charge(), delay=3600)
        second = await app.enqueue(email(), after=first)
        await first.cancel()
        error = await failure(second.result(PATIENCE))
        assert error.error == f"it waited for {first.id} (charge), which was cancelled"


async def test_it_names_how_many_others_there_are(make_app: MakeApp) -> None:
    async with make_app(charge, email) as app:
        first = await app.enqueue_many([charge(), charge(), charge()])
        for each in first:
            await failure(each.result(PATIENCE))
        error = await failure(app.enqueue(email(), after=first).result(PATIENCE))
        assert f"{first[0].id} (charge) (and 2 more), which is dead" in str(error.error)


async def test_it_names_the_death_that_failed_a_group(
    make_app: MakeApp, request: pytest.FixtureRequest
) -> None:
    async with make_app(charge, order, email) as app:
        if "nested" not in app.backend.capabilities:
            pytest.skip("no items that wait for groups")
        first = await app.enqueue(order())
        error = await failure(app.enqueue(email(), after=[group(first)]).result(PATIENCE))
        assert "(charge), which is dead: aborted: Abort: the card was declined" in str(error.error)
