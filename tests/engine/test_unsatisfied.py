"""What a dead item says that could not run: which item made it so (issue: unsatisfiable items)."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from tests.engine.kit import PATIENCE, MakeApp, failure
from treadle import Abort, Context, Result, group, work
from treadle.engine.run.unsatisfied import named_causes, read_roots
from treadle.operate.why.read import MOST_DEAD, MOST_DEEP


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


async def test_the_end_of_a_long_chain_names_its_root_and_so_does_everything_that_tells_what_to_do(
    make_app: MakeApp,
) -> None:
    async with make_app(charge, email) as app:
        first = await app.enqueue(charge(), delay=3600, id="root")
        last = first
        for n in range(2 * MOST_DEEP):
            last = await app.enqueue(email(), after=last, id=f"link-{n}")
        await app.trigger(first)
        error = await failure(last.result(PATIENCE))
        assert str(error.error).endswith(
            "which could not run, because root (charge) is dead: aborted: Abort: the card was declined"
        )
        (state,) = await app.get(last)
        assert state is not None
        roots = await read_roots(app.backend, [state])
        assert [root.id for root in roots[state.tenant, state.id]] == ["root"]
        gone = replace(
            state, error="Unsatisfiable: it waited for gone (charge), which is dead: aborted: Abort"
        )
        assert await named_causes(app.backend, [gone]) == {}
        if "watching" in app.backend.capabilities:
            why = await app.why(last)
            assert why.reasons[0].fix == "run what died first: treadle requeue root"
            assert (why.reasons[-1].about, len(why.reasons)) == ("root", 2 + MOST_DEAD)


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
            pytest.skip("the store has no items that wait for groups")
        first = await app.enqueue(order())
        error = await failure(app.enqueue(email(), after=[group(first)]).result(PATIENCE))
        assert "(charge), which is dead: aborted: Abort: the card was declined" in str(error.error)
