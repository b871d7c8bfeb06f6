"""Deployments: renamed types, arguments of earlier versions, workers with different code (SPEC §18)."""

from __future__ import annotations

import asyncio
import logging
from datetime import datetime
from typing import Any

import pytest

from tests.engine.kit import PATIENCE, MakeApp, Seen, failure, until, until_status
from treadle import Context, DuplicateWorkError, Failure, InputError, Retry, UnknownWorkError, Worker, work
from treadle.codec.json_codec import LARGE
from treadle.doers import concurrency
from treadle.engine.run import undecodable
from treadle.events import Started, Succeeded
from treadle.testing import ManualClock, run_inline

# -------------------------------------------------------------------------------------------------- aliases


@work(name="mail.send")
async def old_send(to: str) -> str:
    return f"old {to}"


@work(name="mail.deliver", aliases=["mail.send", "send"])
async def new_send(ctx: Context, to: str) -> str:
    return f"new {to}, {ctx.type}"


async def test_items_under_an_earlier_name_run(make_app: MakeApp) -> None:
    """They keep the name that they are stored under. Metrics count them for the type."""
    seen, own = Seen(), Seen()

    @work(name="mail.deliver", aliases=["mail.send"], on_event=own)
    async def deliver(ctx: Context, to: str) -> str:
        return f"new {to}, {ctx.type}"

    earlier = await make_app(old_send).enqueue(old_send("ann"))
    async with make_app(deliver, on_event=seen) as app:
        handle = app.handle(earlier.id)
        assert await handle.result(PATIENCE) == "new ann, mail.send"
        assert (await handle.state()).type == "mail.send"
        assert [event.type for event in seen.of(Started, earlier.id)] == ["mail.send"]
        assert len(own.of(Succeeded, earlier.id)) == 1
        assert app.metrics.get("succeeded", type="mail.deliver") == 1
        assert app.metrics.types() == ["mail.deliver"]
        (worker,) = await app.backend.workers()
        assert set(worker.types or ()) >= {"mail.deliver", "mail.send"}


async def test_items_queued_under_an_earlier_name_count_for_the_type(make_app: MakeApp) -> None:
    app = make_app(new_send)
    await app.enqueue(old_send("ann"))
    assert app.metrics.types() == ["mail.deliver"]
    assert app.metrics.get("queued", type="mail.deliver") == 1


async def test_enqueue_by_an_alias_stores_the_name(make_app: MakeApp) -> None:
    async with make_app(new_send) as app:
        handle = await app.enqueue("send", {"to": "bob"})
        assert await handle.result(PATIENCE) == "new bob, mail.deliver"
        assert (await handle.state()).type == "mail.deliver"
        assert list(app.types) == ["mail.deliver"]
        with pytest.raises(UnknownWorkError):
            app.enqueue("mail.snd", {"to": "bob"})


@pytest.mark.parametrize("store", ["memory"], indirect=True)
async def test_an_alias_of_two_types_is_refused(make_app: MakeApp) -> None:
    @work(name="other", aliases=["send"])
    async def other() -> None: ...

    @work(name="send")
    async def taken() -> None: ...

    for pair in ((new_send, other), (new_send, taken), (taken, new_send), (old_send, new_send)):
        with pytest.raises(DuplicateWorkError, match="alias"):
            make_app(*pair)
    app = make_app(new_send)
    app.register(new_send)
    with pytest.raises(DuplicateWorkError, match="is an alias of"):
        app.register(taken)
    assert list(app.types) == ["mail.deliver"]


@pytest.mark.parametrize(
    ("aliases", "problem"), [("old", r"aliases=\['old'\]"), ([""], "empty"), ([1], "aliases"), (3, "list")]
)
def test_bad_aliases_are_refused(aliases: Any, problem: str) -> None:
    with pytest.raises((InputError, TypeError), match=problem):
        work(name="x", aliases=aliases)


async def test_a_declaration_may_have_aliases(make_app: MakeApp) -> None:
    def signature(to: str) -> str: ...

    declared = work.declare("mail.deliver", signature, aliases=["mail.send"], upcast=lambda stored: stored)
    earlier = await make_app(old_send).enqueue(old_send("ann"))

    @declared.handler
    async def deliver(to: str) -> str:
        return f"declared {to}"

    async with make_app(deliver) as app:
        assert await app.handle(earlier.id).result(PATIENCE) == "declared ann"


async def test_a_worker_of_chosen_types_serves_their_aliases(make_app: MakeApp) -> None:
    earlier = await make_app(old_send).enqueue(old_send("ann"))
    client = make_app(new_send)
    for types in ([new_send], ["mail.deliver"], ["send"]):
        handle = await make_app(old_send).enqueue(old_send("bob"))
        async with Worker(client, types=types):
            assert await client.handle(handle.id).result(PATIENCE) == "new bob, mail.send"
    assert await client.handle(earlier.id).result(PATIENCE) == "new ann, mail.send"


async def test_the_names_of_a_type_share_its_room(make_app: MakeApp) -> None:
    """Its doer limits them together."""
    running: list[int] = []
    go = asyncio.Event()

    async def busy(n: int) -> int:
        running.append(n)
        await go.wait()
        return n

    @work(name="plain")
    async def plain() -> None: ...

    first = work(name="busy")(busy)
    second = work(name="busier", aliases=["busy"], doer=concurrency(2))(busy)
    handles = [await make_app(first).enqueue(first(n)) for n in range(4)]
    async with make_app(second, plain) as app:
        handles += [await app.enqueue(second(n)) for n in range(4)]
        await until(lambda: len(running) == 2)
        for _ in range(3):  # further claims
            await app.enqueue(plain()).result(PATIENCE)
        assert len(running) == 2
        assert len(app.active()) == 2
        go.set()
        assert [await app.handle(each.id).result(PATIENCE) for each in handles] == [*range(4), *range(4)]


async def test_batches_and_threads_take_items_under_all_names(make_app: MakeApp) -> None:
    @work(name="old.batch")
    async def old_batch(numbers: int) -> int: ...

    @work(name="old.thread")
    async def old_thread(n: int) -> int: ...

    sizes: list[int] = []

    @work.batch(size=4, max_wait=PATIENCE, name="batch", aliases=["old.batch"])
    async def batch(numbers: list[int]) -> list[int]:
        sizes.append(len(numbers))
        return numbers

    @work(name="thread", aliases=["old.thread"])
    def thread(n: int) -> int:
        return n

    producer = make_app(old_batch, old_thread)
    ids = [(await producer.enqueue(old_batch(n))).id for n in range(2)]
    ids += [(await producer.enqueue(old_thread(n))).id for n in range(2)]
    async with make_app(batch, thread) as app:
        ids += [(await app.enqueue(batch(n))).id for n in range(2)]
        ids += [(await app.enqueue(thread(n))).id for n in range(2)]
        assert [await app.handle(id).result(PATIENCE) for id in ids] == [0, 1] * 4
    assert sizes == [4]


# --------------------------------------------------------------------------------------------------- upcast


def split_name(stored: dict[str, Any]) -> dict[str, Any]:
    """Version 1 had `name`, version 2 has `first` and `last`."""
    if "name" in stored:
        first, _, last = stored.pop("name").partition(" ")
        return {**stored, "first": first, "last": last}
    return stored


@work(name="greet")
async def greet_1(name: str, since: datetime | None = None) -> str: ...


@work(name="greet", upcast=split_name)
async def greet_2(first: str, last: str, since: datetime | None = None) -> str:
    return f"{last}, {first}, {since and since.year}"


async def test_upcast_turns_earlier_arguments_into_those_of_today(make_app: MakeApp) -> None:
    since = datetime.fromisoformat("2020-05-06T00:00:00+00:00")
    plain = await make_app(greet_1).enqueue(greet_1("Ada Lovelace"))
    dated = await make_app(greet_1).enqueue(greet_1("Alan Turing", since=since))
    async with make_app(greet_2) as app:
        assert await app.handle(plain.id).result(PATIENCE) == "Lovelace, Ada, None"
        assert await app.handle(dated.id).result(PATIENCE) == "Turing, Alan, 2020"
        assert await app.enqueue(greet_2("Grace", "Hopper", since)).result(PATIENCE) == "Hopper, Grace, 2020"


@pytest.mark.parametrize("store", ["memory"], indirect=True)
@pytest.mark.parametrize(
    ("upcast", "problem"),
    [
        (lambda stored: {"first": "x"}, "last"),
        (lambda stored: stored["missing"], "upcast raised KeyError: 'missing'"),
        (lambda stored: None, "upcast must return the arguments, a dict, not a NoneType"),
    ],
)
async def test_an_upcast_that_fails_leaves_the_item_undecodable(
    make_app: MakeApp, upcast: Any, problem: str
) -> None:
    @work(name="greet", upcast=upcast)
    async def wrong(first: str, last: str) -> None: ...

    async with make_app(wrong, undecodable_grace=0) as app:
        error = await failure(app.enqueue(wrong("a", "b")).result(PATIENCE))
        assert (error.reason, error.error_type) == ("undecodable", "DecodeError")
        assert problem in error.error


async def test_a_failure_has_the_arguments_of_today(make_app: MakeApp) -> None:
    """A compensation is written for the code that it stands beside. It got the arguments of earlier code. If
    `upcast` fails, the arguments are as they are stored."""
    seen: list[dict[str, Any]] = []

    def rename(stored: dict[str, Any]) -> dict[str, Any]:
        return {"account": stored.pop("card").lower()} if "card" in stored else stored

    @work(name="pay", retry=Retry(attempts=1))
    async def pay_1(card: Any) -> None: ...

    @work(name="refund")
    async def refund(failed: Failure) -> None:
        seen.append(failed.input)

    @work(name="pay", upcast=rename, on_dead=refund, on_dead_unstarted=True, retry=Retry(attempts=1))
    async def pay(account: str) -> None:
        raise ConnectionError

    app = make_app(pay_1)
    earlier = [await app.enqueue(pay_1(card)) for card in ("A-7", 7)]
    async with make_app(pay, refund, undecodable_grace=0) as app:
        for each in earlier:
            await failure(app.handle(each.id).group(PATIENCE))
    assert sorted(seen, key=str) == [{"account": "a-7"}, {"card": 7}]


def test_an_async_upcast_is_refused() -> None:
    async def upcast(stored: dict[str, Any]) -> dict[str, Any]: ...

    with pytest.raises(InputError, match="plain function"):
        work(name="x", upcast=upcast)  # type: ignore[arg-type]


# ---------------------------------------------------------------------------------- arguments that do not fit


@work(name="measure")
async def measure_1(n: int) -> str:
    return f"v1 {n}"


@work(name="measure")
async def measure_2(n: int, unit: str = "m") -> str:
    return f"v2 {n} {unit}"


async def test_a_worker_with_new_code_gets_what_old_workers_cannot_decode(
    make_app: MakeApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A deployment: three workers with the old code, then one with the new code."""
    monkeypatch.setattr(undecodable, "BACKOFF", Retry(attempts=None, base=0.1, max=0.2))
    old = [make_app(measure_1) for _ in range(3)]
    for app in old:
        await app.start()
    producer = make_app(measure_2)
    waiting = [await producer.enqueue(measure_2(n, unit="km"), key=f"k{n}") for n in range(5)]
    fits = await producer.enqueue(measure_2(7))
    assert (await old[0].handle(fits.id).result(PATIENCE)).split() in (["v1", "7"], ["v2", "7", "m"])
    for handle in waiting:
        state = await until_status(old[0], handle.id, "scheduled")  # it was given back
        assert state.attempt == 0
    async with make_app(measure_2) as new:
        for n, handle in enumerate(waiting):
            assert await new.handle(handle.id).result(PATIENCE) == f"v2 {n} km"
        states = await new.get([handle.id for handle in waiting])
        assert {(state.attempt, state.failures, state.losses) for state in states if state} == {(1, 0, 0)}


async def test_what_does_not_fit_is_logged_once_a_minute_and_without_frames_of_the_codec(
    make_timed: MakeApp, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "treadle")
    producer = make_timed(measure_2)
    await producer.connect()
    handle = await producer.enqueue(measure_2(1, unit="km"))
    async with run_inline(make_timed(measure_1, lease=1000)) as old:
        for _ in range(65):
            await old.worker.drain()
            await clock.advance(10)
    warned = [each.getMessage() for each in caplog.records if each.levelno == logging.WARNING]
    assert 5 <= len(warned) <= 11, warned
    assert "more times since it was last logged" in warned[1]
    (died,) = [each for each in caplog.records if each.levelno == logging.ERROR]
    assert f"{handle.id} is dead, undecodable: DecodeError: cannot decode" in died.getMessage()
    assert (died.exc_info, died.exc_text) == (None, None)
    (attempt,) = (await handle.state()).history
    assert attempt.traceback == ""


async def test_an_item_that_no_worker_decodes_is_dead_after_the_grace(
    make_timed: MakeApp, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    """Also with restarts in between: the time counts in the store. The log says what does not fit."""
    caplog.set_level(logging.INFO, "treadle")
    producer = make_timed(measure_2)
    await producer.connect()
    # It waits long before it is due: that does not count.
    handle = await producer.enqueue(measure_2(1, unit="km"), delay=5000)
    await clock.advance(5001)
    began, tries = clock.now(), 0
    while (await handle.state()).status != "dead":
        assert clock.now() - began < 1000
        async with run_inline(make_timed(measure_1, lease=1000)) as old:
            for _ in range(5):
                await old.worker.drain()
                state = await handle.state()
                assert state.attempt == 0 or state.status == "dead"
                await clock.advance(10)
                tries += 1
    state = await handle.state()
    assert (state.reason, state.error_type) == ("undecodable", "DecodeError")
    assert 600 <= (state.ended_at or 0) - began <= 660
    assert tries > 50
    warned = [each.getMessage() for each in caplog.records if each.levelno == logging.WARNING]
    assert any(
        all(part in text for part in ("measure", handle.id, "unit", "at most 10 min")) for text in warned
    )
    # An operator requeues it: it has the full time again, for a worker that can decode it.
    await producer.dead.requeue([handle.id])
    async with run_inline(make_timed(measure_1, lease=1000)) as old:
        await old.worker.drain()
        assert (await handle.state()).status == "scheduled"
    await clock.advance(20)
    async with run_inline(make_timed(measure_2, lease=1000)) as new:
        await new.worker.drain()
    assert (await handle.state()).result == "v2 1 km"


async def test_the_delay_grows(make_timed: MakeApp, clock: ManualClock) -> None:
    handle = await make_timed(measure_2).enqueue(measure_2(1, unit="km"))
    delays: list[float] = []
    async with run_inline(make_timed(measure_1, lease=1000)) as old:
        for _ in range(10):
            await old.worker.drain()
            state = await old.handle(handle.id).state()
            delays.append(state.due_at - clock.now())
            await clock.advance(delays[-1] + 0.001)
    assert 0.1 <= delays[0] <= 0.25
    assert 7.5 <= delays[-1] <= 15
    assert delays[5] > delays[2] > delays[0]


@pytest.mark.parametrize("size", [10, LARGE])
async def test_batches_and_large_inputs_are_left_to_others_too(make_app: MakeApp, size: int) -> None:
    @work.batch(size=2, max_wait=0.01, name="texts")
    async def numbers(given: list[int]) -> list[int]:
        return given

    @work.batch(size=2, max_wait=0.01, name="texts")
    async def texts(given: list[str]) -> list[int]:
        return [len(each) for each in given]

    async with make_app(numbers) as old:
        handles = [await make_app(texts).enqueue(texts("x" * size)) for _ in range(3)]
        good = await old.enqueue(numbers(5))
        assert await good.result(PATIENCE) == 5
        async with make_app(texts) as new:
            for handle in handles:
                assert await new.handle(handle.id).result(PATIENCE) == size


@work(name="double", run_in="process")
def double(n: int) -> int:
    return 2 * n


async def test_process_handlers_are_left_to_others_too(make_app: MakeApp) -> None:
    @work(name="double")
    async def in_words(n: str) -> str:
        return n * 2

    async with make_app(double, processes=1):
        handle = await make_app(in_words).enqueue(in_words("ab"))
        async with make_app(in_words) as new:
            assert await new.handle(handle.id).result(PATIENCE) == "abab"


async def test_claim_one_leaves_it_to_others(make_app: MakeApp) -> None:
    app = make_app(measure_1)
    handle = await make_app(measure_2).enqueue(measure_2(1, unit="km"))
    assert await app.claim_one() is None
    state = await app.handle(handle.id).state()
    assert (state.status, state.attempt) == ("scheduled", 0)


@pytest.mark.parametrize("store", ["memory"], indirect=True)
async def test_a_store_that_fails_ends_no_item(
    make_faulty: MakeApp, faults: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is asked how long the item has been undecodable. Without an answer the item is given back."""
    monkeypatch.setattr(undecodable, "BACKOFF", Retry(attempts=None, base=0.02, max=0.1))
    monkeypatch.setattr(undecodable, "YIELD", 0.01)
    async with make_faulty(measure_1, undecodable_grace=0.01) as app:
        faults.fail("claim_key", times=3)
        handle = await make_faulty(measure_2).enqueue(measure_2(1, unit="km"))
        assert (await failure(app.handle(handle.id).result(PATIENCE))).reason == "undecodable"
        (state,) = await app.get([handle.id])
        assert state is not None
        assert undecodable.BACKOFF.base <= (state.ended_at or 0) - state.queued_at
