"""Handlers with steps, end to end: what is recorded is not done again, waits hold no worker."""

from __future__ import annotations

import asyncio
import json
from datetime import timedelta
from typing import Any

import pytest

from treadle.define.decorators import work
from treadle.doers import oldest
from treadle.errors import Abort, AlreadyEnded, ConflictError, MailboxFull, NotFound, StepFailed, WorkFailed
from treadle.events import Resumed, Suspended
from treadle.flow_control import Failure, Undo
from treadle.handler.context import Context
from treadle.handler.steps import Step
from treadle.item import JOIN_TYPE, MOST_UNREAD
from treadle.retry import Retry

from .fleet import PATIENCE, Apps, Checkpoint, failure, until, until_status
from .subject import needs

NOW = Retry(attempts=3, base=0, jitter=0)
HOUR = 3600.0


class EffectLog:
    """What the functions of steps did, in order."""

    def __init__(self) -> None:
        self.done: list[Any] = []

    async def do(self, what: str) -> str:
        self.done.append(what)
        return what


class Declined(Exception):
    """A failure that a handler keeps."""


class EngineStepCases:
    @needs("steps")
    async def test_a_recorded_step_is_not_called_again(self, fleet: Apps) -> None:
        """A later attempt gets its value, as the type that its function returns."""
        effects = EffectLog()

        async def pay(total: int) -> timedelta:
            await effects.do("pay")
            return timedelta(seconds=total)

        @work(name="order", retry=NOW)
        async def order(ctx: Context) -> float:
            paid = await ctx.step("pay", pay, 90)
            await ctx.step("ship", effects.do, f"ship {ctx.attempt}")
            if len(effects.done) < 3:
                await ctx.step("last", _fail_once, effects)
            return paid.total_seconds()

        app = await fleet.app(order)
        handle = await app.enqueue(order())
        assert await handle.result(PATIENCE) == 90
        assert effects.done == ["pay", "ship 1", "failed"]
        assert [(step.name, step.kind) for step in await app.steps(handle.id)] == [
            ("pay", "value"),
            ("ship", "value"),
        ]

    @needs("steps")
    async def test_steps_of_one_attempt_run_at_the_same_time(self, fleet: Apps) -> None:
        """In any order: they are known by their names. A group of tasks works as well."""
        effects = EffectLog()

        @work(name="pages", retry=NOW)
        async def pages(ctx: Context) -> list[str]:
            found = await asyncio.gather(*(ctx.step(f"page:{n}", effects.do, f"page {n}") for n in range(5)))
            async with asyncio.TaskGroup() as group:
                for n in range(2):
                    group.create_task(ctx.step(f"more:{n}", effects.do, f"more {n}"))
            if ctx.attempt == 1:
                raise OSError("again")
            return found

        app = await fleet.app(pages)
        assert await app.enqueue(pages()).result(PATIENCE) == [f"page {n}" for n in range(5)]
        assert sorted(effects.done) == sorted([f"page {n}" for n in range(5)] + ["more 0", "more 1"])

    @needs("steps")
    async def test_a_name_that_is_used_twice_ends_the_item(self, fleet: Apps) -> None:
        """So does a step inside a step."""
        effects = EffectLog()

        @work(name="twice", retry=NOW)
        async def twice(ctx: Context, inside: bool) -> None:
            async def outer() -> None:
                await ctx.step("inner", effects.do, "inner")

            if inside:
                await ctx.step("outer", outer)
            for _ in range(2):
                await ctx.step("same", effects.do, "same")

        app = await fleet.app(twice)
        error = await failure(app.enqueue(twice(False)).result(PATIENCE))
        assert (error.reason, error.error_type) == ("bad_result", "StepError")
        assert "'same' is used twice" in str(error)
        error = await failure(app.enqueue(twice(True)).result(PATIENCE))
        assert "inside the step 'outer'" in str(error)
        assert effects.done == ["same"]

    @needs("steps")
    async def test_progress_gives_attempts_back(self, fleet: Apps) -> None:
        """Each attempt gets one step further, and the budget counts those that did not."""
        effects = EffectLog()

        @work(name="far", retry=Retry(attempts=2, base=0, jitter=0))
        async def far(ctx: Context) -> int:
            for n in range(6):
                await ctx.step(f"part:{n}", effects.do, f"part {n}")
                if effects.done[-1] == f"part {n}" and effects.done.count("stop") <= n:
                    effects.done.append("stop")
                    raise OSError("not further")
            return 6

        handle = await (await fleet.app(far)).enqueue(far())
        assert await handle.result(PATIENCE) == 6
        assert [each for each in effects.done if each != "stop"] == [f"part {n}" for n in range(6)]

    @needs("steps")
    async def test_a_caught_failure_is_the_outcome_of_its_step(self, fleet: Apps) -> None:
        """It is raised again by each attempt, as its class, or as `StepFailed` where that is not known."""
        effects = EffectLog()

        async def charge(card: str) -> None:
            await effects.do("charge")
            raise Declined(card)

        @work(name="order", retry=NOW)
        async def order(ctx: Context, known: bool) -> str:
            catch = (Declined,) if known or ctx.attempt == 1 else (OSError,)
            try:
                await ctx.step(Step("charge", catch=catch), charge, "card 7")
            except (Declined, StepFailed) as error:
                if ctx.attempt == 1:
                    raise OSError("again") from None
                return f"{type(error).__name__} {error}"
            return "paid"

        app = await fleet.app(order)
        assert await app.enqueue(order(True)).result(PATIENCE) == "Declined card 7"
        assert "StepFailed" in await app.enqueue(order(False)).result(PATIENCE)
        assert effects.done == ["charge", "charge"]

    @needs("steps")
    async def test_a_step_has_its_own_retries_and_timeout(self, fleet: Apps) -> None:
        """`Step(retry=, timeout=)` hold within the attempt."""
        tries: list[int] = []

        async def flaky() -> int:
            tries.append(1)
            if len(tries) == 1:
                raise OSError("once")
            if len(tries) == 2:
                await asyncio.sleep(PATIENCE)
            return len(tries)

        @work(name="retrying", retry=Retry(attempts=1))
        async def retrying(ctx: Context) -> int:
            return await ctx.step(Step("flaky", retry=NOW, timeout=0.05), flaky)

        assert await (await fleet.app(retrying)).enqueue(retrying()).result(PATIENCE) == 3

    @needs("steps")
    async def test_plain_functions_and_plain_handlers_have_steps(self, fleet: Apps) -> None:
        """A plain function runs in a thread; that of a plain handler in the handler's own."""
        done: list[str] = []

        def note(what: str) -> str:
            done.append(what)
            return what

        @work(name="mixed", retry=NOW)
        async def mixed(ctx: Context) -> str:
            value = await ctx.step("note", note, "async")
            if ctx.attempt == 1:
                raise OSError("again")
            return value

        @work(name="plain", retry=NOW)
        def plain(ctx: Context) -> str:
            value = ctx.sync.step("note", note, "plain")
            ctx.sync.sleep("nap", HOUR)
            return f"{value} {ctx.sync.signal('go', str)}"

        app = await fleet.app(mixed, plain)
        assert await app.enqueue(mixed()).result(PATIENCE) == "async"
        handle = await app.enqueue(plain())
        await until_status(app, handle.id, "scheduled")
        await app.signal(handle.id, "go", "gone")
        await fleet.subject.advance(HOUR + 1)
        assert await handle.result(PATIENCE) == "plain gone"
        assert done == ["async", "plain"]

    @needs("steps")
    async def test_a_value_that_cannot_be_stored_ends_the_item(self, fleet: Apps) -> None:
        """Another attempt could not store it either."""

        async def bad() -> int:
            return object()  # type: ignore[return-value]

        async def large() -> str:
            return "x" * 2_000_000

        @work(name="storing", retry=NOW)
        async def storing(ctx: Context, which: str) -> None:
            if which == "bad":
                await ctx.step("odd", bad)
            await ctx.step("huge", large)

        app = await fleet.app(storing)
        for which, name in (("bad", "odd"), ("large", "huge")):
            error = await failure(app.enqueue(storing(which)).result(PATIENCE))
            assert error.attempts == 1
            assert f"the step {name!r}" in str(error) or name in str(error)

    @needs("steps")
    async def test_a_key_is_the_same_in_every_attempt(self, fleet: Apps) -> None:
        """So that an API that is called twice can tell it."""
        keys: list[str] = []

        @work(name="keyed", retry=NOW)
        async def keyed(ctx: Context) -> None:
            keys.append(ctx.key("charge"))
            if ctx.attempt < 3:
                raise OSError("again")

        handle = await (await fleet.app(keyed)).enqueue(keyed())
        await handle.result(PATIENCE)
        assert keys == [f"{handle.id}:charge"] * 3


async def _fail_once(effects: EffectLog) -> None:
    effects.done.append("failed")
    raise OSError("once")


class EngineWaitCases:
    @needs("steps")
    async def test_a_long_sleep_holds_no_worker(self, fleet: Apps) -> None:
        """The handler starts again from the top when it is over."""
        starts: list[int] = []

        @work(name="trial")
        async def trial(ctx: Context) -> str:
            starts.append(1)
            await ctx.sleep("trial", timedelta(days=30))
            return "over"

        app = await fleet.app(trial, doer=oldest(1))
        handles = await app.enqueue_many([trial(), trial()])
        for handle in handles:
            state = await until_status(app, handle.id, "scheduled")
            assert state.suspended
        assert len(starts) == 2
        await fleet.subject.advance(30 * 24 * HOUR + 1)
        assert [await handle.result(PATIENCE) for handle in handles] == ["over", "over"]
        assert len(starts) == 4

    @needs("steps")
    async def test_a_short_sleep_stays_in_its_worker(self, fleet: Apps) -> None:
        """It is not worth a settlement and a claim."""
        starts: list[int] = []

        @work(name="nap")
        async def nap(ctx: Context) -> int:
            starts.append(1)
            await ctx.sleep("nap", 0.05)
            return len(starts)

        app = await fleet.app(nap)
        handle = await app.enqueue(nap())
        assert await handle.result(PATIENCE) == 1
        assert [step.kind for step in await app.steps(handle.id)] == ["sleep"]

    @needs("steps")
    async def test_a_signal_before_during_and_after_the_wait(self, fleet: Apps) -> None:
        """It is never lost, and is decoded as the type that the handler names."""
        here = Checkpoint()

        @work(name="approved")
        async def approved(ctx: Context) -> list[int | None]:
            first = await ctx.signal("one", int)
            if not here.is_open:
                await here.arrive()
            return [first, await ctx.signal("two", int), await ctx.signal("three", int)]

        app = await fleet.idle(approved)
        handle = await app.enqueue(approved())
        assert await app.signal(handle.id, "one", 1)
        await app.start()
        await here.reached()
        assert await app.signal(handle, "two", 2)
        here.open()
        await until_status(app, handle.id, "scheduled")
        assert await app.signal(handle.id, "three", 3)
        assert await handle.result(PATIENCE) == [1, 2, 3]

    @needs("steps")
    async def test_a_signal_that_does_not_come_in_time_is_none(self, fleet: Apps) -> None:
        """Also for later attempts, and if it comes later."""

        @work(name="waiting", retry=NOW)
        async def waiting(ctx: Context) -> list[str | None]:
            first = await ctx.signal("go", str, timeout=HOUR)
            return [first, await ctx.signal("go", str, step="second")]

        app = await fleet.app(waiting)
        handle = await app.enqueue(waiting())
        await until_status(app, handle.id, "scheduled")
        await fleet.subject.advance(HOUR + 1)

        async def waits_again() -> bool:
            return any(step.name == "second" for step in await app.steps(handle.id))

        await until(waits_again)
        await app.signal(handle.id, "go", "late")
        assert await handle.result(PATIENCE) == [None, "late"]

    @needs("steps")
    async def test_several_waits_at_once(self, fleet: Apps) -> None:
        """Each counts from when it was first asked for. Steps beside them are finished first."""
        effects = EffectLog()

        @work(name="all")
        async def all_of(ctx: Context) -> list[Any]:
            found: tuple[Any, ...] = await asyncio.gather(
                ctx.signal("a", int),
                ctx.sleep("long", 2 * HOUR),
                ctx.step("work", effects.do, "work"),
                ctx.signal("b", int, timeout=3 * HOUR),
            )
            return [*found]

        app = await fleet.app(all_of)
        handle = await app.enqueue(all_of())
        await until_status(app, handle.id, "scheduled")
        assert [step.name for step in await app.steps(handle.id) if not step.over] == ["a", "long", "b"]
        await app.signal(handle.id, "b", 2)
        await app.signal(handle.id, "a", 1)
        await until_status(app, handle.id, "scheduled")
        await fleet.subject.advance(2 * HOUR + 1)
        assert await handle.result(PATIENCE) == [1, None, "work", 2]
        assert effects.done == ["work"]

    @needs("steps")
    async def test_tasks_beside_a_wait_go_on(self, fleet: Apps) -> None:
        """A wait of one task ends the attempt, and holds up no other: what can go on without it does."""
        effects = EffectLog()

        @work(name="double")
        async def double(n: int) -> int:
            return 2 * n

        @work(name="beside")
        async def beside(ctx: Context) -> str | None:
            async def after_sleep() -> None:
                await ctx.sleep("nap", 0.2)
                await ctx.step("slept", effects.do, "slept")

            async def after_children() -> None:
                await ctx.run("children", double(1))
                await ctx.step("joined", effects.do, "joined")

            async def nested(depth: int) -> None:
                async with asyncio.TaskGroup() as group:
                    group.create_task(nested(depth - 1) if depth else ctx.step("deep", effects.do, "deep"))

            async def after_tasks() -> None:
                await nested(6)
                await ctx.step("back", effects.do, "back")

            *_, answer = await asyncio.gather(
                after_sleep(), after_children(), after_tasks(), ctx.signal("go", str)
            )
            return answer

        app = await fleet.app(beside, double)
        handle = await app.enqueue(beside())

        async def went_on() -> bool:
            return {*effects.done} == {"slept", "joined", "deep", "back"}

        await until_status(app, handle.id, "scheduled")
        await fleet.subject.advance(1)
        await until(went_on)
        await app.signal(handle.id, "go", "gone")
        assert await handle.result(PATIENCE) == "gone"
        assert len(effects.done) == 4

    @needs("steps")
    async def test_children_are_waited_for_without_a_worker(self, fleet: Apps) -> None:
        """Their values come in order, typed. They are items of the group."""

        @work(name="double")
        async def double(n: int) -> int:
            return 2 * n

        @work(name="parent")
        async def parent(ctx: Context) -> list[Any]:
            one, two = await ctx.run("pair", double(1), double(2))
            more = await ctx.run("more", *(double(n) for n in range(5)))
            return [one, two, more, await ctx.run("none")]

        app = await fleet.app(parent, double, doer=oldest(1))
        handle = await app.enqueue(parent())
        assert await handle.group(PATIENCE) == [2, 4, [0, 2, 4, 6, 8], []]
        state = (await app.list(group_id=handle.id, type="double")).items[0]
        assert (state.parent, state.group_id) == (handle.id, handle.id)

    @needs("steps")
    async def test_a_child_that_died_raises_in_its_parent(self, fleet: Apps) -> None:
        """`ctx.run` raises `WorkFailed`, which the handler may catch."""

        @work(name="bad", retry=Retry(attempts=1))
        async def bad() -> None:
            raise ValueError("no")

        @work(name="good")
        async def good() -> int:
            return 1

        @work(name="parent", retry=Retry(attempts=1))
        async def parent(ctx: Context) -> str:
            try:
                await ctx.run("children", good(), bad())
            except WorkFailed as error:
                return f"{error.error_type}"
            return "none"

        app = await fleet.app(parent, bad, good)
        assert await app.enqueue(parent()).result(PATIENCE) == "ValueError"

    @needs("steps", "operating")
    async def test_a_child_that_is_requeued_is_waited_for_again(self, fleet: Apps) -> None:
        """Its parent, requeued too, does not die of what its child died of before."""
        here, failing = Checkpoint(), [True]

        @work(name="fragile", retry=Retry(attempts=1))
        async def fragile(n: int) -> int:
            if failing:
                raise OSError("broken")
            await here.arrive()
            return n

        @work(name="parent", retry=Retry(attempts=1))
        async def parent(ctx: Context) -> list[int]:
            return [*await ctx.run("pair", fragile(1), fragile(2))]

        app = await fleet.app(parent, fragile)
        handle = await app.enqueue(parent())
        assert (await failure(handle.result(PATIENCE))).reason == "exhausted"
        failing.clear()
        children = [state.id for state in (await app.list(group_id=handle.id, type="fragile")).items]
        await app.requeue(children)
        await here.reached()
        await app.requeue(handle.id)
        await until_status(app, handle.id, "scheduled")
        here.open()
        assert await handle.result(PATIENCE) == [1, 2]
        assert [step.name for step in await app.steps(handle.id)] == ["pair"]

    @needs("steps", "operating")
    async def test_a_cancelled_join_does_not_leave_its_parent_waiting(self, fleet: Apps) -> None:
        """The item that waits for children is internal. To complete it is refused."""

        @work(name="slow")
        async def slow() -> int:
            return 1

        @work(name="parent", retry=Retry(attempts=1))
        async def parent(ctx: Context) -> str:
            try:
                await ctx.run("children", slow())
            except WorkFailed as error:
                return error.reason or "none"
            return "done"

        app = await fleet.app(parent)  # no worker has the type of the child
        handle = await app.enqueue(parent())
        await until_status(app, handle.id, "scheduled")
        (join,) = (await app.list(type=JOIN_TYPE)).items
        with pytest.raises(ConflictError):
            await app.complete(join.id)
        await app.cancel(join.id)
        assert await handle.result(PATIENCE) == "open"

    @needs("steps")
    async def test_a_handler_that_catches_the_end_of_its_attempt(self, fleet: Apps) -> None:
        """The attempt ends all the same, and the item is suspended."""

        @work(name="greedy", retry=NOW)
        async def greedy(ctx: Context) -> str:
            try:
                await ctx.signal("go", str)
            except BaseException:  # noqa: BLE001  the mistake
                return "caught"
            return "gone"

        error = await failure((await fleet.app(greedy)).enqueue(greedy()).result(PATIENCE))
        assert (error.reason, error.attempts) == ("bad_result", 1)
        assert "BaseException" in str(error)

    @needs("steps")
    async def test_signals_that_cannot_be_sent(self, fleet: Apps) -> None:
        """Each has an error that says why."""

        @work(name="once")
        async def once() -> None: ...

        app = await fleet.idle(once)
        handle = await app.enqueue(once())
        for n in range(MOST_UNREAD):
            await app.signal(handle.id, "go", n)
        with pytest.raises(MailboxFull):
            await app.signal(handle.id, "go", 0)
        await app.start()
        await handle.result(PATIENCE)
        with pytest.raises(AlreadyEnded):
            await app.signal(handle.id, "go")
        with pytest.raises(NotFound):
            await app.signal("missing", "go")

    @needs("steps")
    async def test_events_say_that_an_item_is_suspended_and_resumed(self, fleet: Apps) -> None:
        """Hooks see both, with what it waits for."""
        events: list[Any] = []

        @work(name="quiet")
        async def quiet(ctx: Context) -> None:
            await ctx.signal("go", bool, timeout=HOUR)

        app = await fleet.app(quiet, on_event=events.append)
        handle = await app.enqueue(quiet())
        await until_status(app, handle.id, "scheduled")
        await app.signal(handle.id, "go", True)
        await handle.result(PATIENCE)
        (suspended,) = [event for event in events if isinstance(event, Suspended)]
        assert (suspended.signal, suspended.id) == ("go", handle.id)
        assert suspended.until == pytest.approx(await app.backend.now() + HOUR, abs=60)
        names = [type(event).__name__ for event in events][1:]  # the first: the worker has started
        assert names == ["Queued", "Started", "Suspended", "Resumed", "Started", "Succeeded", "GroupDone"]
        assert any(isinstance(event, Resumed) for event in events)


class EngineSagaCases:
    @needs("steps")
    async def test_undos_run_last_first_when_the_item_dies(self, fleet: Apps) -> None:
        """Before `on_dead`. An undo that fails does not stop the others."""
        done: list[Any] = []

        @work(name="undo.value", retry=Retry(attempts=1))
        async def undo_value(value: str) -> None:
            done.append(f"undo {value}")
            if value == "two":
                raise OSError("cannot")

        @work(name="undo.whole")
        async def undo_whole(undo: Undo[str]) -> None:
            done.append((undo.value, undo.input, undo.error))

        @work(name="cleanup")
        async def cleanup(failure: Failure) -> None:
            done.append("cleanup")

        effects = EffectLog()

        @work(name="saga", on_dead=cleanup)
        async def saga(ctx: Context, n: int) -> None:
            await ctx.step(Step("one", undo=undo_whole), effects.do, "one")
            await ctx.step("plain", effects.do, "plain")
            await ctx.step(Step("two", undo=undo_value), effects.do, "two")
            await ctx.step(Step("three", undo=undo_value), effects.do, "three")
            raise Abort("enough")

        app = await fleet.app(saga, undo_value, undo_whole, cleanup)
        handle = await app.enqueue(saga(7))
        assert (await failure(handle.result(PATIENCE))).reason == "aborted"

        async def all_ran() -> bool:
            return "cleanup" in done

        await until(all_ran)
        assert done == ["undo three", "undo two", ("one", {"n": 7}, "Abort: enough"), "cleanup"] or (
            done[:2] == ["undo three", "undo two"] and done[-1] == "cleanup"
        )

    @needs("steps")
    async def test_an_item_that_expires_while_it_waits_is_undone(self, fleet: Apps) -> None:
        """Its death is a death like any other: undos are queued."""
        done: list[str] = []

        @work(name="undo")
        async def undo(value: str) -> None:
            done.append(value)

        effects = EffectLog()

        @work(name="saga")
        async def saga(ctx: Context) -> None:
            await ctx.step(Step("charge", undo=undo), effects.do, "charge")
            await ctx.signal("go", bool)

        app = await fleet.app(saga, undo)
        handle = await app.enqueue(saga(), expires_in=HOUR)
        await until_status(app, handle.id, "scheduled")
        await fleet.subject.advance(HOUR + 1)
        assert (await failure(handle.result(PATIENCE))).reason == "expired"

        async def undone() -> bool:
            return done == ["charge"]

        await until(undone)

    @needs("steps", "operating")
    async def test_a_requeued_saga_charges_again_with_another_key(self, fleet: Apps) -> None:
        """What was undone is done again. What was not is not."""
        done: list[str] = []

        @work(name="undo")
        async def undo(value: str) -> None:
            done.append(f"undo {value}")

        async def charge(key: str) -> str:
            done.append(key)
            return "charged"

        effects = EffectLog()

        @work(name="saga")
        async def saga(ctx: Context) -> str:
            await ctx.step("look", effects.do, "look")
            await ctx.step(Step("charge", undo=undo), charge, ctx.key("charge"))
            if len(done) < 2:
                raise Abort("first")
            return "shipped"

        app = await fleet.app(saga, undo)
        handle = await app.enqueue(saga())
        await failure(handle.result(PATIENCE))

        async def undone() -> bool:
            return len(done) == 2

        await until(undone)
        assert await app.requeue(handle.id) == 1
        assert await handle.result(PATIENCE) == "shipped"
        assert done == [f"{handle.id}:charge", "undo charged", f"{handle.id}:charge::1"]
        assert effects.done == ["look"]

    @needs("steps", "operating")
    async def test_a_requeue_from_a_step_runs_it_and_what_follows(self, fleet: Apps) -> None:
        """Steps before it keep their values."""
        effects = EffectLog()

        @work(name="pipeline")
        async def pipeline(ctx: Context) -> str:
            for name in ("fetch", "parse", "store"):
                await ctx.step(name, effects.do, name)
            if len(effects.done) < 4:
                raise Abort("bad data")
            return "stored"

        app = await fleet.app(pipeline)
        handle = await app.enqueue(pipeline())
        await failure(handle.result(PATIENCE))
        assert await app.requeue(handle.id, from_step="unknown") == 0
        assert await app.requeue(handle.id, from_step="parse") == 1
        assert await handle.result(PATIENCE) == "stored"
        assert effects.done == ["fetch", "parse", "store", "parse", "store"]


class EngineStreamCases:
    @needs("steps")
    async def test_a_stream_is_read_while_it_is_written(self, fleet: Apps) -> None:
        """From another app too, from the start or from a number on. It ends with the item."""
        here = Checkpoint()

        @work(name="tokens")
        async def tokens(ctx: Context) -> str:
            for n in range(3):
                await ctx.emit({"token": n})
            await ctx.progress(3, 5, "half")
            await here.arrive()
            for n in range(3, 5):
                await ctx.emit({"token": n})
            await ctx.progress(5, 5)
            return "done"

        app, other = await fleet.app(tokens), await fleet.idle(tokens)
        handle = await app.enqueue(tokens())
        stream = other.handle(handle.id).stream()
        async with asyncio.timeout(PATIENCE):
            first = [(await anext(stream)).value for _ in range(3)]
            assert first == [{"token": n} for n in range(3)]

            async def half() -> bool:
                found = await other.handle(handle.id).progress()
                return found is not None and (found.done, found.total, found.message) == (3, 5, "half")

            await until(half)
            here.open()
            rest = [chunk async for chunk in stream]
        assert [(chunk.number, chunk.value) for chunk in rest] == [(4, {"token": 3}), (5, {"token": 4})]
        assert [chunk.number async for chunk in handle.stream(since=2)] == [3, 4, 5]
        found = await handle.progress()
        assert found is not None
        assert (found.done, found.message) == (5, None)

    @needs("steps")
    async def test_a_recorded_step_has_said_all(self, fleet: Apps) -> None:
        """Its chunks are there with it: they would be lost if the worker died now."""
        there: list[list[str]] = []

        @work(name="writer", retry=NOW)
        async def writer(ctx: Context) -> str:
            async def write(name: str) -> None:
                await ctx.emit(f"{name} begins")
                await ctx.emit(f"{name} ends")

            async def write_within(tx: Any, name: str) -> None:
                await write(name)

            await ctx.step("one", write, "one")
            if "transactions" in app.backend.capabilities:
                await ctx.step_tx("two", write_within, "two")
            else:
                await ctx.step("two", write, "two")
            found = await app.backend.stream(ctx.id, since=0)
            there.append([json.loads(chunk.value) for chunk in found])
            return "written"

        app = await fleet.app(writer)
        assert await app.enqueue(writer()).result(PATIENCE) == "written"
        assert there == [["one begins", "one ends", "two begins", "two ends"]]

    @needs("steps", "transactions")
    async def test_step_tx_commits_its_step_with_its_writes(self, fleet: Apps) -> None:
        """What it queues is a part of it. A failure undoes both."""
        seen: list[int] = []

        @work(name="child")
        async def child(n: int) -> int:
            return n

        @work(name="writer", retry=NOW)
        async def writer(ctx: Context) -> str:
            async def write(tx: Any, n: int) -> int:
                seen.append(n)
                await app.enqueue(child(n), id=f"child-{n}", tx=tx)
                if n == 1 and len(seen) == 1:
                    raise OSError("undo it")
                return n

            await ctx.step_tx("write", write, 1)
            if ctx.attempt < 2 and len(seen) < 3:
                seen.append(0)
                raise OSError("after the commit")
            return "written"

        app = await fleet.app(writer, child)
        handle = await app.enqueue(writer())
        assert await handle.result(PATIENCE) == "written"
        assert seen.count(1) == 2
        (state,) = await app.get(["child-1"])
        assert state is not None
        assert [step.value for step in await app.steps(handle.id)] == [1]

    @needs("steps", "transactions")
    async def test_step_tx_has_the_options_of_a_step(self, fleet: Apps) -> None:
        """Its own retries, its timeout, and failures that are its outcome. Each try that failed is undone."""
        tries: list[str] = []

        @work(name="child")
        async def child() -> None: ...

        async def flaky(tx: Any) -> int:
            tries.append("flaky")
            await app.enqueue(child(), id="child", tx=tx)
            if len(tries) == 1:
                raise OSError("once")
            if len(tries) == 2:
                await asyncio.sleep(PATIENCE)
            return len(tries)

        async def declined(tx: Any) -> None:
            tries.append("declined")
            raise Declined("no")

        @work(name="writer", retry=NOW)
        async def writer(ctx: Context) -> list[Any]:
            value = await ctx.step_tx(Step("flaky", retry=NOW, timeout=0.5), flaky)
            try:
                await ctx.step_tx(Step("declined", catch=Declined), declined)
            except Declined as error:
                if tries[-1] != "again":
                    tries.append("again")
                    raise OSError("once more") from error
                return [value, str(error)]
            return []

        app = await fleet.app(writer, child)
        handle = await app.enqueue(writer())
        assert await handle.result(PATIENCE) == [3, "no"]
        assert tries == ["flaky", "flaky", "flaky", "declined", "again"]
        assert [step.kind for step in await app.steps(handle.id)] == ["value", "failure"]
