"""Items that wait for other items, and dependencies as works (SPEC §7, §17)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.engine.kit import PATIENCE, Barrier, MakeApp, Seen, failure, until
from treadle import (
    Abort,
    Context,
    CycleError,
    GroupFailed,
    InputError,
    NotFound,
    Result,
    Treadle,
    WorkFailed,
    at_least,
    condition_met,
    dependency,
    work,
)
from treadle.events import Released, Succeeded


@work
async def value(n: int) -> int:
    return n


@work
async def bad() -> int:
    raise Abort("bad")


@work
async def total(ctx: Context) -> int:
    """Adds up the results of its dependencies, and skips errors."""
    return sum(
        each for each in await ctx.results(ctx.dependencies, return_exceptions=True) if each in range(99)
    )


# ---------------------------------------------------------------------------------------------------- after


async def test_after_waits_without_polling(make_app: MakeApp) -> None:
    """§7: The item is stored `blocked`, and the settlement of its dependency releases it. The event is
    `Released`."""
    barrier, seen = Barrier(), Seen()

    @work(name="held")
    async def held() -> int:
        await barrier.wait()
        return 4

    # A wake-up starts it. The poll would come long after the end of this test.
    async with make_app(held, total, on_event=seen, poll_interval=30) as app:
        first = await app.enqueue(held())
        last = await app.enqueue(total(), after=first)
        await barrier.reached()
        state = await last.state()
        assert (state.status, state.after) == ("blocked", (first.id,))
        barrier.go.set()
        assert await last.result(PATIENCE) == 4
        assert seen.names(last.id) == ["Queued", "Released", "Started", "Succeeded", "GroupDone"]
        (released,) = seen.of(Released)
        assert (released.id, released.dependencies) == (last.id, (first.id,))


async def test_after_ended_items_it_runs_at_once(make_app: MakeApp) -> None:
    """§7: For works, handles and ids."""
    async with make_app(value, total) as app:
        one = value(1)
        await app.enqueue(one).result(PATIENCE)
        two = await app.enqueue(value(2))
        await two.result(PATIENCE)
        three = await app.enqueue(value(3))
        await three.result(PATIENCE)
        assert await app.enqueue(total(), after=[one, two, three.id]).result(PATIENCE) == 6


async def test_after_unknown_ids_it_waits_until_they_are_submitted(make_app: MakeApp) -> None:
    """§7: `waiting_for` shows the ids."""
    async with make_app(value, total) as app:
        first = value(7)
        last = await app.enqueue(total(), after=[first])
        state = await last.state()
        assert (state.status, state.waiting_for) == ("blocked", (first.id,))
        await app.enqueue(first)
        assert await last.result(PATIENCE) == 7


@pytest.mark.parametrize(
    ("when", "expected"),
    [
        ("all_success", None),
        ("all_done", 3),
        (at_least(2), 3),
        (at_least(3), None),
        (at_least(3, of="done"), 3),
    ],
)
async def test_when_decides_after_two_successes_and_a_death(
    make_app: MakeApp, when: Any, expected: int | None
) -> None:
    """§7."""
    async with make_app(value, bad, total) as app:
        works = [value(1), value(2), bad()]
        last = await app.enqueue(total(), after=works, when=when)
        await app.enqueue_many(works)
        if expected is not None:
            assert await last.result(PATIENCE) == expected
        else:
            error = await failure(last.result(PATIENCE))
            assert (error.reason, error.attempts) == ("unsatisfiable", 0)


async def test_at_least_does_not_wait_for_the_rest(make_app: MakeApp) -> None:
    """§7: `at_least(2)` of three, and the third still runs."""
    barrier = Barrier()

    @work(name="held")
    async def held() -> int:
        await barrier.wait()
        return 50

    async with make_app(value, held, total) as app:
        works = [value(1), value(2), held()]
        last = await app.enqueue(total(), after=works, when=at_least(2))
        await app.enqueue_many(works)
        await barrier.reached()
        assert await last.result(PATIENCE) == 3
        barrier.go.set()


async def test_a_cancelled_dependency_is_done_but_not_a_success(make_app: MakeApp) -> None:
    """§17."""
    async with make_app(value, total) as app:
        first = await app.enqueue(value(1), delay=60)
        done = await app.enqueue(total(), after=first, when="all_done")
        success = await app.enqueue(total(), after=first)
        await first.cancel()
        assert await done.result(PATIENCE) == 0
        assert (await failure(success.result(PATIENCE))).reason == "unsatisfiable"


async def test_cycles_are_refused(make_app: MakeApp) -> None:
    """§7, §17: Among items that are submitted together, and when a later submit closes the cycle."""

    @work(name="chained", options=lambda given: {"after": given["after"]})
    async def chained(after: list[str]) -> None: ...

    app = make_app(chained, value)
    first = value(0)
    second = chained([first.id])
    looped = chained([])
    with pytest.raises(CycleError):
        await app.enqueue(looped, after=[looped.id])
    await app.enqueue(second, after=[first])
    with pytest.raises(CycleError) as caught:
        await app.enqueue(first, after=[second])
    assert set(caught.value.ids) == {first.id, second.id}
    assert await app.get([first.id, looped.id]) == [None, None]
    # Without the dependency it is accepted.
    await app.enqueue(first)


async def test_an_item_waits_for_its_dependency_and_its_delay(make_app: MakeApp) -> None:
    """§7: The delay counts from submit."""
    async with make_app(value, total) as app:
        first = await app.enqueue(value(1))
        await first.result(PATIENCE)
        last = await app.enqueue(total(), after=first, delay=60)
        assert (await last.state()).status == "scheduled"
        await app.trigger(last)
        assert await last.result(PATIENCE) == 1


async def test_one_item_after_100_and_100_after_one(make_app: MakeApp) -> None:
    """§7."""
    async with make_app(value, total) as app:
        works = [value(1) for _ in range(100)]
        middle = total()
        ends = [total() for _ in range(100)]
        handles = await app.enqueue_many(ends, after=middle)
        await app.enqueue(middle, after=works)
        await app.enqueue_many(works)
        async with asyncio.timeout(PATIENCE):
            assert await app.handle(middle.id).result() == 100
            # 100 is beyond what `total` adds up, so each of them gives 0.
            assert [await handle.result() for handle in handles] == [0] * 100


# ----------------------------------------------------------------------------------------------- dependency


async def test_a_dependency_queues_its_works(make_app: MakeApp) -> None:
    """T50, §7: The works join the group of the dependency. They see the items that they waited for."""
    seen = Seen()
    async with make_app(value, total, on_event=seen) as app:
        works = [value(1), value(2)]
        after = total()
        handle = await app.enqueue(dependency(on=works, queue=after), workflow="w")
        assert (await handle.state()).status == "blocked"
        assert await app.get([after.id]) == [None]
        await app.enqueue_many(works)
        assert await handle.group(PATIENCE) == 3
        assert await handle.result(PATIENCE) is None
        state = await app.handle(after.id).state()
        assert (state.parent, state.group_id, state.workflow) == (handle.id, handle.id, "w")
        assert state.after == tuple(each.id for each in works)
        assert len(seen.of(Succeeded, handle.id)) == 1


async def test_a_dependency_that_cannot_be_met_is_dead_at_once(make_app: MakeApp) -> None:
    """A3: Its works are never queued."""
    async with make_app(value, bad) as app:
        never = value(1)
        handle = await app.enqueue(dependency(on=[await app.enqueue(bad())], queue=[never]))
        error = await failure(handle.group(PATIENCE))
        assert isinstance(error, GroupFailed)
        assert error.reason == "unsatisfiable"
        assert await app.get([never.id]) == [None]


async def test_a_dependency_expires_after_its_timeout(make_app: MakeApp) -> None:
    """T50: 30 ms for an unknown id. It is dead, its works are not queued, and its waiter gets an error."""
    async with make_app(value) as app:
        never = value(1)
        handle = await app.enqueue(dependency(on="missing", queue=never, timeout=0.03))
        assert (await failure(handle.group(PATIENCE))).reason == "expired"
        assert await app.get([never.id]) == [None]


async def test_any_worker_can_queue_the_works_of_a_dependency(make_app: MakeApp) -> None:
    """§7: A worker without the types queues the works, with the options that they had at enqueue."""

    @work(name="rare", queue="rare", priority=5, lane="slow")
    async def rare(n: int) -> int:
        return n

    producer = make_app(rare, value)
    async with make_app(value, accept=lambda info: info.type != "treadle.dependency") as opener:
        first, last = value(1), rare(9)
        handle = await producer.enqueue(dependency(on=first, queue=last, when="all_done"))
        await producer.enqueue(first)
        assert await opener.handle(handle.id).result(PATIENCE) is None
        state = await producer.handle(last.id).state()
        assert (state.status, state.queue, state.priority, state.lane) == ("ready", "rare", 5, "slow")
    async with make_app(rare):
        assert await producer.handle(last.id).result(PATIENCE) == 9


async def test_ctx_queue_takes_a_dependency_and_next_refuses_it(make_app: MakeApp) -> None:
    """§7: After `.next` it would wait for something else."""
    first = value(5)

    @work(name="flow")
    async def flow(ctx: Context) -> Result[None, int]:
        return ctx.queue(first, dependency(on=first, queue=total()))

    @work(name="wrong")
    async def wrong(ctx: Context) -> Result[None, int]:
        return ctx.queue(value(1)).next(dependency(on="x", queue=total()))

    async with make_app(flow, wrong, value, total) as app:
        assert await app.enqueue(flow()).group(PATIENCE) == 5
        error = await failure(app.enqueue(wrong()).result(PATIENCE))
        assert error.reason == "bad_result"
        assert "dependency" in error.error


async def test_bad_arguments_of_a_dependency_are_refused_at_once() -> None:
    """§7."""
    with pytest.raises(InputError, match="at_least"):
        dependency(on=["a"], queue=value(1), when=at_least(2))
    with pytest.raises(TypeError, match="dependency"):
        dependency(on=["a"], queue="b")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="after"):
        dependency(on=[None], queue=value(1))  # type: ignore[list-item]


def test_condition_met_truth_table() -> None:
    """T50."""
    assert condition_met("all_success", ["success", "success"])
    assert not condition_met("all_success", ["success", "dead"])
    assert condition_met("all_done", ["success", "dead", "cancelled"])
    assert not condition_met("all_done", ["success", None])
    assert condition_met(at_least(1), ["success", "running"])
    assert not condition_met(at_least(2), ["success", "dead"])
    assert condition_met(at_least(2, of="done"), ["success", "dead"])
    assert condition_met("all_success", [])


async def test_dependencies_do_not_count_as_running(make_app: MakeApp) -> None:
    """§7: They count as blocked."""
    app: Treadle = make_app(value)
    async with app:
        works = [dependency(on=f"missing-{n}", queue=value(n)) for n in range(50)]
        await app.enqueue_many(works)
        assert await app.enqueue(value(1)).result(PATIENCE) == 1
        await until(lambda: not app.active())
        assert [count.count for count in await app.counts() if count.status == "blocked"] == [50]


async def test_after_a_handle_of_what_is_gone_is_not_found(make_app: MakeApp) -> None:
    """A handle names something that was submitted. A Work and an id may come later."""

    @work(name="step")
    async def step() -> None:
        pass

    @work(name="parent")
    async def parent(ctx: Context) -> Result[None, None]:
        return ctx.queue(step(), after=gone)

    async with make_app(step, parent) as app:
        one = step()
        gone = await app.enqueue(one)
        await gone.result(PATIENCE)
        await (await app.enqueue(step(), after=gone)).result(PATIENCE)
        await app.delete(gone)
        with pytest.raises(NotFound, match=gone.id):
            await app.enqueue(step(), after=[gone])
        with pytest.raises(NotFound, match=gone.id):
            await app.enqueue_many([step(), step()], after=gone)
        with pytest.raises(NotFound, match=gone.id):
            await app.enqueue(dependency(on=[gone], queue=step()))
        with pytest.raises(WorkFailed, match=rf"\(not_found\): no item '{gone.id}'"):
            await app.enqueue(parent()).result(PATIENCE)
        for later in (one, one.id):
            assert (await (await app.enqueue(step(), after=later)).state()).status == "blocked"
