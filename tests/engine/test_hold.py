"""Hold: `app.hold` and `app.unhold`, what `why` says of held items, and bulk actions with these verbs."""

from __future__ import annotations

import pytest

from tests.engine.kit import PATIENCE, MakeApp, until_status
from tests.engine.test_bulk import ended
from treadle import NotFound, NotHoldable, NotTriggerable, Retry, work
from treadle.item import NEVER
from treadle.why import Reason, Why


@work(name="add", retry=Retry(attempts=5, base=0, jitter=0))
async def add(n: int) -> int:
    if n < 0:
        raise ValueError("negative")
    return n


def only(why: Why, kind: str) -> Reason:
    (found,) = (reason for reason in why.reasons if reason.kind == kind)
    return found


async def test_held_items_do_not_run_until_they_are_let_go(make_app: MakeApp) -> None:
    """Workers are woken then."""
    app = make_app(add)
    handles = await app.enqueue_many([add(1), add(2)])
    other = await app.enqueue(add(3))
    assert await app.hold(handles) == 2
    assert await app.hold(handles[0]) == 0
    await app.start()
    assert await other.result(PATIENCE) == 3
    assert [(await each.state()).held for each in handles] == [True, True]
    assert [each.id for each in (await app.list(held=True, oldest_first=True)).items] == [
        each.id for each in handles
    ]
    with pytest.raises(NotHoldable, match="it has ended"):
        await app.hold([handles[0], other])
    with pytest.raises(NotTriggerable, match="is held"):
        await app.trigger(handles)
    with pytest.raises(NotFound):
        await app.unhold([handles[0], "missing"])
    assert await app.unhold([*handles, other]) == 2
    assert [await each.result(PATIENCE) for each in handles] == [1, 2]


async def test_an_item_that_fails_is_held_between_its_attempts(make_app: MakeApp) -> None:
    """A poison item need not be cancelled. It goes on with its attempts."""
    async with make_app(add) as app:
        handle = await app.enqueue(add(-1), retry=Retry(attempts=2, base=3600, jitter=0))
        await until_status(app, handle.id, "scheduled")
        due = (await handle.state()).due_at
        assert await app.hold(handle) == 1
        state = await handle.state()
        assert (state.status, state.held, state.due_at, state.attempt) == ("scheduled", True, NEVER, 1)
        await app.unhold(handle)
        assert (await handle.state()).due_at == due


@pytest.mark.parametrize("store", ["memory"], indirect=True)
async def test_why_says_who_holds_an_item(make_app: MakeApp) -> None:
    """Also where another item waits for it. A client of one tenant sees what its own tenant's entries say."""
    app = make_app(add)
    acme = app.tenant("acme")
    first = await acme.enqueue(add(1), id="first")
    await acme.enqueue(add(2), id="second", after=first)
    await acme.by("ann", reason="bad card").hold(first)
    held = only(await app.why("first"), "held")
    assert held.text == "it is held, by ann just now: bad card"
    assert held.fix == "treadle unhold first --tenant acme"
    assert only(await acme.why("first"), "held").text == held.text
    assert only(await app.why("second"), "held").about == "first"
    third = await acme.enqueue(add(3), id="third")
    await acme.by("zoe").unhold(third)
    bob = acme.by("bob", reason="me too")
    assert (await bob.hold(first), await bob.hold([first, third])) == (0, 1)  # it is held already
    assert only(await app.why("first"), "held").text == held.text
    assert only(await app.why("third"), "held").text == "it is held, by bob just now: me too"
    await acme.by("bob").unhold(first)
    await acme.hold(first)
    assert only(await app.why("first"), "held").text == "it is held"
    await acme.unhold(first)
    assert "held" not in {reason.kind for reason in (await app.why("first")).reasons}


async def test_tenants_hold_their_own_items(make_app: MakeApp) -> None:
    app = make_app(add)
    handle = await app.tenant("acme").enqueue(add(1))
    for verb in (app.tenant("other").hold, app.tenant("other").unhold):
        with pytest.raises(NotFound):
            await verb(handle)
    assert await app.tenant("acme").hold(handle) == 1
    assert (await app.tenant("acme").list(held=True)).items
    assert not (await app.tenant("other").list(held=True)).items


async def test_many_items_are_held_and_let_go_by_a_bulk_action(make_app: MakeApp) -> None:
    """A filter finds what can be held, and only held items are let go."""
    async with make_app(add) as app:
        handles = await app.enqueue_many([add(n) for n in range(4)], delay=3600, queue="slow")
        last = await app.enqueue(add(5), delay=3600)
        done = await ended(app, await app.bulk.start("hold", queue="slow"))
        assert (done.changed, done.skipped) == (4, {})
        again = await ended(app, await app.bulk.start("hold", ids=[handles[0], last]))
        assert (again.changed, again.skipped) == (1, {"StatusConflict": 1})
        let_go = await ended(app, await app.bulk.start("unhold", type="add"))
        assert (let_go.changed, let_go.skipped) == (5, {})
        assert not (await app.list(held=True)).items
