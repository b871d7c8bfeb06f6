"""The verbs of an operator (SPEC §11), and dead letters (§5)."""

from __future__ import annotations

import asyncio

import pytest

from tests.engine.kit import PATIENCE, Barrier, MakeApp, Seen, failure, until, until_status
from treadle import (
    Abort,
    AlreadyEnded,
    Context,
    EncodeError,
    NotFound,
    NotTriggerable,
    ReferencedError,
    Result,
    Retry,
    WorkCancelled,
    WorkFailed,
    work,
)
from treadle.errors import ConflictError, InputError
from treadle.events import Cancelled, GroupDone, Succeeded
from treadle.operate import dead_letters


@work
async def value(n: int) -> int:
    return n


@work
async def bad() -> int:
    raise Abort("bad")


# -------------------------------------------------------------------------------------------------- queries


async def test_get_keeps_the_order_and_decodes_results(make_app: MakeApp) -> None:
    """§11, §17: Unknown ids give None."""
    async with make_app(value, bad) as app:
        good, dead = await app.enqueue(value(3)), await app.enqueue(bad())
        await good.result(PATIENCE)
        await failure(dead.result(PATIENCE))
        states = await app.get([dead, "missing", good.id])
        assert [state and (state.status, state.result, state.reason) for state in states] == [
            ("dead", None, "aborted"),
            None,
            ("success", 3, None),
        ]
        state = states[2]
        assert state is not None
        assert state.started_at is not None
        assert state.ended_at is not None
        assert state.queued_at <= state.started_at <= state.ended_at


async def test_group_shows_open_members_value_and_end(make_app: MakeApp) -> None:
    """§11."""

    @work(name="root")
    async def root(ctx: Context) -> Result[None, int]:
        return ctx.queue(value(1), ctx.queue(value(2), delay=60))

    async with make_app(root, value) as app:
        handle = await app.enqueue(root())
        await handle.result(PATIENCE)
        (later,) = (await app.list("scheduled", type=value.name)).items
        await until_status(app, handle.id, "success")
        await app.handle((await app.list(type=value.name, oldest_first=True)).items[0].id).result(PATIENCE)
        group = await app.group(handle.id)
        assert group is not None
        assert (group.open, group.value, group.contributed, group.ended_at) == (1, 1, True, None)
        await app.trigger(later)
        assert await handle.group(PATIENCE) == 2
        group = await app.group(handle.id)
        assert group is not None
        assert (group.open, group.value) == (0, 2)
        assert await app.group(later.id) is None


async def test_workflow_lists_its_items_by_creation(make_app: MakeApp) -> None:
    """§11: Across groups."""

    @work(name="root")
    async def root(ctx: Context) -> Result[None, int]:
        return ctx.queue(child)

    child = value(2)
    async with make_app(root, value) as app:
        first = await app.enqueue(root(), workflow="order-1", workflow_type="order")
        await first.group(PATIENCE)
        second = await app.enqueue(value(3), workflow="order-1")
        await app.enqueue(value(4), workflow="order-2")
        items = await app.workflow("order-1")
        assert [item.id for item in items] == [first.id, child.id, second.id]
        assert [item.workflow_type for item in items] == ["order", "order", None]
        assert await app.workflow("order-9") == []


async def test_list_filters_and_pages_newest_first(make_app: MakeApp) -> None:
    """§11: By status, type, queue, workflow and since."""
    async with make_app(value, bad) as app:
        handles = [await app.enqueue(value(n), queue="bulk") for n in range(5)]
        for handle in handles:
            await handle.result(PATIENCE)
        dead = await app.enqueue(bad(), workflow="w")
        await failure(dead.result(PATIENCE))
        page = await app.list(limit=4)
        assert [item.id for item in page.items] == [dead.id, *(h.id for h in handles[:1:-1])]
        rest = await app.list(limit=4, cursor=page.cursor)
        assert [item.id for item in rest.items] == [handles[1].id, handles[0].id]
        assert rest.cursor is None
        assert [item.result for item in rest.items] == [1, 0]
        assert len((await app.list("success")).items) == 5
        assert len((await app.list(["success", "dead"])).items) == 6
        assert len((await app.list(queue="bulk", type=value.name)).items) == 5
        assert [item.id for item in (await app.list(workflow="w")).items] == [dead.id]
        since = (await handles[3].state()).queued_at
        assert len((await app.list(since=since, type=value.name)).items) == 2


async def test_counts_are_of_the_store_and_active_of_this_worker(make_app: MakeApp) -> None:
    """§4."""
    barrier = Barrier()

    @work(name="held")
    async def held() -> None:
        await barrier.wait()

    async with make_app(held, value) as app:
        handle = await app.enqueue(held())
        await app.enqueue_many([value(n) for n in range(3)], delay=60)
        await barrier.reached()
        assert [lease.id for lease in app.active()] == [handle.id]
        counts = {(each.type, each.status): each.count for each in await app.counts()}
        assert counts == {("held", "running"): 1, (value.name, "scheduled"): 3}
        barrier.go.set()
        await handle.result(PATIENCE)
        ended = {(each.type, each.status): each.count for each in await app.counts(ended=True)}
        assert ended["held", "success"] == 1


# ---------------------------------------------------------------------------------------------------- cancel


async def test_cancel_ends_open_descendants(make_app: MakeApp) -> None:
    """§11, §17: Also those of an ended item. A cancelled item is done, but not a success."""
    barrier, seen = Barrier(), Seen()
    blocked, delayed = value(1), value(2)

    @work(name="held")
    async def held() -> int:
        await barrier.wait()
        return 9

    @work(name="root")
    async def root(ctx: Context) -> Result[None, int]:
        return ctx.queue(ctx.queue(delayed, delay=60), ctx.queue(held()).next(blocked))

    async with make_app(root, held, value, on_event=seen) as app:
        handle = await app.enqueue(root())
        await barrier.reached()
        assert await app.cancel(handle) == 3
        error = await failure(handle.group(PATIENCE))
        assert isinstance(error, WorkCancelled)
        assert (await handle.state()).status == "success"
        for each in (blocked, delayed):
            assert (await app.handle(each.id).state()).status == "cancelled"
        assert len(seen.of(Cancelled)) == 3
        assert len(seen.of(GroupDone)) == 1


async def test_cancel_leaves_ended_items(make_app: MakeApp) -> None:
    """§11: Unknown ids are skipped."""
    async with make_app(value) as app:
        handle = await app.enqueue(value(1))
        await handle.result(PATIENCE)
        assert await app.cancel([handle.id, "missing"]) == 0
        assert (await handle.state()).status == "success"


async def test_a_cancelled_item_never_starts(make_app: MakeApp) -> None:
    """§11: The cancel needs no worker."""
    app = make_app(value)
    handle = await app.enqueue(value(1))
    assert await app.cancel(handle) == 1
    with pytest.raises(WorkCancelled):
        await handle.result(PATIENCE)
    async with app:
        assert (await handle.state()).attempt == 0


# --------------------------------------------------------------------------------------- complete, trigger


async def test_complete_makes_an_item_a_success_without_a_worker(make_app: MakeApp) -> None:
    """§11: The value is the result of the item and of its group. Dependents are released."""
    seen = Seen()
    app = make_app(value, on_event=seen)
    handle = await app.enqueue(value(1), delay=60)
    after = await app.enqueue(value(2), after=handle)
    await app.complete(handle, 42)
    assert await handle.result(PATIENCE) == 42
    assert await handle.group(PATIENCE) == 42
    state = await handle.state()
    assert (state.status, state.worker, state.attempt) == ("success", None, 0)
    assert (await after.state()).status == "ready"
    assert "Released" in seen.names(after.id)
    assert [(event.attempt, event.result) for event in seen.of(Succeeded, handle.id)] == [(0, 42)]
    with pytest.raises(AlreadyEnded):
        await app.complete(handle, 43)
    with pytest.raises(NotFound):
        await app.complete("missing", 1)


async def test_complete_refuses_a_value_that_cannot_be_encoded(make_app: MakeApp) -> None:
    """§14."""
    app = make_app(value)
    handle = await app.enqueue(value(1), delay=60)
    with pytest.raises(EncodeError):
        await app.complete(handle, object())
    assert (await handle.state()).status == "scheduled"


async def test_trigger_runs_scheduled_items_now(make_app: MakeApp) -> None:
    """§11: All or none."""
    async with make_app(value) as app:
        handles = await app.enqueue_many([value(1), value(2)], delay=60)
        ready = await app.enqueue(value(3))
        await ready.result(PATIENCE)
        with pytest.raises(NotTriggerable) as caught:
            await app.trigger([handles[0], ready])
        assert (caught.value.id, caught.value.status) == (ready.id, "success")
        with pytest.raises(NotFound):
            await app.trigger([handles[0], "missing"])
        assert (await handles[0].state()).status == "scheduled"
        await app.trigger(handles)
        assert [await handle.result(PATIENCE) for handle in handles] == [1, 2]


# ---------------------------------------------------------------------------------------------------- delete


async def test_delete_removes_whole_groups(make_app: MakeApp) -> None:
    """§11: It is refused while an item outside waits for a member. `cascade` also deletes the items that
    members wait for."""
    async with make_app(value) as app:
        first = await app.enqueue(value(1))
        await first.result(PATIENCE)
        pending = await app.enqueue(value(2), delay=60)
        waiting = await app.enqueue(value(3), after=[pending])
        with pytest.raises(ReferencedError) as caught:
            await app.delete([first, pending])
        assert caught.value.references == [(pending.id, waiting.id)]
        assert (await first.state()).status == "success"
        assert await app.delete([first, "missing"]) == 1
        assert await app.get([first.id]) == [None]
        with pytest.raises(NotFound):
            await first.result(PATIENCE)
        assert await app.delete(waiting, cascade=True) == 2
        assert await app.get([pending.id, waiting.id]) == [None, None]


async def test_waiters_of_a_deleted_item_get_not_found(make_app: MakeApp) -> None:
    """§11: At once, for the item and for the group, here and in another process."""
    app, other = make_app(value, poll_interval=300), make_app(value, poll_interval=300)
    handle = await app.enqueue(value(1), delay=60)
    elsewhere = other.handle(handle.id)
    await elsewhere.state()
    waits = [
        asyncio.ensure_future(wait()) for each in (handle, elsewhere) for wait in (each.result, each.group)
    ]
    for each in (app, other):
        await until(lambda each=each: each._core.waiters.groups.futures and each._core.waiters.items.futures)  # type: ignore[misc]
    await app.delete(handle)
    for waiting in waits:
        with pytest.raises(NotFound):
            await asyncio.wait_for(waiting, PATIENCE)


# ------------------------------------------------------------------------------------------------------ edit


async def test_edit_puts_work_in_place_of_an_item_that_has_ended(make_app: MakeApp) -> None:
    async with make_app(value, bad) as app:
        dead = await app.enqueue(bad(), priority=3, headers={"for": "ann"})
        await failure(dead.result(PATIENCE))
        new = await app.edit(await dead.state(), value(7))
        assert await new.result(PATIENCE) == 7
        state = await new.state()
        assert (state.parent, state.priority, state.headers) == (dead.id, 3, {"for": "ann"})
        assert (await dead.state()).status == "dead"


async def test_edit_refuses_an_item_that_has_not_ended(make_app: MakeApp) -> None:
    """Both would run."""
    async with make_app(value) as app:
        later = await app.enqueue(value(1), delay=60)
        with pytest.raises(ConflictError, match="is scheduled, and would run beside the new one"):
            await app.edit(await later.state(), value(2))
        assert [item.id for item in (await app.list()).items] == [later.id]


async def test_edit_takes_an_item_as_it_was_read(make_app: MakeApp) -> None:
    async with make_app(value) as app:
        handle = await app.enqueue(value(1))
        await handle.result(PATIENCE)
        for wrong in (handle, handle.id, None):
            with pytest.raises(InputError, match=r"as app\.get returns it"):
                await app.edit(wrong, value(2))  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="takes a Work"):
            await app.edit(await handle.state(), value)  # type: ignore[arg-type]


async def test_edit_of_a_bound_client_knows_only_items_of_its_tenant(make_app: MakeApp) -> None:
    async with make_app(value) as app:
        handle = await app.tenant("acme").enqueue(value(1))
        await handle.result(PATIENCE)
        state = await handle.state()
        with pytest.raises(NotFound):
            await app.tenant("zoo").edit(state, value(2))
        assert (await (await app.edit(state, value(2))).state()).tenant == "acme"


# --------------------------------------------------------------------------------------------- dead letters


async def test_requeue_resets_the_attempt_and_opens_the_group(make_app: MakeApp) -> None:
    """§5, §17: The group is done once per opening."""
    seen = Seen()
    works = [False]

    @work(name="flaky", retry=Retry(attempts=2, base=0))
    async def flaky(ctx: Context) -> int:
        if not works[0]:
            raise OSError("down")
        return ctx.attempt

    async with make_app(flaky, on_event=seen) as app:
        handle = await app.enqueue(flaky())
        await failure(handle.group(PATIENCE))
        works[0] = True
        assert await app.dead.requeue(handle) == 1
        assert await handle.group(PATIENCE) == 1
        assert await app.dead.requeue(handle) == 0
        assert len(seen.of(GroupDone)) == 2


async def test_dead_letters_can_be_requeued_and_deleted_by_filter(make_app: MakeApp) -> None:
    """§5: `dead.list`, `dead.requeue(filter)`, `dead.delete`."""
    works = [False]

    @work(name="flaky")
    async def flaky(n: int) -> int:
        if not works[0]:
            raise Abort("down")
        return n

    async with make_app(flaky, bad) as app:
        flakies = [await app.enqueue(flaky(n)) for n in range(3)]
        other = await app.enqueue(bad())
        for handle in (*flakies, other):
            await failure(handle.result(PATIENCE))
        assert len((await app.dead.list()).items) == 4
        works[0] = True
        assert await app.dead.requeue(type="flaky") == 3
        assert [await handle.result(PATIENCE) for handle in flakies] == [0, 1, 2]
        assert [item.id for item in (await app.dead.list()).items] == [other.id]
        assert await app.dead.delete(other) == 1
        assert await app.get([other.id]) == [None]
        assert await app.dead.delete(flakies[0]) == 0
        assert (await app.dead.list()).items == ()


async def test_requeue_by_filter_requeues_each_item_once(make_app: MakeApp) -> None:
    """§5: Also if an item dies again while others are still to be requeued."""

    @work(name="hopeless")
    async def hopeless(n: int) -> None:
        raise Abort("again")

    async with make_app(hopeless) as app:
        handles = await app.enqueue_many([hopeless(n) for n in range(5)])
        for handle in handles:
            await failure(handle.result(PATIENCE))
        async with asyncio.timeout(PATIENCE):
            assert await app.dead.requeue(type="hopeless") == 5


async def test_a_filter_finds_more_items_than_one_page(
    make_app: MakeApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    """§5: All of them, unless `limit` says fewer."""
    monkeypatch.setattr(dead_letters, "PORTION", 3)
    app = make_app(bad)
    await app.enqueue_many([bad() for _ in range(8)])
    async with app:
        await app.worker.drain()
    assert len((await app.dead.list()).items) == 8
    assert await app.dead.requeue(limit=4) == 4
    assert len((await app.dead.list()).items) == 4
    assert await app.dead.delete(limit=1) == 1
    assert await app.dead.delete(type=bad.name) == 3
    assert (await app.dead.list()).items == ()


async def test_a_filter_finds_one_id_in_several_tenants(make_app: MakeApp) -> None:
    """§5, §12: For an operator of all tenants, each is a separate item."""
    app = make_app(bad)
    one = bad()
    for tenant in ("x", "y"):
        await app.tenant(tenant).enqueue(one)
    async with app:
        await app.worker.drain()
    assert await app.dead.requeue(tenant="y") == 1
    assert [(item.tenant, item.status) for item in (await app.list()).items] == [
        ("y", "ready"),
        ("x", "dead"),
    ]
    async with app:
        await app.worker.drain()
    assert await app.dead.delete() == 2


@pytest.mark.parametrize("alone", [False, True])
async def test_requeuing_a_dependency_revives_its_dependents(make_app: MakeApp, alone: bool) -> None:
    """§17, §18: Those that died `unsatisfiable`, also of other groups. With `alone` they stay dead."""
    works = [False]

    @work(name="flaky")
    async def flaky() -> int:
        if not works[0]:
            raise Abort("down")
        return 1

    async with make_app(flaky, value) as app:
        first = await app.enqueue(flaky())
        after = await app.enqueue(value(2), after=first)
        with pytest.raises(WorkFailed):
            await after.result(PATIENCE)
        works[0] = True
        assert await app.dead.requeue(first, alone=alone) == (1 if alone else 2)
        assert await first.result(PATIENCE) == 1
        if alone:
            assert (await after.state()).reason == "unsatisfiable"
            assert await app.dead.requeue(after) == 1
        assert await after.result(PATIENCE) == 2


# ----------------------------------------------------------------------------------------------------- pause


async def test_pause_stops_one_queue(make_app: MakeApp) -> None:
    """§6: Running items and other queues go on."""
    async with make_app(value) as app:
        await app.pause("bulk")
        held = await app.enqueue(value(1), queue="bulk")
        assert await app.enqueue(value(2)).result(PATIENCE) == 2
        assert (await held.state()).status == "ready"
        await app.resume("bulk")
        assert await held.result(PATIENCE) == 1


@pytest.mark.parametrize("store", ["memory"], indirect=True)
async def test_cancel_of_a_handle_answers_how_many_ended(make_app: MakeApp) -> None:
    @work(name="waits")
    async def waits() -> None: ...

    app = make_app(waits)
    handle, other = await app.enqueue(waits(), delay=60), await app.enqueue(waits(), delay=60)
    assert [await handle.cancel(), await handle.cancel()] == [1, 0]
    await app.close()
    assert await asyncio.to_thread(app.sync.handle(other.id).cancel) == 1
    await asyncio.to_thread(app.sync.close)


@pytest.mark.parametrize("store", ["memory"], indirect=True)
async def test_the_marks_of_dead_items_say_what_died_alike(make_app: MakeApp) -> None:
    """`app.dead.marks()`: one for items that died alike. A tenant sees its own."""

    @work(name="broken", retry=Retry(attempts=1))
    async def broken(kind: str) -> None:
        raise LookupError("nothing there") if kind == "lookup" else OSError("away")

    async with make_app(broken) as app:
        mine = app.tenant("acme")
        handles = [await app.enqueue(broken(kind)) for kind in ("lookup", "lookup", "os")]
        handles.append(await mine.enqueue(broken("os")))
        for each in handles:
            await failure(each.result(PATIENCE))
        marks = {mark.error_type: mark for mark in await app.dead.marks()}
        assert {name: (mark.count, mark.type) for name, mark in marks.items()} == {
            "LookupError": (2, "broken"),
            "OSError": (2, "broken"),
        }
        first, last = await handles[0].state(), await handles[1].state()
        assert (marks["LookupError"].oldest_queued_at, marks["LookupError"].last_at) == (
            first.queued_at,
            max(first.ended_at or 0, last.ended_at or 0),
        )
        (own,) = await mine.dead.marks()
        assert (own.mark, own.count, own.tenant) == (marks["OSError"].mark, 1, "acme")
        assert len(await app.dead.marks(count=1)) == 1
        for wrong in ({"count": 0}, {"cap": True}):
            with pytest.raises(InputError, match="must be a whole number"):
                await app.dead.marks(**wrong)
        assert await app.dead.requeue(mark=own.mark) == 2
