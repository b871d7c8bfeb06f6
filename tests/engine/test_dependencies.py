"""Items that wait for others, and gates as works of their own (SPEC §7, §17)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.engine.kit import PATIENCE, Gate, MakeApp, Seen, failure, until
from treadle import (
    Abort,
    Context,
    CycleError,
    GroupFailed,
    InputError,
    Result,
    Treadle,
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
    return sum(
        each for each in await ctx.results(ctx.dependencies, return_exceptions=True) if each in range(99)
    )


# ---------------------------------------------------------------------------------------------------- after


async def test_after_waits_without_polling(make_app: MakeApp) -> None:
    """§7: stored `blocked`, released by the settlement that satisfies it; `Released` says so."""
    gate, seen = Gate(), Seen()

    @work(name="held")
    async def held() -> int:
        await gate.passing()
        return 4

    # It is woken, not polled: a poll would come much later than this test ends.
    async with make_app(held, total, on_event=seen, poll_interval=30) as app:
        first = await app.enqueue(held())
        last = await app.enqueue(total(), after=first)
        await gate.reached()
        state = await last.state()
        assert (state.status, state.after) == ("blocked", (first.id,))
        gate.go.set()
        assert await last.result(PATIENCE) == 4
        assert seen.names(last.id) == ["Queued", "Released", "Started", "Succeeded", "GroupDone"]
        (released,) = seen.of(Released)
        assert (released.id, released.dependencies) == (last.id, (first.id,))


async def test_after_what_has_ended_runs_at_once(make_app: MakeApp) -> None:
    """§7: works, handles and ids."""
    async with make_app(value, total) as app:
        one = value(1)
        await app.enqueue(one).result(PATIENCE)
        two = await app.enqueue(value(2))
        await two.result(PATIENCE)
        three = await app.enqueue(value(3))
        await three.result(PATIENCE)
        assert await app.enqueue(total(), after=[one, two, three.id]).result(PATIENCE) == 6


async def test_after_ids_that_are_not_yet_submitted(make_app: MakeApp) -> None:
    """§7: it waits, is shown, and goes on when they come."""
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
async def test_conditions(make_app: MakeApp, when: Any, expected: int | None) -> None:
    """§7: of two successes and a death."""
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
    """§7: `at_least(2)` of three, the third still running."""
    gate = Gate()

    @work(name="held")
    async def held() -> int:
        await gate.passing()
        return 50

    async with make_app(value, held, total) as app:
        works = [value(1), value(2), held()]
        last = await app.enqueue(total(), after=works, when=at_least(2))
        await app.enqueue_many(works)
        await gate.reached()
        assert await last.result(PATIENCE) == 3
        gate.go.set()


async def test_a_cancelled_one_is_done_and_no_success(make_app: MakeApp) -> None:
    """§17."""
    async with make_app(value, total) as app:
        first = await app.enqueue(value(1), delay=60)
        done = await app.enqueue(total(), after=first, when="all_done")
        success = await app.enqueue(total(), after=first)
        await first.cancel()
        assert await done.result(PATIENCE) == 0
        assert (await failure(success.result(PATIENCE))).reason == "unsatisfiable"


async def test_cycles_are_refused(make_app: MakeApp) -> None:
    """§7, §17: among items submitted together, and by a later submit that closes one."""

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
    # Without the wait it is welcome.
    await app.enqueue(first)


async def test_delay_counts_from_submit(make_app: MakeApp) -> None:
    """§7: both must hold: what it waits for, and its time."""
    async with make_app(value, total) as app:
        first = await app.enqueue(value(1))
        await first.result(PATIENCE)
        last = await app.enqueue(total(), after=first, delay=60)
        assert (await last.state()).status == "scheduled"
        await app.trigger(last)
        assert await last.result(PATIENCE) == 1


async def test_many_to_one_and_one_to_many(make_app: MakeApp) -> None:
    """§7: 100 before one, and 100 after that."""
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
    """T50, §7: a gate as a Work of its own; the works join its group, and see what they waited for."""
    seen = Seen()
    async with make_app(value, total, on_event=seen) as app:
        works = [value(1), value(2)]
        after = total()
        gate = await app.enqueue(dependency(on=works, queue=after), workflow="w")
        assert (await gate.state()).status == "blocked"
        assert await app.get([after.id]) == [None]
        await app.enqueue_many(works)
        assert await gate.group(PATIENCE) == 3
        assert await gate.result(PATIENCE) is None
        state = await app.handle(after.id).state()
        assert (state.parent, state.group_id, state.workflow) == (gate.id, gate.id, "w")
        assert state.after == tuple(each.id for each in works)
        assert len(seen.of(Succeeded, gate.id)) == 1


async def test_a_dependency_that_cannot_be_met(make_app: MakeApp) -> None:
    """A3: dead, at once, and its works are never queued."""
    async with make_app(value, bad) as app:
        never = value(1)
        gate = await app.enqueue(dependency(on=[await app.enqueue(bad())], queue=[never]))
        error = await failure(gate.group(PATIENCE))
        assert isinstance(error, GroupFailed)
        assert error.reason == "unsatisfiable"
        assert await app.get([never.id]) == [None]


async def test_a_dependency_times_out(make_app: MakeApp) -> None:
    """T50: 30 ms for an id that never comes: dead, no dependents, and waiting for it ends."""
    async with make_app(value) as app:
        never = value(1)
        gate = await app.enqueue(dependency(on="missing", queue=never, timeout=0.03))
        assert (await failure(gate.group(PATIENCE))).reason == "expired"
        assert await app.get([never.id]) == [None]


async def test_a_dependency_needs_no_types_to_open(make_app: MakeApp) -> None:
    """§7: any worker opens it, with the options that its works had where it was enqueued."""

    @work(name="rare", queue="rare", priority=5, lane="slow")
    async def rare(n: int) -> int:
        return n

    producer = make_app(rare, value)
    async with make_app(value, accept=lambda info: info.type != "treadle.dependency") as opener:
        first, last = value(1), rare(9)
        gate = await producer.enqueue(dependency(on=first, queue=last, when="all_done"))
        await producer.enqueue(first)
        assert await opener.handle(gate.id).result(PATIENCE) is None
        state = await producer.handle(last.id).state()
        assert (state.status, state.queue, state.priority, state.lane) == ("ready", "rare", 5, "slow")
    async with make_app(rare):
        assert await producer.handle(last.id).result(PATIENCE) == 9


async def test_a_dependency_inside_a_flow(make_app: MakeApp) -> None:
    """§7: `ctx.queue` takes it; behind a `.next` it would wait for something else: refused."""
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


async def test_what_a_dependency_refuses() -> None:
    """§7: where it is written."""
    with pytest.raises(InputError, match="at_least"):
        dependency(on=["a"], queue=value(1), when=at_least(2))
    with pytest.raises(TypeError, match="dependency"):
        dependency(on=["a"], queue="b")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="after"):
        dependency(on=[None], queue=value(1))  # type: ignore[list-item]


def test_condition_met_is_the_rule() -> None:
    """T50: the truth table."""
    assert condition_met("all_success", ["success", "success"])
    assert not condition_met("all_success", ["success", "dead"])
    assert condition_met("all_done", ["success", "dead", "cancelled"])
    assert not condition_met("all_done", ["success", None])
    assert condition_met(at_least(1), ["success", "running"])
    assert not condition_met(at_least(2), ["success", "dead"])
    assert condition_met(at_least(2, of="done"), ["success", "dead"])
    assert condition_met("all_success", [])


async def test_a_gate_takes_no_slot(make_app: MakeApp) -> None:
    """§7: gates are counted among what waits, not among what runs."""
    app: Treadle = make_app(value)
    async with app:
        gates = [dependency(on=f"missing-{n}", queue=value(n)) for n in range(50)]
        await app.enqueue_many(gates)
        assert await app.enqueue(value(1)).result(PATIENCE) == 1
        await until(lambda: not app.active())
        assert [count.count for count in await app.counts() if count.status == "blocked"] == [50]
