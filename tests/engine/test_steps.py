"""Steps in the tests of users: time travel, and a worker that dies behind a step."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from treadle import Abort, Context, Failure, Retry, Step, Treadle, Undo, WorkFailed, work
from treadle.backend import Backend
from treadle.backends.memory import MemoryBackend
from treadle.engine.run import step_records
from treadle.errors import DecodeError, GroupFailed, InputError
from treadle.operate.operator import core_of
from treadle.testing import FaultyBackend, ManualClock, crash_at, drain, run_inline, travel
from treadle.testing.wrap import WrappedBackend

from .kit import Errors

DAY = 86_400.0


async def test_travel_runs_each_item_at_its_instant() -> None:
    sent: list[float] = []
    clock = ManualClock()
    began = clock.now()

    @work
    async def trial(ctx: Context) -> str:
        for day in (7, 21, 29):
            await ctx.sleep(f"until day {day}", timedelta(days=7) if day == 7 else timedelta(days=day - 14))
            await ctx.step(f"remind:{day}", remind)
        return "over"

    async def remind() -> None:
        sent.append((clock.now() - began) / DAY)

    app = Treadle(MemoryBackend(clock), work=[trial], clock=clock, keep=timedelta(days=90))
    async with run_inline(app):
        handle = await app.enqueue(trial())
        await travel(app, timedelta(days=10))
        assert sent == [7.0]
        await travel(app, timedelta(days=30))
        assert sent == [7.0, 14.0, 29.0]
        assert clock.now() == began + 40 * DAY
        assert (await handle.state()).result == "over"


async def test_travel_needs_a_clock_that_it_can_move() -> None:
    with pytest.raises(InputError, match="ManualClock"):
        await travel(Treadle(MemoryBackend()), 1)


@pytest.mark.parametrize("name", ["charge", "ship"])
async def test_a_worker_dies_after_a_step(name: str) -> None:
    """Each step has run once, whichever it dies behind."""
    done: list[str] = []

    async def do(what: str) -> None:
        done.append(what)

    @work
    async def order(ctx: Context) -> str:
        for each in ("charge", "ship"):
            await ctx.step(each, do, each)
        return "shipped"

    async with run_inline(Treadle(FaultyBackend(MemoryBackend()), work=[order])) as app:
        crash = crash_at(app, f"after_step:{name}")
        assert await app.enqueue(order()).result(5) == "shipped"
        assert crash.hits == 1
    assert done == ["charge", "ship"]


@pytest.mark.parametrize("name", ["nap", "approval", "papers"])
async def test_a_worker_dies_after_it_has_suspended_an_item(name: str) -> None:
    clock = ManualClock()
    done: list[int] = []

    @work
    async def paper(n: int) -> int:
        done.append(n)
        return n

    @work
    async def order(ctx: Context) -> list[int]:
        await ctx.sleep("nap", timedelta(days=1))
        await ctx.signal("approval", bool, timeout=timedelta(days=1))
        return [*await ctx.run("papers", paper(1), paper(2))]

    backend = FaultyBackend(MemoryBackend(clock))
    async with run_inline(Treadle(backend, work=[order, paper], clock=clock, keep=30 * DAY)) as app:
        crash = crash_at(app, f"after_step:{name}")
        handle = await app.enqueue(order())
        await travel(app, timedelta(days=3))
        assert await handle.result(5) == [1, 2]
        assert crash.hits == 1
    assert done == [1, 2]


async def test_what_is_no_step_is_refused_with_what_to_write() -> None:
    @work
    async def add(a: int) -> int:
        return a

    @work(retry=Retry(attempts=1))
    async def wrong(ctx: Context, which: str) -> None:
        match which:
            case "several":
                await ctx.run("papers", [add(1)])  # type: ignore[call-overload]
            case "type":
                await ctx.step("add", add, 1)
            case _:
                await ctx.step("add", add.fn(1))  # type: ignore[call-overload]

    said = {
        "several": r'ctx\.run\("papers", add\(1, 2\)\), not several of them: give each of them, ',
        "type": r"is a work type: ctx\.run\(name, add\(\.\.\.\)\) runs an item of it, add\.fn is",
        "coroutine": r"must be a function, its arguments after it, as in ctx\.step\(name, add, 1\)",
    }
    async with run_inline(Treadle(work=[wrong, add])) as app:
        for which, message in said.items():
            with pytest.raises(WorkFailed, match=message):
                await app.enqueue(wrong(which)).result(5)


async def test_a_short_sleep_waits_for_a_clock_that_a_test_moves() -> None:
    clock = ManualClock()

    @work
    async def nap(ctx: Context) -> int:
        await ctx.sleep("nap", 2)
        return 1

    app = Treadle(MemoryBackend(clock), work=[nap], clock=clock)
    async with run_inline(app):
        handle = await app.enqueue(nap())
        await drain(app)
        assert (await handle.state()).suspended
        await clock.advance(2)
        await drain(app)
        assert (await handle.state()).result == 1


def test_a_batch_has_no_steps() -> None:
    with pytest.raises(TypeError, match=r"uses ctx\.step, and a batch has no steps"):

        @work.batch(size=2, max_wait=1)
        async def many(contexts: list[Context], inputs: list[int]) -> list[int]:
            for ctx in contexts:
                await ctx.step("one", _one)
            return inputs


def test_a_handler_in_a_process_has_no_steps() -> None:
    with pytest.raises(TypeError, match=r"uses ctx\.sleep, and a handler with run_in='process'"):
        work(run_in="process")(_sleeps)


def _sleeps(ctx: Context) -> None:
    ctx.sync.sleep("nap", 1)


async def _one() -> int:
    return 1


class SlowRecords(WrappedBackend):
    """Records at once, and answers later."""

    def __init__(self, inner: Backend) -> None:
        super().__init__(inner)
        self.recorded = asyncio.Event()
        self.may_answer = asyncio.Event()

    async def around(self, verb: str, args: tuple[Any, ...], call: Callable[[], Awaitable[Any]]) -> Any:
        answer = await call()
        if verb == "record":
            self.recorded.set()
            await self.may_answer.wait()
        return answer


async def test_a_step_that_is_being_recorded_when_its_item_dies_is_undone() -> None:
    undone: list[int] = []
    slow = SlowRecords(MemoryBackend())

    @work
    async def refund(value: int) -> None:
        undone.append(value)

    async def fail() -> None:
        await slow.recorded.wait()
        asyncio.get_running_loop().call_later(0.02, slow.may_answer.set)
        raise Abort("the other half")

    @work
    async def order(ctx: Context) -> None:
        await asyncio.gather(ctx.step(Step("charge", undo=refund), _one), fail())

    async with run_inline(Treadle(slow, work=[order, refund])) as app:
        with pytest.raises(WorkFailed):
            await app.enqueue(order()).result(5)
        await drain(app)
    assert undone == [1]


async def test_no_step_goes_on_when_its_attempt_has_ended() -> None:
    """The next attempt would call it beside itself."""
    at_once, most, calls = 0, 0, 0

    async def long() -> int:
        nonlocal at_once, most, calls
        at_once, calls = at_once + 1, calls + 1
        most = max(most, at_once)
        try:
            await asyncio.sleep(30 if calls == 1 else 0)
        finally:
            at_once -= 1
        return calls

    async def fail() -> None:
        await asyncio.sleep(0.02)
        if calls == 1:
            raise OSError("the other half")

    @work(retry=Retry(attempts=2, base=0, jitter=0))
    async def order(ctx: Context) -> int:
        called, _ = await asyncio.gather(ctx.step("long", long), fail())
        return called

    async with run_inline(Treadle(MemoryBackend(), work=[order])) as app:
        assert await app.enqueue(order()).result(5) == 2
    assert most == 1


class Backwards:
    """A codec of a type: its values are stored backwards."""

    def encode(self, value: Any) -> bytes:
        return msgspec.json.encode(value)[::-1]

    def decode(self, data: bytes) -> Any:
        return msgspec.json.decode(data[::-1])


async def test_a_type_with_a_codec_of_its_own_has_steps_streams_and_signals() -> None:
    """Who sends a signal need not know the type: it is stored by the codec of the app."""

    async def pay() -> str:
        return "paid"

    @work(codec=Backwards())
    async def order(ctx: Context) -> list[str | None]:
        paid = await ctx.step("pay", pay)
        answer = await ctx.signal("go", str)
        await ctx.emit("shipped")
        return [paid, answer]

    async with Treadle(work=[order]) as app:
        handle = await app.enqueue(order())
        await app.signal(handle, "go", "gone")
        assert await handle.result(5) == ["paid", "gone"]
        assert [step.value for step in await app.steps(handle)] == ["paid", "gone"]
        assert [chunk.value async for chunk in handle.stream()] == ["shipped"]


class Sealed:
    """A codec whose data is no text."""

    def encode(self, value: Any) -> bytes:
        return b"\xff" + bytes(byte ^ 0x55 for byte in msgspec.json.encode(value))

    def decode(self, data: bytes) -> Any:
        if data[:1] != b"\xff":
            raise DecodeError("it is not sealed")
        return msgspec.json.decode(bytes(byte ^ 0x55 for byte in data[1:]))


@pytest.mark.parametrize("of", ["app", "item", "undo"])
async def test_undos_take_values_of_any_codec(of: str) -> None:
    """Whether the app, the type of the item or the type of the undo has it."""
    undone: list[Any] = []
    own: dict[str, dict[str, Any]] = {of: {"codec": Sealed()}}

    @work(**own.get("undo", {}))
    async def restock(undo: Undo[timedelta]) -> None:
        undone.append((undo.value, undo.input, undo.error))

    @work(**own.get("undo", {}))
    async def refund(value: int) -> None:
        undone.append(value)

    async def charge() -> int:
        return 3

    async def take() -> timedelta:
        return timedelta(seconds=2)

    @work(**own.get("item", {}))
    async def order(ctx: Context, n: int) -> None:
        await ctx.step(Step("charge", undo=refund), charge)
        await ctx.step(Step("take", undo=restock), take)
        raise Abort("no")

    async with Treadle(work=[order, restock, refund], **own.get("app", {})) as app:
        with pytest.raises(GroupFailed):
            await app.enqueue(order(7)).group(5)
    assert undone == [(timedelta(seconds=2), {"n": 7}, "Abort: no"), 3]


async def test_an_undo_that_cannot_be_made_does_not_hold_up_the_others() -> None:
    """Nor `on_dead`. The error is reported."""
    done: list[str] = []
    errors = Errors()
    backend = MemoryBackend()

    @work
    async def refund(value: str) -> None:
        done.append(value)

    @work
    async def cleanup(failure: Failure) -> None:
        done.append("cleanup")

    async def pay(what: str) -> str:
        return what

    @work(on_dead=cleanup)
    async def order(ctx: Context) -> None:
        for name in ("one", "two", "three"):
            await ctx.step(Step(name, undo=refund), pay, name)
        row = backend.store.find(None, ctx.id)
        assert row is not None
        assert row.steps is not None
        row.steps.steps["two"] = replace(row.steps.steps["two"], undo=b"torn")
        raise Abort("no")

    async with Treadle(backend, work=[order, refund, cleanup], on_error=errors) as app:
        with pytest.raises(GroupFailed):
            await app.enqueue(order()).group(5)
    assert done == ["three", "one", "cleanup"]
    assert {*errors.phases()} == {"settle"}


@pytest.mark.parametrize("said", [(float("nan"),), (1, float("inf")), ("half",), (10**400,)])
async def test_progress_is_a_number(said: tuple[Any, ...]) -> None:
    """Another value raises in the handler: readers could not read it."""

    @work(retry=Retry(attempts=1))
    async def order(ctx: Context) -> None:
        await ctx.progress(*said)

    async with Treadle(work=[order]) as app:
        handle = await app.enqueue(order())
        with pytest.raises(WorkFailed, match="InputError"):
            await handle.result(5)
        assert await handle.progress() is None


async def test_a_long_message_of_progress_is_cut() -> None:
    @work
    async def order(ctx: Context) -> None:
        await ctx.progress(1, 2, "x" * 1_000_000)

    async with Treadle(work=[order]) as app:
        handle = await app.enqueue(order())
        await handle.result(5)
        progress = await handle.progress()
        assert progress is not None
        assert len(progress.message or "") <= 10_000


async def test_steps_at_the_same_time_keep_the_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step_records, "MAX_STEPS", 10)
    monkeypatch.setattr(step_records, "MAX_BYTES", 3000)

    async def of_size(size: int) -> str:
        return "x" * size

    @work
    async def order(ctx: Context, count: int, size: int) -> int:
        return len(await asyncio.gather(*(ctx.step(f"{n}", of_size, size) for n in range(count))))

    async with Treadle(work=[order]) as app:
        assert await app.enqueue(order(10, 1)).result(5) == 10
        for count, size in ((11, 1), (8, 1000)):
            handle = await app.enqueue(order(count, size))
            with pytest.raises(WorkFailed, match="TooManySteps"):
                await handle.result(5)
            assert sum(len(str(step.value)) for step in await app.steps(handle)) <= 4000


async def test_no_two_steps_have_the_same_key() -> None:
    keys: list[str] = []
    opened: list[int] = []

    @work
    async def refund(value: int) -> None: ...

    async def pay(key: str) -> int:
        keys.append(key)
        return 1

    @work
    async def order(ctx: Context) -> None:
        await ctx.step(Step("pay", undo=refund), pay, ctx.key("pay"))
        for name in ("pay:1", "pay::1", "pay%3A1"):
            await ctx.step(name, pay, ctx.key(name))
        if not opened:
            raise Abort("closed")

    async with Treadle(work=[order, refund]) as app:
        handle = await app.enqueue(order())
        with pytest.raises(GroupFailed):
            await handle.group(5)
        opened.append(1)
        await app.requeue(handle.id)
        await handle.result(5)
    assert len({*keys}) == len(keys) == 5


async def test_suspensions_and_steps_are_counted() -> None:
    """By type, in this process. A recorded step is counted once."""

    async def pay() -> int:
        return 1

    @work(name="counted")
    async def counted(ctx: Context) -> None:
        await ctx.step("pay", pay)
        await ctx.signal("go", int)

    async with Treadle(work=[counted]) as app:
        handle = await app.enqueue(counted())
        async with asyncio.timeout(5):
            while not (await handle.state()).suspended:  # noqa: ASYNC110  it has no event
                await asyncio.sleep(0.005)
        await app.signal(handle, "go", 1)
        await handle.result(5)
        text = app.metrics.prometheus()
        assert 'treadle_suspended_total{type="counted"} 1' in text
        assert 'treadle_steps_total{type="counted"} 1' in text
        assert app.metrics.get("suspended", type="counted") == 1


async def test_an_item_that_step_tx_changes_by_its_key_is_claimed_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one that it queues."""
    told: list[tuple[str, str]] = []

    @work
    async def report() -> None: ...

    @work
    async def order(ctx: Context) -> None:
        async def hurry(tx: Any) -> None:
            await app.enqueue(report(), key="k", key_policy="replace", tx=tx)

        await ctx.step_tx("hurry", hurry)

    async with Treadle(f"sqlite:///{tmp_path / 'work.db'}", work=[order]) as app:
        await app.enqueue(report(), key="k", delay=DAY)
        ready = core_of(app).wakeups.ready

        def tell(lines: Iterable[tuple[str, str]]) -> None:
            told.extend(found := list(lines))
            ready(found)

        monkeypatch.setattr(core_of(app).wakeups, "ready", tell)
        await app.enqueue(order()).result(5)
    assert (report.name, "default") in told
