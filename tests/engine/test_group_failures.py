"""Groups that fail: what `group()` raises, and how an operator repairs them (SPEC §17, §18)."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Sequence
from typing import Any

import pytest
from msgspec.structs import replace

from tests.engine.kit import PATIENCE, MakeApp, MakeBackend, Seen, failure, until
from treadle import Abort, Context, GroupFailed, NotFound, Result, UnhandledGroup, WorkFailed, at_least, work
from treadle.errors import Death
from treadle.events import GroupDone
from treadle.item import Ended, GroupState, Ref, Settled, Settlement
from treadle.testing.wrap import WrappedBackend


@work(name="value")
async def value(n: int) -> int:
    return n


@work(name="bad")
async def bad() -> None:
    raise Abort(ValueError("declined"))


@work(name="last")
async def last(ctx: Context) -> Result[int]:
    return ctx.result(7, final=True)


async def test_a_group_with_a_dead_member_fails_although_it_has_a_value(make_app: MakeApp) -> None:
    """§17: `.value` is the value so far, `.failed` the deaths."""

    @work(name="root")
    async def root(ctx: Context) -> Result[None, int]:
        return ctx.queue(value(5)).next(bad()).next(value(9))

    async with make_app(root, bad, value) as app:
        handle = await app.enqueue(root())
        error = await failure(handle.group(PATIENCE))
        assert isinstance(error, GroupFailed)
        assert (error.value, error.group_id) == (5, handle.id)
        assert [(death.type, death.reason) for death in error.failed] == [
            ("bad", "aborted"),
            ("value", "unsatisfiable"),
        ]
        assert error.failed[0] == Death(error.id, "bad", "aborted", "ValueError: declined")
        assert (error.type, error.error, error.error_type, error.attempts) == (
            "bad",
            "declined",
            "ValueError",
            1,
        )
        text = str(error)
        assert all(part in text for part in ("bad", error.id, "declined", "1 that waited", "app.repair("))
        assert await handle.group(PATIENCE, partial=True) == 5
        assert pickle.loads(pickle.dumps(error)).failed == error.failed


async def test_all_ways_to_wait_for_a_failed_group_raise(make_app: MakeApp) -> None:
    """§4, §17: A single dead item is a group too. `result()` raises the same data."""
    async with make_app(bad) as app:
        handle = await app.enqueue(bad())
        own = await failure(handle.result(PATIENCE))
        for wait in (handle, handle.group(PATIENCE), app.handle(handle.id).group(PATIENCE)):
            error = await failure(wait)
            assert isinstance(error, GroupFailed)
            assert (error.id, error.reason, error.error) == (own.id, own.reason, own.error)
            assert [death.id for death in error.failed] == [handle.id]
        assert isinstance(await failure(app.enqueue(bad()).group(PATIENCE)), GroupFailed)
        assert await app.enqueue(bad()).group(PATIENCE, partial=True) is None
        group = await app.group(handle.id)
        assert group is not None
        assert (group.failed, [death.id for death in group.deaths]) == (1, [handle.id])


async def test_a_final_value_wins_over_deaths(make_app: MakeApp) -> None:
    """§17."""

    @work(name="root")
    async def root(ctx: Context) -> Result[None, int]:
        return ctx.queue(last()).next(bad())

    async with make_app(root, bad, last) as app:
        assert await app.enqueue(root()).group(PATIENCE) == 7


@pytest.mark.parametrize("when", ["all_done", at_least(1)])
async def test_a_tolerated_death_does_not_fail_the_group(make_app: MakeApp, when: object) -> None:
    """§17: An item that waits for any end, or for fewer than it names, tolerates deaths."""

    @work(name="root")
    async def root(ctx: Context) -> Result[None, int]:
        return ctx.queue(bad(), value(1)).next(value(2), when=when)  # type: ignore[arg-type]

    async with make_app(root, bad, value) as app:
        handle = await app.enqueue(root())
        assert await handle.group(PATIENCE) in (1, 2)
        assert await app.repair(handle.id) == 0


async def test_repair_runs_the_failed_steps_in_order_and_once(make_app: MakeApp) -> None:
    """§18: The cause is requeued. What waited for it waits again. What has run stays ended."""
    ran: list[str] = []
    broken = [True]

    @work(name="step")
    async def step(name: str) -> str:
        if name == "charge" and broken[0]:
            raise Abort("the bank is down")
        ran.append(name)
        return name

    @work(name="order")
    async def order(ctx: Context) -> Result[None, str]:
        return ctx.queue(step("reserve")).next(step("charge")).next(step("ship")).next(step("email"))

    async with make_app(order, step) as app:
        handle = await app.enqueue(order())
        error = await failure(handle.group(PATIENCE))
        assert isinstance(error, GroupFailed)
        assert (error.value, error.error, ran) == ("reserve", "the bank is down", ["reserve"])
        broken[0] = False
        assert await app.repair(handle.id) == 3
        assert await handle.group(PATIENCE) == "email"
        assert ran == ["reserve", "charge", "ship", "email"]
        assert await app.repair(handle.id) == 0


async def test_repair_leaves_tolerated_deaths(make_app: MakeApp) -> None:
    """§18: They are no causes, at any depth."""
    ran: list[str] = []
    broken = [True]

    @work(name="step")
    async def step(name: str) -> str:
        ran.append(name)
        if name.startswith("tolerated") or (name == "charge" and broken[0]):
            raise Abort("no")
        return name

    @work(name="order")
    async def order(ctx: Context) -> Result[None, str]:
        return (
            ctx.queue(step("tolerated"), step("reserve"))
            .next(ctx.group(ctx.queue(step("tolerated inside"))), when="all_done")
            .next(step("charge"), when="all_done")
        )

    async with make_app(order, step) as app:
        handle = await app.enqueue(order())
        error = await failure(handle.group(PATIENCE))
        assert error.error == "no"
        broken[0] = False
        ran.clear()
        assert await app.repair(handle.id) == 1
        assert await handle.group(PATIENCE) in ("reserve", "charge")
        assert ran == ["charge"]


async def test_repair_runs_a_tolerated_death_again_that_another_member_died_of(make_app: MakeApp) -> None:
    """§18: Its death failed nothing, but the group cannot succeed without it."""
    broken = [True]

    @work(name="load")
    async def load() -> str:
        if broken[0]:
            raise Abort("no")
        return "loaded"

    @work(name="root")
    async def root(ctx: Context) -> Result[None, str | int]:
        return ctx.queue(loading).next(value(2))

    loading = load()
    async with make_app(root, load, value) as app:
        await app.enqueue(value(1), after=[loading], when="all_done")
        handle = await app.enqueue(root())
        error = await failure(handle.group(PATIENCE))
        assert error.reason == "unsatisfiable"
        broken[0] = False
        assert await app.repair(handle.id) == 2
        assert await handle.group(PATIENCE) == 2
        assert await app.repair(handle.id) == 0


async def test_a_requeue_alone_leaves_what_waited(make_app: MakeApp) -> None:
    """§18: `requeue(ids, alone=True)`."""
    broken = [True]

    @work(name="first")
    async def first() -> str:
        if broken[0]:
            raise Abort("no")
        return "first"

    @work(name="root")
    async def root(ctx: Context) -> Result[None, str | int]:
        return ctx.queue(first()).next(value(1))

    async with make_app(root, first, value) as app:
        handle = await app.enqueue(root())
        error = await failure(handle.group(PATIENCE))
        broken[0] = False
        assert await app.requeue(error.id, alone=True) == 1
        assert await app.handle(error.id).result(PATIENCE) == "first"
        again = await failure(handle.group(PATIENCE))
        assert (again.type, again.reason) == ("value", "unsatisfiable")
        assert await app.repair(handle.id) == 1
        assert await handle.group(PATIENCE) == 1


async def test_requeue_opens_cancelled_items_if_asked(make_app: MakeApp) -> None:
    """§17, §18: By id, and by filter."""
    async with make_app(value) as app:
        first, second = await app.enqueue_many([value(1), value(2)], delay=3600)
        await app.cancel([first, second])
        assert await app.requeue([first, second]) == 0
        assert await app.dead.requeue(type="value") == 0
        assert await app.requeue(first, cancelled=True) == 1
        assert await app.dead.requeue(type="value", cancelled=True) == 1
        assert [await each.group(PATIENCE) for each in (first, second)] == [1, 2]


async def test_one_repair_is_enough_after_a_requeue_alone(make_app: MakeApp) -> None:
    """What waited for the item that was requeued alone is open again, beside the cause that is left."""
    fail = True

    @work(name="step")
    async def step(n: int) -> int:
        if fail:
            raise Abort("no")
        return n

    @work(name="chains")
    async def chains(ctx: Context) -> Result[None, int]:
        return ctx.queue(ctx.queue(step(1)).next(step(2)), ctx.queue(step(3)).next(step(4)))

    async with make_app(step, chains) as app:
        handle = await app.enqueue(chains())
        error = await failure(handle.group(PATIENCE))
        fail = False
        await app.requeue(error.id, alone=True)
        await app.handle(error.id).result(PATIENCE)
        assert await app.repair(handle.group_id) == 3
        assert await handle.group(PATIENCE) in (2, 4)


async def test_repair_leaves_a_dead_compensation(make_app: MakeApp) -> None:
    """It would undo what has now succeeded. Its death fails no group."""
    fail = True
    ran: list[str] = []

    @work(name="refund")
    async def refund() -> None:
        if fail:
            raise Abort("no")
        ran.append("refund")

    @work(name="charge", on_dead=refund())
    async def charge() -> str:
        if fail:
            raise Abort("no")
        ran.append("charge")
        return "charged"

    @work(name="order")
    async def order(ctx: Context) -> Result[None, str]:
        return ctx.queue(charge())

    async with make_app(refund, charge, order) as app:
        handle = await app.enqueue(order())
        error = await failure(handle.group(PATIENCE))
        assert (error.type, error.reason) == ("charge", "aborted")
        fail = False
        assert await app.repair(handle.group_id) == 1
        assert await handle.group(PATIENCE) == "charged"
        assert ran == ["charge"]
        assert [item.type for item in (await app.dead.list()).items] == ["refund"]


async def test_repair_of_an_unknown_group_is_not_found(make_app: MakeApp) -> None:
    async with make_app(value) as app:
        handle = await app.enqueue(value(1))
        with pytest.raises(NotFound, match="group"):
            await app.repair("nothing")
        with pytest.raises(NotFound):
            await app.tenant("other").repair(handle.id)
        assert await handle.group(PATIENCE) == 1
        assert await app.repair(handle.id) == 0


def test_the_error_of_a_group_says_what_to_do() -> None:
    deaths = [Death("c", "charge", "exhausted", "OSError: no"), Death("m", "mail", "unsatisfiable", "")]
    error = GroupFailed("c", "charge", "no", "OSError", 3, group_id="g", failed=deaths, count=4)
    assert str(error) == (
        "the group g failed: charge c failed (exhausted, attempt 3): OSError: no (2 more died, 1 that waited "
        "for them did not run). Remove the cause, then run it again with app.repair('g'); or take the value "
        "so far with group(partial=True)"
    )
    assert isinstance(error, WorkFailed)


@pytest.mark.parametrize("how", ["failed", "tolerated", "alone"])
async def test_hooks_are_told_whether_a_group_failed(make_app: MakeApp, how: str) -> None:
    """§18: `GroupDone.failed` and `UnhandledGroup.failed`. The event comes before the answer."""
    seen, infos = Seen(), list[UnhandledGroup]()

    @work(name="dies")
    async def dies() -> None:
        raise Abort("no")

    @work(name="root")
    async def root(ctx: Context) -> Result[None, str]:
        if how == "alone":
            raise Abort("no")
        first = dies()
        if how == "tolerated":
            return ctx.queue(ctx.result("value"), first, ctx.queue(after(), after=first, when="all_done"))
        return ctx.queue(ctx.result("value"), first, dies())

    @work(name="after")
    async def after() -> None: ...

    hooks: dict[str, Any] = {"on_unhandled_group": infos.append, "unhandled_grace": 0.01, "on_event": seen}
    expected = {"failed": 2, "tolerated": 0, "alone": 1}[how]
    async with make_app(root, dies, after, **hooks) as app:
        handle = await app.enqueue(root())
        if expected:
            await failure(handle.group(PATIENCE))
        else:
            await handle.group(PATIENCE)
        assert [event.failed for event in seen.of(GroupDone, handle.id)] == [expected]
        if how != "alone":
            await app.enqueue(root())
            await until(lambda: len(infos) == 1)
    assert [info.failed for info in infos] == ([] if how == "alone" else [expected])


class SilentBackend(WrappedBackend):
    """Does not say whether a group failed. Who asks for it is answered after a waiter has read that the group
    has ended, and could have gone on."""

    def __init__(self, inner: Any) -> None:
        super().__init__(inner)
        self.was_read = asyncio.Event()

    async def settle(self, settlements: Sequence[Settlement]) -> Settled:
        settled = await super().settle(settlements)
        groups = tuple(replace(group, failed=None) for group in settled.effects.ended_groups)
        return replace(settled, effects=replace(settled.effects, ended_groups=groups))

    async def group(self, ids: Sequence[str], *, tenant: str | None = None) -> Sequence[GroupState | None]:
        async with asyncio.timeout(PATIENCE):
            await self.was_read.wait()
        for _ in range(20):
            await asyncio.sleep(0)
        return await super().group(ids, tenant=tenant)

    async def ended(self, items: Sequence[Ref], groups: Sequence[Ref]) -> Ended:
        found = await super().ended(items, groups)
        if found.groups:
            self.was_read.set()
        return found


async def test_a_waiter_that_reads_an_ended_group_hears_of_it_after_its_event(
    make_app: MakeApp, store: MakeBackend
) -> None:
    """The event has to be completed from the store first. The waiter was woken meanwhile."""
    seen = Seen()

    @work(name="dies")
    async def dies() -> None:
        raise Abort("no")

    @work(name="root")
    async def root(ctx: Context) -> Result[None, str]:
        return ctx.queue(ctx.result("value"), dies())

    async with make_app(root, dies, backend=SilentBackend(store()), on_event=seen) as app:
        handle = await app.enqueue(root())
        await failure(handle.group(PATIENCE))
        assert [event.failed for event in seen.of(GroupDone, handle.id)] == [1]
