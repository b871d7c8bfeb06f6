"""Enqueuing: its forms, its options and their precedence (SPEC §4)."""

from __future__ import annotations

import asyncio
import threading
import time
import types
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.engine.kit import PATIENCE, MakeApp, MakeBackend, failure
from treadle import (
    Client,
    Context,
    DuplicateIdError,
    DuplicateWorkError,
    InputError,
    Retry,
    Treadle,
    UnknownWorkError,
    Worker,
    WorkFailed,
    work,
)
from treadle.engine.submit.enqueue import submit
from treadle.errors import TreadleError
from treadle.options import Options


@work(name="math.add")
async def add(a: int, b: int = 0) -> int:
    return a + b


# ---------------------------------------------------------------------------------------------------- forms


async def test_a_handle_is_durable_when_it_is_returned(make_app: MakeApp) -> None:
    """§4: The item is in the store, with or without a running worker."""
    app = make_app(add)
    handle = await app.enqueue(add(1, 2))
    state = await handle.state()
    assert (state.status, state.type, state.attempt) == ("ready", "math.add", 0)
    assert (handle.id, handle.group_id, handle.existing) == (state.id, state.group_id, False)


async def test_enqueue_by_name_checks_the_arguments(make_app: MakeApp) -> None:
    """§4, §1: The InputError names the parameter."""
    app = make_app(add)
    with pytest.raises(InputError, match="a"):
        app.enqueue("math.add", {"b": 1})
    with pytest.raises(InputError, match="c"):
        app.enqueue("math.add", {"a": 1, "c": 1})
    with pytest.raises(InputError, match="a"):
        app.enqueue("math.add", {"a": "one"})


async def test_enqueue_by_an_unknown_name_suggests_similar_names(make_app: MakeApp) -> None:
    """§4: UnknownWorkError."""
    app = make_app(add)
    with pytest.raises(UnknownWorkError, match=r"math\.add"):
        app.enqueue("math.ad", {"a": 1})
    with pytest.raises(TypeError, match="Work"):
        app.enqueue(add)  # type: ignore[call-overload]


async def test_enqueue_many_is_one_step(make_app: MakeApp) -> None:
    """§4, §17: Each item has its own group. All are stored or none."""
    async with make_app(add) as app:
        handles = await app.enqueue_many([add(n) for n in range(5)])
        assert [await handle.result(PATIENCE) for handle in handles] == list(range(5))
        assert len({handle.group_id for handle in handles}) == 5
        fresh = add(9)
        with pytest.raises(DuplicateIdError):
            await app.enqueue_many([fresh, add(10), fresh])
        assert await app.get([fresh.id]) == [None]
        assert await app.enqueue_many([]) == []


async def test_enqueuing_one_work_twice_is_refused(make_app: MakeApp) -> None:
    """§4: DuplicateIdError."""
    async with make_app(add) as app:
        one = add(1)
        await app.enqueue(one).result(PATIENCE)
        with pytest.raises(DuplicateIdError):
            await app.enqueue(one)
        with pytest.raises(DuplicateIdError):
            await app.enqueue(one).result(PATIENCE)


async def test_enqueue_without_await_warns(make_app: MakeApp) -> None:
    """§4: It submits nothing, as a coroutine that is not awaited does nothing."""
    app = make_app(add)
    one = add(1)
    with pytest.warns(RuntimeWarning, match="never awaited"):
        app.enqueue(one)
    assert await app.get([one.id]) == [None]


async def test_a_forgotten_await_is_an_error_in_the_log_with_its_line(
    make_app: MakeApp, caplog: pytest.LogCaptureFixture
) -> None:
    app = make_app(add)

    def forget() -> str:
        call = app.enqueue(add(1))
        return repr(call)  # and here it is dropped

    made_at = forget.__code__.co_firstlineno + 1
    with pytest.warns(RuntimeWarning) as warned:
        forget()
    (record,) = caplog.records
    assert record.levelname == "ERROR"
    assert record.getMessage() == (
        f"enqueue({add.name}) in {__file__}:{made_at} was never awaited: nothing was submitted. Write "
        "`await app.enqueue(...)`, or `app.sync.enqueue(...)`"
    )
    assert (warned[0].filename, warned[0].lineno) == (__file__, made_at)


async def test_a_claim_without_await_is_no_answer(
    make_app: MakeApp, caplog: pytest.LogCaptureFixture
) -> None:
    seen: list[Any] = []

    @work(name="claims", retry=Retry(attempts=1))
    async def claims(ctx: Context, how: str) -> str:
        match how:
            case "if":
                return "claimed" if ctx.claim("x") else "not claimed"
            case "drop":
                ctx.claim("x")  # type: ignore[unused-coroutine]
            case "task":
                seen.append(await asyncio.create_task(ctx.claim("y")))
            case _:
                seen.extend([await ctx.claim("x"), *await asyncio.gather(ctx.claim("x"), ctx.claim("z"))])
        return how

    app = make_app(claims)
    async with app:
        with pytest.raises(
            WorkFailed, match=r"TypeError: ctx.claim\('x'\) is not awaited, so it has no answer"
        ):
            await app.enqueue(claims("if")).result(PATIENCE)
        caplog.clear()
        with pytest.warns(RuntimeWarning, match="never awaited"):
            assert await app.enqueue(claims("drop")).result(PATIENCE) == "drop"
        assert [record.levelname for record in caplog.records if "never awaited" in record.message] == [
            "ERROR"
        ]
        assert await app.enqueue(claims("task")).result(PATIENCE) == "task"
        assert await app.enqueue(claims("await")).result(PATIENCE) == "await"
    assert seen == [True, True, True, True]


async def test_enqueue_raises_what_computed_options_raise(make_app: MakeApp) -> None:
    """§4: Nothing is stored."""

    @work(name="computed", options=lambda given: {"priority": 1 // given["n"]})
    async def computed(n: int) -> None: ...

    app = make_app(computed)
    one = computed(0)
    with pytest.raises(ZeroDivisionError):
        await app.enqueue(one)
    assert await app.get([one.id]) == [None]


# ------------------------------------------------------------------------------------------- client, worker


async def test_client_and_worker_work_without_an_app(store: MakeBackend) -> None:
    """§4: `Client(backend, work=)` submits and `Worker(client)` runs. A client waits for items that other
    processes run."""
    producer = Client(store(), work=[add])
    consumer = Client(store(), work=[add], poll_interval=0.05, lease=5)
    async with producer, consumer, Worker(consumer, id="w-1"):
        assert await producer.enqueue(add(1, 1)).result(PATIENCE) == 2
        handle = await producer.enqueue(add(2, 2))
        assert await handle.group(PATIENCE) == 4
        assert (await handle.state()).worker == "w-1"


async def test_a_declared_type_is_enqueued_without_its_handler(store: MakeBackend) -> None:
    """§1: Only the worker has the handler."""

    def signature(a: int, b: int) -> int: ...

    producer = Client(store(), work=[work.declare("math.mul", signature)], poll_interval=0.05)
    handled = work.declare("math.mul", signature)

    @handled.handler
    async def mul(a: int, b: int) -> int:
        return a * b

    async with producer, Treadle(store(), work=[handled], poll_interval=0.05, lease=5):
        assert await producer.enqueue("math.mul", {"a": 6, "b": 7}).result(PATIENCE) == 42


async def test_app_work_defines_and_registers(make_app: MakeApp) -> None:
    """§4: `@app.work`, `app.register(types or modules)` and `app.types`, also while the app runs."""
    app = make_app()

    @app.work(name="twice")
    async def twice(n: int) -> int:
        return 2 * n

    module = types.ModuleType("some_module")
    module.add = add  # type: ignore[attr-defined]
    async with app:
        assert await app.enqueue(twice(4)).result(PATIENCE) == 8
        app.register(module)
        assert await app.enqueue(add(4)).result(PATIENCE) == 4
        assert {"twice", "math.add"} <= set(app.types)
        assert app.types["math.add"] is add

        @work(name="math.add")
        async def other(a: int) -> int:
            return a

        with pytest.raises(DuplicateWorkError):
            app.register(other)


# ----------------------------------------------------------------------------------------- options, in order


async def test_precedence_of_options(make_app: MakeApp) -> None:
    """§4: enqueue > options(input) > type > app > default. `retry` merges field by field."""

    def computed(input: dict[str, int]) -> Options:
        return {"lane": "computed", "queue": "computed"} if input["n"] else {}

    @work(name="levels", priority=1, lane="type", queue="type", options=computed, retry=Retry(base=7))
    async def levels(n: int) -> None: ...

    @work(name="plain")
    async def plain() -> None: ...

    app = make_app(levels, plain, retry=Retry(attempts=9, factor=5))
    handles = [
        await app.enqueue(levels(1), lane="enqueue", retry=Retry(attempts=4)),
        await app.enqueue(levels(1)),
        await app.enqueue(levels(0)),
        await app.enqueue(plain()),
    ]
    states = [await handle.state() for handle in handles]
    assert [(state.priority, state.lane, state.queue, state.attempts) for state in states] == [
        (1, "enqueue", "computed", 4),
        (1, "computed", "computed", 9),
        (1, "type", "type", 9),
        (0, "", "default", 9),
    ]


async def test_a_delay_at_enqueue_wins_over_a_computed_run_at(make_app: MakeApp) -> None:
    """§4: Within one level `run_at` wins over `delay`, and `deadline` wins over `expires_in`."""
    far = datetime.now(UTC) + timedelta(days=9)

    @work(name="later", options=lambda _: {"run_at": far, "deadline": far})
    async def later() -> None: ...

    app = make_app(later)
    now = time.time()
    computed = await (await app.enqueue(later())).state()
    assert (computed.due_at, computed.deadline) == (far.timestamp(), far.timestamp())
    beaten = await (await app.enqueue(later(), delay=60, expires_in=120)).state()
    assert 50 < beaten.due_at - now < 70
    assert beaten.deadline is not None
    assert 110 < beaten.deadline - now < 130
    both = await app.enqueue(later(), delay=1, run_at=far.timestamp(), expires_in=1, deadline=far)
    state = await both.state()
    assert (state.due_at, state.deadline) == (far.timestamp(), far.timestamp())


async def test_run_at_and_delay_postpone_the_start(make_app: MakeApp) -> None:
    """T20: An instant in the past starts at once."""
    started: list[float] = []

    @work(name="timed")
    async def timed() -> None:
        started.append(time.time())

    async with make_app(timed) as app:
        asked = time.time()
        await app.enqueue(timed(), delay=0.08).result(PATIENCE)
        await app.enqueue(timed(), run_at=time.time() + 0.08).result(PATIENCE)
        assert started[0] >= asked + 0.07
        assert started[1] >= started[0] + 0.07
        await app.enqueue(timed(), run_at=datetime(2001, 1, 1, tzinfo=UTC)).result(PATIENCE)


@pytest.mark.parametrize(
    "options",
    [
        {"delay": -1},
        {"run_at": datetime(2030, 1, 1)},  # noqa: DTZ001  naive on purpose
        {"priority": 2**40},
        {"queue": ""},
        {"lane": "a\x00b"},
        {"retry": 5},
        {"key_scope": "closed"},
        {"on_dead": "refund"},
        {"after": [None]},
        {"timeout": 0},
    ],
)
async def test_bad_options_are_refused_by_name(options: dict[str, object]) -> None:
    """§4: Before anything is stored."""
    with pytest.raises((InputError, TypeError), match=next(iter(options))):
        Treadle().enqueue(add(1), **options)  # type: ignore[call-overload]


async def test_an_unknown_option_is_a_type_error() -> None:
    """§4."""
    with pytest.raises(TypeError, match="did you mean 'priority'"):
        Treadle().enqueue(add(1), prioritty=1)  # type: ignore[call-overload]


def test_a_heartbeat_over_half_the_lease_is_refused() -> None:
    """§4: ValueError."""
    with pytest.raises(ValueError, match="heartbeat"):
        Treadle(lease=10, heartbeat=6)
    Treadle(lease=10, heartbeat=5)
    assert Treadle(lease=100)._core.settings.heartbeat == 20


# -------------------------------------------------------------------------------------------- skip the queue


async def test_skip_queue_runs_the_first_attempt_without_a_claim(make_app: MakeApp) -> None:
    """T34: A retry comes from the queue."""
    attempts: list[int] = []

    @work(name="quick", skip_queue=True, retry=Retry(base=0))
    async def quick(ctx: Context, fails: bool) -> str:
        attempts.append(ctx.attempt)
        if fails and ctx.attempt == 1:
            raise OSError("once")
        return ctx.worker_id

    async with make_app(quick, worker_id="mine") as app:
        app.worker._runtime.claimer.wake = lambda: None  # type: ignore[union-attr, method-assign]
        assert await app.enqueue(quick(False)).result(PATIENCE) == "mine"
        assert await app.enqueue(quick(True)).result(PATIENCE) == "mine"
    assert attempts == [1, 1, 2]


async def test_skip_queue_stores_normally_when_it_cannot_run_at_once(make_app: MakeApp) -> None:
    """§17, A11: Without a local worker, with a delay, or with dependencies."""
    app = make_app(add)
    handle = await app.enqueue(add(1), skip_queue=True)
    assert (await handle.state()).status == "ready"
    async with app:
        assert await handle.result(PATIENCE) == 1
        delayed = await app.enqueue(add(2), skip_queue=True, delay=30)
        assert (await delayed.state()).status == "scheduled"
        blocked = await app.enqueue(add(2), skip_queue=True, after=delayed)
        assert (await blocked.state()).status == "blocked"
        late = await app.enqueue(add(3), skip_queue=True, deadline=datetime(2001, 1, 1, tzinfo=UTC))
        assert (await failure(late.result(PATIENCE))).reason == "expired"


async def test_skip_queue_respects_what_the_worker_serves(make_app: MakeApp) -> None:
    """§6, §17: The worker serves another queue or tenant, or the queue is paused: stored normally."""
    workers: list[str] = []

    @work(name="quick", skip_queue=True)
    async def quick(ctx: Context) -> None:
        workers.append(ctx.worker_id)

    only = make_app(quick, worker_id="only", queues=["mine", "paused"], tenants=["acme"])
    async with only:
        await only.pause("paused")
        acme, zoo = only.tenant("acme"), only.tenant("zoo")
        for handle in (
            await acme.enqueue(quick(), queue="other"),
            await zoo.enqueue(quick(), queue="mine"),
            await acme.enqueue(quick(), queue="paused"),
        ):
            state = await handle.state()
            assert (state.status, state.attempt) == ("ready", 0)
        await acme.enqueue(quick(), queue="mine").result(PATIENCE)
        assert workers == ["only"]


async def test_skip_queue_without_a_free_thread_stores_normally(make_app: MakeApp) -> None:
    started, go = threading.Event(), threading.Event()

    @work(name="threaded", skip_queue=True)
    def threaded() -> None:
        started.set()
        go.wait(PATIENCE)

    async with make_app(threaded, threads=1) as app:
        runtime = app._core.local()
        assert runtime is not None
        assert runtime.offers("threaded", "default", "default") == app.worker.id
        handle = await app.enqueue(threaded())
        await asyncio.to_thread(started.wait, PATIENCE)
        assert runtime.offers("threaded", "default", "default") is None
        go.set()
        await handle.result(PATIENCE)


async def test_an_enqueue_is_awaited_once(make_app: MakeApp) -> None:
    """A second await would submit a second time, outside of the transaction of the first."""
    app = make_app(add)
    call = app.enqueue(add(1))
    handle = await call
    for again in (lambda: call, call.result, call.group):
        with pytest.raises(RuntimeError, match="awaited before"):
            await again()
    assert [item.id for item in (await app.list()).items] == [handle.id]


async def test_a_submit_leaves_the_options_as_they_were(make_app: MakeApp) -> None:
    """Among them the transaction."""
    app = make_app(add)
    await app.connect()
    options: dict[str, object] = {"tx": object()}
    with pytest.raises(TreadleError):
        await submit(app._core, "default", [add(1)], options)
    assert "tx" in options
