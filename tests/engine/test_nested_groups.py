"""Groups in groups, and waiting for whole groups (SPEC §18)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.engine.kit import PATIENCE, Barrier, Errors, MakeApp, Seen, failure, until_status
from treadle import (
    Abort,
    AlreadyEnded,
    Context,
    CycleError,
    GroupFailed,
    GroupRef,
    NotFound,
    Result,
    Treadle,
    UnhandledGroup,
    UnsupportedError,
    WorkFailed,
    dependency,
    group,
    work,
)
from treadle.codec import JsonCodec
from treadle.engine.run import built_in
from treadle.errors import ConflictError, DecodeError, StrictReturnError
from treadle.events import GroupDone, Released, Succeeded
from treadle.item import GROUP_TYPE
from treadle.ports import PortsBackend, memory_pubsub, memory_queue, memory_store
from treadle.testing import Faults


@work(name="value")
async def value(n: int) -> int:
    return n


@work(name="total")
async def total(ctx: Context) -> int:
    """The value of the group before it."""
    (found,) = await ctx.results(ctx.dependencies)
    return found


@work(name="plus")
async def plus(ctx: Context, n: int) -> Result[int]:
    return ctx.result(n, append=lambda old: (old or 0) + n)


@work(name="page")
async def page(ctx: Context, depth: int) -> Result[int | None, int]:
    """Count itself, and queue the pages below it."""
    below = [page(depth - 1) for _ in range(2)] if depth else []
    return ctx.queue(ctx.result(1, append=lambda old: (old or 0) + 1), below)


async def test_next_after_a_group_waits_for_everything_in_it(make_app: MakeApp) -> None:
    """At any depth. `ctx.results(ctx.dependencies)` is the value of the group."""

    @work(name="crawl")
    async def crawl(ctx: Context) -> Result[None, int]:
        return ctx.group(page(3)).next(total())

    async with make_app(crawl, page, total) as app:
        handle = await app.enqueue(crawl())
        assert await handle.group(PATIENCE) == 15
        pages = (await app.list(type="page")).items
        assert len({item.group_id for item in pages}) == 1
        nested = await app.group(pages[0].group_id)
        assert nested is not None
        assert (nested.value, nested.open, nested.outer, nested.failed) == (15, 0, handle.id, 0)
        assert pages[0].group_id != handle.id
        (state,) = await app.get([pages[0].group_id])
        assert state is not None
        assert (state.type, state.status, state.result, state.group_id) == (
            "treadle.group",
            "success",
            15,
            handle.id,
        )


async def test_the_value_of_a_group_is_contributed_to_the_group_around_it(make_app: MakeApp) -> None:
    """A group to which no member contributed has the value None, and contributes nothing."""

    @work(name="root")
    async def root(ctx: Context, silent: bool) -> Result[None, int]:
        first = ctx.queue(value(1))
        return first.next(ctx.group(nothing() if silent else value(2)))

    @work(name="nothing")
    async def nothing() -> None: ...

    async with make_app(root, value, nothing) as app:
        assert await app.enqueue(root(False)).group(PATIENCE) == 2
        assert await app.enqueue(root(True)).group(PATIENCE) == 1


async def test_works_after_a_group_take_its_value(make_app: MakeApp) -> None:
    """It is not contributed to the group around it, so folds of several groups there are exact."""

    @work(name="count")
    async def count(ctx: Context) -> Result[int]:
        (below,) = await ctx.results(ctx.dependencies)
        return ctx.result(below + 1, append=lambda old: (old or 0) + below + 1)

    @work(name="tree")
    async def tree(ctx: Context, depth: int) -> Result[None, int]:
        if not depth:
            return ctx.queue(plus(1))
        return ctx.group([tree(depth - 1) for _ in range(3)]).next(count())

    seen = Seen()
    async with make_app(tree, plus, count, on_event=seen) as app:
        handle = await app.enqueue(tree(3))
        assert await handle.group(PATIENCE) == 27 + 9 + 3 + 1
        done = [event.id for event in seen.of(GroupDone)]
        assert len(done) == len(set(done)) == 1 + 13
        assert done[-1] == handle.id


async def test_groups_nest_in_one_result(make_app: MakeApp) -> None:
    @work(name="root")
    async def root(ctx: Context) -> Result[None, int]:
        inner = ctx.group(plus(1), plus(2)).next(total())
        return ctx.group(inner, ctx.group(ctx.group(value(9)))).next(total())

    async with make_app(root, plus, total, value) as app:
        handle = await app.enqueue(root())
        assert await handle.group(PATIENCE) in (3, 9)
        closing = (await app.list(type="treadle.group")).items
        states = [await app.group(item.id) for item in closing]
        assert sorted(item.result for item in closing) in ([3, 3, 9, 9], [3, 9, 9, 9])
        outer = [state.outer for state in states if state is not None]
        assert outer.count(handle.id) == 1
        assert {item.group_id for item in closing} == set(outer)


async def test_an_empty_group_queues_nothing(make_app: MakeApp) -> None:
    """`.next` after it runs at once."""

    @work(name="root")
    async def root(ctx: Context) -> Result[None, int]:
        return ctx.group([]).next(value(3))

    async with make_app(root, value) as app:
        assert await app.enqueue(root()).group(PATIENCE) == 3
        assert not (await app.list(type="treadle.group")).items


async def test_options_of_a_group_apply_to_its_works(make_app: MakeApp) -> None:
    @work(name="root")
    async def root(ctx: Context) -> Result[None, int]:
        return ctx.group(value(1), priority=7, lane="l").next(value(2))

    async with make_app(root, value) as app:
        await app.enqueue(root()).group(PATIENCE)
        found = {item.result: (item.priority, item.lane) for item in (await app.list(type="value")).items}
        assert found == {1: (7, "l"), 2: (0, "")}


async def test_a_group_that_is_not_returned_is_an_error(make_app: MakeApp) -> None:
    """§2: Strict return."""

    @work(name="root")
    async def root(ctx: Context) -> None:
        ctx.group(value(1))

    async with make_app(root, value) as app:
        error = await failure(app.enqueue(root()).result(PATIENCE))
        assert (error.reason, error.error_type) == ("bad_result", StrictReturnError.__name__)


async def test_a_keyed_work_in_a_group_is_waited_for(make_app: MakeApp) -> None:
    """§17: The earlier item does not join the group, and is waited for all the same."""
    barrier = Barrier()

    @work(name="held")
    async def held() -> int:
        await barrier.wait()
        return 1

    @work(name="root")
    async def root(ctx: Context) -> Result[None, int]:
        return ctx.group(held(), key="k").next(value(9))

    async with make_app(root, held, value) as app:
        first = await app.enqueue(held(), key="k")
        await barrier.reached()
        handle = await app.enqueue(root())
        await handle.result(PATIENCE)
        assert (await app.list("blocked", type="value")).items
        barrier.go.set()
        assert await handle.group(PATIENCE) == 9
        assert (await first.state()).group_id == first.id


# ------------------------------------------------------------------------------------------------- failures


class Switch:
    """Whether a step fails."""

    def __init__(self) -> None:
        self.broken = True
        self.ran: list[str] = []


def step_of(switch: Switch) -> Any:
    @work(name="step")
    async def step(name: str, fragile: bool = False) -> str:
        if fragile and switch.broken:
            raise Abort(OSError(f"{name} is broken"))
        switch.ran.append(name)
        return name

    return step


async def test_a_nested_group_that_fails_fails_what_waits_for_it(make_app: MakeApp) -> None:
    """`GroupFailed` names the deaths inside, at any depth. `repair` runs them and what waited, in order and
    once."""
    switch = Switch()
    step = step_of(switch)

    @work(name="inner")
    async def inner(ctx: Context) -> Result[None, str]:
        return ctx.group(step("fetch", fragile=True)).next(step("parse"))

    @work(name="root")
    async def root(ctx: Context) -> Result[None, str]:
        return ctx.group(inner(), step("other")).next(step("index"))

    async with make_app(root, inner, step) as app:
        handle = await app.enqueue(root())
        error = await failure(handle.group(PATIENCE))
        assert isinstance(error, GroupFailed)
        assert (error.type, error.reason, error.error) == ("step", "aborted", "fetch is broken")
        assert {death.reason for death in error.failed[1:]} == {"unsatisfiable"}
        assert not [death for death in error.failed if death.type == "treadle.group"]
        assert f"app.repair('{handle.id}')" in str(error)
        assert switch.ran == ["other"]
        switch.broken = False
        assert await app.repair(handle.id) == 5  # fetch, parse, index, and two items that close groups
        assert await handle.group(PATIENCE) == "index"
        assert switch.ran == ["other", "fetch", "parse", "index"]
        assert await app.repair(handle.id) == 0


async def test_a_step_that_tolerates_it_sees_how_a_nested_group_failed(make_app: MakeApp) -> None:
    """`ctx.results` raises GroupFailed, or returns it."""
    switch = Switch()
    step = step_of(switch)
    seen: list[Any] = []

    @work(name="report")
    async def report(ctx: Context) -> str:
        seen.extend(await ctx.results(ctx.dependencies, return_exceptions=True))
        with pytest.raises(GroupFailed):
            await ctx.results(ctx.dependencies)
        return "reported"

    @work(name="root")
    async def root(ctx: Context) -> Result[None, str]:
        return ctx.group(ctx.queue(step("first")).next(step("second", fragile=True))).next(
            report(), when="all_done"
        )

    async with make_app(root, step, report) as app:
        handle = await app.enqueue(root())
        assert await handle.group(PATIENCE) == "reported"
        assert await app.repair(handle.id) == 0
    (error,) = seen
    assert isinstance(error, GroupFailed)
    assert (error.error, error.value) == ("second is broken", "first")


async def test_cancelling_the_root_cancels_what_is_nested(make_app: MakeApp) -> None:
    barrier = Barrier()

    @work(name="held")
    async def held() -> None:
        await barrier.wait()

    @work(name="root")
    async def root(ctx: Context) -> Result[None, None]:
        return ctx.group(held()).next(held())

    async with make_app(root, held) as app:
        handle = await app.enqueue(root())
        await barrier.reached()
        await handle.cancel()
        with pytest.raises(WorkFailed):
            await handle.group(PATIENCE)
        assert {item.status for item in (await app.list(type="held")).items} == {"cancelled"}


async def test_a_closing_item_is_cancelled_with_its_group_and_not_completed_before_it(
    make_app: MakeApp,
) -> None:
    """Completed, it would end the outer group while members of the nested group still run."""
    barrier = Barrier()

    @work(name="held")
    async def held() -> None:
        await barrier.wait()

    @work(name="root")
    async def root(ctx: Context) -> Result[None, None]:
        return ctx.group(held())

    async with make_app(root, held) as app:
        handle = await app.enqueue(root())
        await barrier.reached()
        (closing,) = (await app.list(type=GROUP_TYPE)).items
        with pytest.raises(ConflictError, match="still open: complete or cancel its members"):
            await app.complete(closing.id, 1)
        assert [item.status for item in await app.get([closing.id]) if item is not None] == ["blocked"]
        assert await app.cancel(closing.id) == 2
        with pytest.raises(AlreadyEnded):
            await app.complete(closing.id, 1)
        assert {item.status for item in (await app.list(type="held")).items} == {"cancelled"}
        found = await app.group(handle.id)
        assert found is not None
        assert found.open == 0


async def test_a_closing_item_may_be_completed_once_its_group_has_ended(make_app: MakeApp) -> None:
    """It waits in a queue that is paused."""
    barrier = Barrier()

    @work(name="held")
    async def held() -> int:
        await barrier.wait()
        return 3

    @work(name="root")
    async def root(ctx: Context) -> Result[int | None, int]:
        return ctx.group(held())

    async with make_app(root, held) as app:
        handle = await app.enqueue(root())
        await barrier.reached()
        (closing,) = (await app.list(type=GROUP_TYPE)).items
        await app.pause(closing.queue)
        barrier.go.set()
        await until_status(app, closing.id, "ready")
        await app.complete(closing.id, 5)
        assert await handle.group(PATIENCE) == 5


# ----------------------------------------------------------------------------------------- waiting for groups


async def test_an_item_waits_for_a_whole_group(make_app: MakeApp) -> None:
    """`after=[group(handle)]`: by handle, by Work and by id. `ctx.dependencies` has a GroupRef."""
    barrier, dependencies = Barrier(), list[object]()

    @work(name="leaf")
    async def leaf() -> int:
        await barrier.wait()
        return 5

    @work(name="root")
    async def root(ctx: Context) -> Result[None, int]:
        return ctx.queue(leaf())

    @work(name="report")
    async def report(ctx: Context) -> list[int]:
        dependencies.extend(ctx.dependencies)
        states = await ctx.states(ctx.dependencies)
        assert [state and (state.status, state.result) for state in states] == [("success", 5)]
        return await ctx.results(ctx.dependencies)

    seen = Seen()
    async with make_app(root, leaf, report, on_event=seen) as app:
        handle = await app.enqueue(root())
        waiting = [
            await app.enqueue(report(), after=[group(handle)]),
            await app.enqueue(report(), after=group(handle.id)),
        ]
        await handle.result(PATIENCE)
        await barrier.reached()
        assert {(await each.state()).status for each in waiting} == {"blocked"}
        assert (await waiting[0].state()).after == (handle.id,)
        barrier.go.set()
        assert [await each.result(PATIENCE) for each in waiting] == [[5], [5]]
        later = root()
        ahead = await app.enqueue(report(), after=[group(later)])
        assert (await ahead.state()).waiting_for == (later.id,)
        await app.enqueue(later)
        assert await ahead.result(PATIENCE) == [5]
    assert {type(each) for each in dependencies} == {GroupRef}
    assert {type(each) for each in seen.of(Released, ahead.id)[0].dependencies} == {GroupRef}


async def test_a_group_can_wait_for_a_group(make_app: MakeApp) -> None:
    """In `ctx.queue`, and in `dependency(on=...)`."""
    order: list[str] = []

    @work(name="leaf")
    async def leaf(name: str) -> str:
        order.append(name)
        return name

    @work(name="root")
    async def root(ctx: Context, name: str) -> Result[None, str]:
        return ctx.queue(leaf(f"{name}1")).next(leaf(f"{name}2"))

    @work(name="late")
    async def late(ctx: Context, before: str) -> Result[None, str]:
        return ctx.queue(leaf("c"), after=[group(before)])

    async with make_app(root, leaf, late) as app:
        first = await app.enqueue(root("a"))
        second = await app.enqueue(root("b"), after=[group(first)])
        third = await app.enqueue(late(second.group_id), after=[group(first)])
        last = await app.enqueue(dependency(on=[group(third)], queue=leaf("d")))
        assert await last.group(PATIENCE) == "d"
    assert order == ["a1", "a2", "b1", "b2", "c", "d"]


async def test_an_item_that_waits_for_a_failed_group_dies_and_is_repaired(make_app: MakeApp) -> None:
    """A group that fails counts as a dead prerequisite."""
    switch = Switch()
    step = step_of(switch)

    @work(name="root")
    async def root(ctx: Context) -> Result[None, str]:
        return ctx.queue(step("first", fragile=True))

    async with make_app(root, step) as app:
        handle = await app.enqueue(root())
        waiting = await app.enqueue(step("second"), after=[group(handle)])
        assert (await failure(waiting.result(PATIENCE))).reason == "unsatisfiable"
        tolerant = await app.enqueue(step("third"), after=[group(handle)], when="all_done")
        assert await tolerant.result(PATIENCE) == "third"
        switch.broken = False
        assert await app.repair(handle.id) == 2
        assert await waiting.result(PATIENCE) == "second"
    assert switch.ran == ["third", "first", "second"]


async def test_a_group_with_a_cancelled_member_is_no_success(make_app: MakeApp) -> None:
    """§17: Cancelled counts as done, not as success. A requeue of the member brings back what waited."""
    statuses: list[str | None] = []

    @work(name="report")
    async def report(ctx: Context) -> str:
        statuses.extend(state and state.status for state in await ctx.states(ctx.dependencies))
        return "reported"

    @work(name="root")
    async def root(ctx: Context) -> Result[None, int]:
        return ctx.group(value(1), delay=3600).next(value(3))

    async with make_app(root, value, report) as app:
        handle = await app.enqueue(root())
        await app.handle(handle.id).result(PATIENCE)
        (later,) = (await app.list("scheduled")).items
        waiting = await app.enqueue(value(4), after=[group(later.group_id)])
        tolerant = await app.enqueue(report(), after=[group(later.group_id)], when="all_done")
        await app.cancel(later.id)
        assert await tolerant.result(PATIENCE) == "reported"
        assert statuses == ["cancelled"]
        assert (await failure(waiting.result(PATIENCE))).reason == "unsatisfiable"
        error = await failure(handle.group(PATIENCE))
        assert isinstance(error, GroupFailed)
        assert await app.repair(handle.id) == 0
        assert await app.requeue(later.id, cancelled=True) == 4
        assert await waiting.result(PATIENCE) == 4
        assert await handle.group(PATIENCE) == 3


async def test_dead_items_are_deleted_with_the_groups_around_them(make_app: MakeApp) -> None:
    """§5: By id and by filter. Nothing is left that cannot be repaired."""
    step = step_of(Switch())

    @work(name="root")
    async def root(ctx: Context) -> Result[None, str]:
        inner = ctx.group(step("inner", fragile=True))
        return ctx.group(ctx.queue(step("outer")), inner).next(step("last"))

    async with make_app(root, step) as app:
        for by_filter in (False, True):
            handle = await app.enqueue(root())
            await failure(handle.group(PATIENCE))
            dead = (await app.dead.list(type="step", reason="aborted")).items
            assert len(dead) == 1
            if by_filter:
                assert await app.dead.delete(type="step", reason="aborted") == 6
            else:
                assert await app.dead.delete(dead[0].id) == 6
            assert (await app.list()).items == ()


async def test_a_group_shows_its_deaths_as_items_are_shown(make_app: MakeApp) -> None:
    """The names of groups in `after` are `GroupRef`s."""
    step = step_of(Switch())

    @work(name="root")
    async def root(ctx: Context) -> Result[None, str]:
        return ctx.group(step("first", fragile=True)).next(step("last"))

    async with make_app(root, step) as app:
        handle = await app.enqueue(root())
        await failure(handle.group(PATIENCE))
        found = await app.group(handle.id)
        assert found is not None
        closing = found.deaths[0]
        assert (closing.type, closing.after) == ("treadle.group", (group(closing.id),))
        assert isinstance(closing.after[0], GroupRef)
        waiting = await app.enqueue(step("never"), after=[group("unknown")])
        await app.cancel(waiting)
        alone = await app.group(waiting.id)
        assert alone is not None
        assert alone.cancelled is not None
        assert alone.cancelled.after == (group("unknown"),)


async def test_a_handle_of_a_group_that_is_gone_is_not_found(make_app: MakeApp) -> None:
    async with make_app(value) as app:
        handle = await app.enqueue(value(1))
        await handle.result(PATIENCE)
        await app.delete(handle.id)
        with pytest.raises(NotFound, match="no group"):
            await app.enqueue(value(2), after=[group(handle)])


async def test_a_cycle_through_a_group_is_refused(make_app: MakeApp) -> None:
    """A group waits for its members."""

    @work(name="root")
    async def root(ctx: Context, other: str) -> Result[None, int]:
        return ctx.queue(value(1), after=[other])

    async with make_app(root, value) as app:
        ahead = value(2)
        handle = await app.enqueue(root(ahead.id))
        await handle.result(PATIENCE)
        with pytest.raises(CycleError) as caught:
            await app.enqueue(ahead, after=[group(handle)])
        assert ahead.id in caught.value.ids
        assert all(each.isprintable() for each in caught.value.ids)
        assert await app.enqueue(value(3)).result(PATIENCE) == 3
        await handle.cancel()


async def test_an_item_cannot_wait_for_its_own_group(make_app: MakeApp) -> None:
    @work(name="root")
    async def root(ctx: Context) -> Result[None, int]:
        return ctx.queue(value(1), after=[group(ctx.group_id)])

    async with make_app(root, value) as app:
        error = await failure(app.enqueue(root()).result(PATIENCE))
        assert (error.reason, "cycle" in error.error) == ("bad_result", True)


# --------------------------------------------------------------------------------------------------- workers


async def test_any_worker_closes_a_group(make_app: MakeApp) -> None:
    """Without its types, and by `claim_one`. The events of an item that closes a group are those of any
    item."""

    @work(name="root")
    async def root(ctx: Context) -> Result[None, int]:
        return ctx.group(value(4)).next(total())

    seen, client = Seen(), make_app(root, value, total)
    handle = await client.enqueue(root())
    async with make_app(root) as first:
        await first.handle(handle.id).result(PATIENCE)
    async with make_app(value) as second:
        (item,) = (await second.list(type="value")).items
        await second.handle(item.id).result(PATIENCE)
        await until_status(second, item.group_id, "success")
    lease = await client.claim_one(types=[total])
    assert lease is not None
    await lease.complete(4)
    assert await client.handle(handle.id).group(PATIENCE) == 4
    other = await client.enqueue(root())
    async with make_app(root, total, on_event=seen) as third:
        await third.handle(other.id).result(PATIENCE)
    claimed = await client.claim_one(types=[value])
    assert claimed is not None
    await claimed.complete(6)
    last = await client.claim_one()  # it closes the group first
    assert last is not None
    assert last.type == "total"
    await last.complete(6)
    assert await client.handle(other.id).group(PATIENCE) == 6


async def test_a_group_that_cannot_be_read_is_closed_later(
    make_faulty: MakeApp, faults: Faults, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lease is given back. The item that closes the group has lost nothing."""
    monkeypatch.setattr(built_in, "UNREAD_DELAY", 0.05)

    @work(name="root")
    async def root(ctx: Context) -> Result[None, int]:
        return ctx.group(value(4)).next(total())

    fault = faults.fail("group")
    async with make_faulty(root, value, total) as app:
        assert await app.enqueue(root()).group(PATIENCE) == 4
    assert fault.hits == 1


async def test_events_of_a_group_show_its_value(make_app: MakeApp) -> None:
    @work(name="root")
    async def root(ctx: Context) -> Result[None, int]:
        return ctx.group(value(4)).next(total())

    seen = Seen()
    async with make_app(root, value, total, on_event=seen) as app:
        await app.enqueue(root()).group(PATIENCE)
        (closing,) = (await app.list(type="treadle.group")).items
    assert seen.names(closing.id) == ["Queued", "Released", "Succeeded", "GroupDone"] or seen.names(
        closing.id
    ) == ["Queued", "Released", "GroupDone", "Succeeded"]
    assert seen.of(Succeeded, closing.id)[0].result == 4
    assert seen.of(GroupDone, closing.id)[0].result == 4


async def test_on_unhandled_group_is_not_called_for_nested_groups(make_app: MakeApp) -> None:
    called: list[UnhandledGroup] = []
    done = asyncio.Event()

    def unhandled(info: UnhandledGroup) -> None:
        called.append(info)
        done.set()

    @work(name="root")
    async def root(ctx: Context) -> Result[None, int]:
        return ctx.group(ctx.group(value(4))).next(total())

    async with make_app(root, value, total, on_unhandled_group=unhandled, unhandled_grace=0.01) as app:
        handle = await app.enqueue(root())
        async with asyncio.timeout(PATIENCE):
            await done.wait()
    assert [info.group_id for info in called] == [handle.id]


@pytest.mark.every_store
async def test_a_transaction_can_queue_a_group(make_app: MakeApp) -> None:
    """§9: The group is stored with the commit. The values of groups can be read inside."""

    @work(name="root")
    async def root(ctx: Context, before: str) -> Result[None, int]:
        async with ctx.transaction():
            assert await ctx.results([group(before)]) == [1]
        return ctx.group(value(4)).next(total())

    async with make_app(root, value, total) as app:
        if "transactions" not in app.backend.capabilities:
            pytest.skip("memory has no transactions")
        before = await app.enqueue(value(1))
        await before.result(PATIENCE)
        assert await app.enqueue(root(before.id)).group(PATIENCE) == 4


async def test_a_backend_without_nested_groups_says_so() -> None:
    """Before anything is stored."""

    @work(name="root")
    async def root(ctx: Context) -> Result[None, int]:
        return ctx.group(value(1))

    ports = PortsBackend(queue=memory_queue(), pubsub=memory_pubsub(), store=memory_store())
    async with Treadle(ports, work=[root, value]) as app:
        handle = await app.enqueue(value(1))
        with pytest.raises(UnsupportedError, match=r"groups in groups: .* needs it; use ctx\.queue"):
            await app.enqueue(value(2), after=[group(handle)])
        error = await failure(app.enqueue(root()).result(PATIENCE))
        assert (error.reason, error.error_type) == ("bad_result", "UnsupportedError")
        assert "use ctx.queue" in error.error


class WriteOnly(JsonCodec):
    """It cannot read the text that it writes."""

    __slots__ = ()

    def decode(self, data: bytes) -> Any:
        if data.startswith(b'"'):
            raise ValueError("cannot be read")
        return super().decode(data)


@pytest.mark.parametrize("how", ["worker", "claim_one"])
@pytest.mark.parametrize("listened", [False, True])
async def test_a_value_that_cannot_be_read_ends_its_group_all_the_same(
    make_app: MakeApp, listened: bool, how: str
) -> None:
    """Whether events are listened to makes no difference. They show None, and the error is reported."""
    codec, errors, seen = WriteOnly(), Errors(), Seen()

    @work(name="text", queue="texts", codec=codec)
    async def text(n: int) -> str:
        return "text"

    @work(name="root")
    async def root(ctx: Context) -> Result[None, str]:
        return ctx.group(text(4))

    settings: dict[str, Any] = {"on_error": errors, "on_event": seen if listened else None}
    app = make_app(root, text, queues=None if how == "worker" else ["default"], **settings)
    await app.start()
    handle = await app.enqueue(root())
    await handle.result(PATIENCE)
    (closing,) = (await app.list(type="treadle.group")).items
    if how == "claim_one":
        await app.stop()
        app = make_app(root, text, **settings)
        lease = await app.claim_one(queues=["texts"])
        assert lease is not None
        await lease.complete("text")
        assert await app.claim_one() is None
    assert (await until_status(app, closing.id, "success", "dead")).status == "success"
    if listened:
        assert (await seen.until(Succeeded, closing.id)).result is None
    assert {type(error) for error in errors.of("hook")} == ({DecodeError} if listened else set())
