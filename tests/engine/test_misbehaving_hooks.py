"""Hooks that raise anything, return nonsense or are async where nothing waits. Items end as they should."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

import pytest

from tests.engine.kit import PATIENCE, Errors, MakeApp, class_path, failure, until
from treadle import Context, EncodeError, InputError, PayloadTooLarge, Result, Retry, Treadle, work
from treadle.events import Succeeded


class Rude(BaseException):
    """A BaseException that is not an Exception."""


RUDE = [
    SystemExit(3),
    KeyboardInterrupt(),
    GeneratorExit(),
    asyncio.CancelledError(),
    Rude("rude"),
    ValueError("usual"),
]
rude_errors = pytest.mark.parametrize("error", RUDE, ids=lambda error: type(error).__name__)
memory_only = pytest.mark.parametrize("store", ["memory"], indirect=True)  # the store is not involved


@work(name="echo")
async def echo(n: int) -> int:
    return n


@work(name="broken", retry=Retry(attempts=2, base=0))
async def broken() -> None:
    raise LookupError("broken")


async def coroutine() -> Any: ...


def raises(error: BaseException) -> Callable[..., Any]:
    def hook(*_: object) -> Any:
        raise error

    return hook


def raises_later(error: BaseException) -> Callable[..., Any]:
    async def hook(*_: object) -> Any:
        await asyncio.sleep(0)
        raise error

    return hook


# ----------------------------------------------------------------------------------------------- on_failure


@memory_only
@rude_errors
async def test_whatever_on_failure_raises_the_attempt_has_failed(
    make_app: MakeApp, sound: None, error: BaseException
) -> None:
    errors = Errors()
    async with make_app(broken, echo, on_failure=raises(error), on_error=errors) as app:
        died = await failure(app.enqueue(broken()).result(PATIENCE))
        assert (died.reason, died.attempts, died.error_type) == ("exhausted", 2, "LookupError")
        assert [type(each) for each in errors.of("hook")] == [type(error)] * 2
        assert await app.enqueue(echo(1)).result(PATIENCE) == 1


@memory_only
@pytest.mark.parametrize(
    "answer", ["die", 1, True, coroutine, Exception], ids=["die", "1", "True", "coroutine", "class"]
)
async def test_an_answer_of_on_failure_that_means_nothing_is_reported(
    make_app: MakeApp, sound: None, answer: Any
) -> None:
    """It means retry. A coroutine is closed: warnings are errors in these tests."""
    errors = Errors()

    def on_failure(*_: object) -> Any:
        return coroutine() if answer is coroutine else answer

    async with make_app(broken, on_failure=on_failure, on_error=errors) as app:
        assert (await failure(app.enqueue(broken()).result(PATIENCE))).attempts == 2
        assert ["on_failure" in str(each) for each in errors.of("hook")] == [True, True]


@memory_only
async def test_a_backoff_that_raises_anything_is_reported(make_app: MakeApp, sound: None) -> None:
    errors = Errors()

    @work(name="curve", retry=Retry(attempts=2, base=0, backoff=raises(SystemExit(1))))
    async def curve() -> None:
        raise LookupError

    async with make_app(curve, on_error=errors) as app:
        assert (await failure(app.enqueue(curve()).result(PATIENCE))).attempts == 2
        assert SystemExit in [type(each) for each in errors.of("hook")]


# --------------------------------------------------------------------------------------------------- accept


@memory_only
@rude_errors
@pytest.mark.parametrize("kind", ["sync", "async"])
@pytest.mark.parametrize("batched", [False, True], ids=["single", "batch"])
async def test_whatever_accept_raises_the_item_is_left_to_others(
    make_app: MakeApp, sound: None, error: BaseException, kind: str, batched: bool
) -> None:
    errors, asked = Errors(), 0

    @work.batch(name="doubled", size=1)
    async def doubled(numbers: list[int]) -> list[int]:
        return numbers

    raising = raises(error) if kind == "sync" else raises_later(error)

    def accept(_: object) -> Any:
        nonlocal asked
        asked += 1
        return raising() if asked == 1 else True

    type_ = doubled if batched else echo
    async with make_app(echo, doubled, accept=accept, on_error=errors) as app:
        handle = await app.enqueue(type_(1))
        assert await handle.result(PATIENCE) == 1
        assert (await handle.state()).attempt == 1
        assert (asked, [type(each) for each in errors.of("hook")]) == (2, [type(error)])


@memory_only
async def test_an_item_that_is_cancelled_while_accept_waits_ends_at_once(
    make_app: MakeApp, sound: None
) -> None:
    waiting, ended = asyncio.Event(), asyncio.Event()

    async def accept(_: object) -> bool:
        waiting.set()
        try:
            await asyncio.sleep(PATIENCE)
        finally:
            ended.set()
        return True

    async with make_app(echo, accept=accept) as app:
        handle = await app.enqueue(echo(1))
        await asyncio.wait_for(waiting.wait(), PATIENCE)
        await handle.cancel()
        await asyncio.wait_for(ended.wait(), PATIENCE)
        await until(lambda: app.active() == [])


class Undecided:
    def __bool__(self) -> bool:
        raise ValueError("neither")


@memory_only
async def test_an_answer_of_accept_that_cannot_be_read_declines(make_app: MakeApp, sound: None) -> None:
    errors, answers = Errors(), iter([Undecided()])
    async with make_app(echo, accept=lambda _: next(answers, True), on_error=errors) as app:
        assert await app.enqueue(echo(1)).result(PATIENCE) == 1
        assert [str(each) for each in errors.of("hook")] == ["neither"]


# --------------------------------------------------------------------------------------------- other hooks


@memory_only
@rude_errors
async def test_whatever_on_event_and_on_error_raise_items_go_on(
    make_app: MakeApp, sound: None, error: BaseException
) -> None:
    async with make_app(echo, on_event=raises(error), on_error=raises(error)) as app:
        assert await app.enqueue(echo(1)).result(PATIENCE) == 1


@memory_only
async def test_a_coroutine_of_on_event_is_reported_and_closed(make_app: MakeApp, sound: None) -> None:
    errors = Errors()
    async with make_app(echo, on_event=lambda _: coroutine(), on_error=errors) as app:
        assert await app.enqueue(echo(1)).result(PATIENCE) == 1
        assert "on_event returned a coroutine" in str(errors.of("hook")[0])


@memory_only
async def test_a_coroutine_of_on_error_is_reported_and_closed(
    make_app: MakeApp, sound: None, caplog: pytest.LogCaptureFixture
) -> None:
    async with make_app(echo, on_event=raises(ValueError()), on_error=lambda *_: coroutine()) as app:
        assert await app.enqueue(echo(1)).result(PATIENCE) == 1
    assert "on_error returned a coroutine" in caplog.text


@memory_only
@rude_errors
@pytest.mark.parametrize("kind", ["sync", "async"])
async def test_whatever_backpressure_raises_the_worker_claims_again(
    make_app: MakeApp, sound: None, error: BaseException, kind: str
) -> None:
    errors, asked = Errors(), 0
    raising = raises(error) if kind == "sync" else raises_later(error)

    def backpressure(_: object) -> Any:
        nonlocal asked
        asked += 1
        return raising() if asked == 1 else None

    async with make_app(echo, backpressure=backpressure, on_error=errors) as app:
        assert await app.enqueue(echo(1)).result(PATIENCE) == 1
        assert [type(each) for each in errors.of("hook")] == [type(error)]


@memory_only
@pytest.mark.parametrize("answer", [float("inf"), float("nan"), -1, "soon", [1]], ids=repr)
async def test_an_answer_of_backpressure_that_is_no_duration_pauses_one_interval(
    make_app: MakeApp, sound: None, answer: Any
) -> None:
    errors, answers = Errors(), iter([answer])
    async with make_app(echo, backpressure=lambda _: next(answers, None), on_error=errors) as app:
        assert await app.enqueue(echo(1)).result(PATIENCE) == 1
        assert "backpressure" in str(errors.of("hook")[0])


@memory_only
@rude_errors
async def test_whatever_a_fold_raises_only_its_item_fails(
    make_app: MakeApp, sound: None, error: BaseException
) -> None:
    @work(name="folds", retry=Retry(attempts=1))
    async def folds(ctx: Context) -> Result[int]:
        return ctx.result(1, append=raises(error))

    async with make_app(folds, echo) as app:
        others = await app.enqueue_many([echo(n) for n in range(5)])
        died = await failure(app.enqueue(folds()).result(PATIENCE))
        assert died.error_type == class_path(error)
        assert [await each.result(PATIENCE) for each in others] == list(range(5))


@memory_only
@pytest.mark.parametrize("hidden", [False, True], ids=["async def", "lambda"])
async def test_an_async_fold_fails_its_item(make_app: MakeApp, sound: None, hidden: bool) -> None:
    async def later() -> int:
        return 1

    async def append(_: object) -> int:
        return 1

    @work(name="folds", retry=Retry(attempts=1))
    async def folds(ctx: Context) -> Result[int]:
        return ctx.result(1, append=(lambda _: later()) if hidden else append)  # type: ignore[call-overload]

    async with make_app(folds) as app:
        died = await failure(app.enqueue(folds()).result(PATIENCE))
        assert "append" in str(died)


@memory_only
@rude_errors
async def test_whatever_the_options_of_a_child_raise_its_parent_is_dead(
    make_app: MakeApp, sound: None, error: BaseException
) -> None:
    @work(name="child", options=raises(error))
    async def child() -> None: ...

    @work(name="parent")
    async def parent(ctx: Context) -> Result[None]:
        return ctx.queue(child())

    async with make_app(parent, child, echo) as app:
        died = await failure(app.enqueue(parent()).result(PATIENCE))
        assert (died.reason, died.error_type) == ("bad_result", class_path(error))
        assert await app.enqueue(echo(1)).result(PATIENCE) == 1


@memory_only
@pytest.mark.parametrize("answer", ["queue", ["queue"], 3, coroutine], ids=["str", "list", "3", "coroutine"])
async def test_options_that_are_no_options_name_the_type(make_app: MakeApp, sound: None, answer: Any) -> None:
    def options(_: object) -> Any:
        return coroutine() if answer is coroutine else answer

    @work(name="odd", options=options)
    async def odd() -> None: ...

    async with make_app(odd) as app:
        with pytest.raises((ValueError, TypeError), match="options\\(input\\) of 'odd'"):
            await app.enqueue(odd())


@memory_only
async def test_a_plain_middleware_fails_the_attempt_with_a_hint(make_app: MakeApp, sound: None) -> None:
    def plain(ctx: Context, call_next: object) -> None: ...

    @work(name="once", retry=Retry(attempts=1))
    async def once() -> None: ...

    async with make_app(once, middleware=[plain]) as app:
        died = await failure(app.enqueue(once()).result(PATIENCE))
        assert "a middleware must be async" in died.error


@memory_only
@rude_errors
async def test_whatever_a_schedule_raises_the_next_occurrence_fires(
    make_app: MakeApp, sound: None, error: BaseException
) -> None:
    errors, calls, fired = Errors(), 0, asyncio.Event()

    def run() -> Any:
        nonlocal calls
        calls += 1
        if calls == 1:
            raise error
        return echo(1)

    def on_event(event: object) -> None:
        if isinstance(event, Succeeded):
            fired.set()

    async with make_app(echo, on_error=errors, on_event=on_event) as app:
        app.schedule("often", every=0.05, run=run)
        await asyncio.wait_for(fired.wait(), PATIENCE)
        assert type(error) in [type(each) for each in errors.of("schedule")]


@memory_only
async def test_a_subscriber_to_metrics_that_raises_anything_is_logged(
    make_app: MakeApp, sound: None, caplog: pytest.LogCaptureFixture
) -> None:
    async with make_app(echo) as app:
        app.metrics.subscribe(raises(SystemExit(1)))
        app.metrics.subscribe(lambda _: coroutine())
        with caplog.at_level(logging.WARNING):
            assert await app.enqueue(echo(1)).result(PATIENCE) == 1
            await until(lambda: "returned a coroutine" in caplog.text)


@memory_only
@rude_errors
async def test_whatever_a_codec_raises_only_its_item_is_dead(
    make_app: MakeApp, sound: None, error: BaseException
) -> None:
    class Codec:
        def encode(self, value: object) -> bytes:
            return b"1"

        def decode(self, data: bytes) -> object:
            raise error

    @work(name="sealed", codec=Codec())
    async def sealed() -> None: ...

    async with make_app(sealed, echo, undecodable_grace=0) as app:
        others = await app.enqueue_many([echo(n) for n in range(5)])
        died = await failure(app.enqueue(sealed()).result(PATIENCE))
        assert died.reason == "undecodable"
        assert [await each.result(PATIENCE) for each in others] == list(range(5))


class Moody:
    """A doer whose `available` raises."""

    def available(self) -> int:
        raise ValueError("moody")

    def submit(self, task: Any, **_: object) -> None:
        raise AssertionError

    async def idle(self) -> None: ...


@memory_only
async def test_a_doer_that_cannot_say_its_room_stops_only_its_type(make_app: MakeApp, sound: None) -> None:
    @work(name="moody", doer=Moody())
    async def moody() -> None: ...

    async with make_app(moody, echo) as app:
        await app.enqueue(moody())
        assert await app.enqueue(echo(1)).result(PATIENCE) == 1


# ---------------------------------------------------------------------------------- codecs, ids, doers, logs


@memory_only
@pytest.mark.parametrize("wrong", ["text", None, bytearray(b"1"), 7], ids=["str", "None", "bytearray", "int"])
async def test_a_codec_that_gives_no_bytes_is_refused(make_app: MakeApp, sound: None, wrong: Any) -> None:
    """PostgreSQL refused the settlements of other items in the same batch for it."""

    class Codec:
        def __init__(self) -> None:
            self.answers = 1

        def encode(self, value: object) -> Any:
            self.answers -= 1
            return wrong if self.answers < 0 else b"{}"

        def decode(self, data: bytes) -> object:
            return {}

    codec = Codec()

    @work(name="textual", codec=codec)
    async def textual() -> int:
        return 1

    async with make_app(textual) as app:
        died = await failure(app.enqueue(textual()).result(PATIENCE))
        assert (died.reason, died.error_type) == ("bad_result", "BadResultError")
        with pytest.raises(EncodeError, match=f"returned a {type(wrong).__name__}, not bytes"):
            await app.enqueue(textual())


@memory_only
async def test_results_that_are_given_from_outside_have_the_same_limit(make_app: MakeApp) -> None:
    """`complete` stored results of any size."""
    app = make_app(echo, max_payload=100)
    handle = await app.enqueue(echo(1))
    with pytest.raises(EncodeError):
        await app.complete(handle.id, "x" * 200)
    with pytest.raises(PayloadTooLarge):
        await app.complete(handle.id, 10**120)
    lease = await app.claim_one()
    assert lease is not None
    with pytest.raises(PayloadTooLarge):
        await lease.complete(10**120)
    await lease.complete(7)
    assert await handle.result(PATIENCE) == 7


def test_the_ids_of_an_app_are_checked() -> None:
    with pytest.raises(InputError, match="generated id='two words'"):
        Treadle(generate_id=lambda: "two words")


def test_a_doer_whose_submit_is_async_is_refused() -> None:
    """Its items were claimed, and never ran."""

    class Later(Moody):
        async def submit(self, task: Any, **_: object) -> None: ...  # type: ignore[override]

    with pytest.raises(InputError, match=r"doer\.submit"):
        Treadle(doer=Later())  # type: ignore[arg-type]


@memory_only
@pytest.mark.parametrize(
    ("log_context", "usable"),
    [
        (raises(ValueError("no")), False),
        (lambda _: coroutine(), False),
        (lambda _: 7, False),
        (lambda _: {"args": 1, "name": 2, "message": 3}, True),
    ],
    ids=["raises", "coroutine", "number", "names of logging"],
)
async def test_a_log_context_never_fails_an_attempt(
    make_app: MakeApp, sound: None, caplog: pytest.LogCaptureFixture, log_context: Any, usable: bool
) -> None:
    @work(name="speaks", retry=Retry(attempts=1), log_context=log_context)
    async def speaks(ctx: Context) -> int:
        ctx.log.warning("spoken")
        return 1

    async with make_app(speaks) as app:
        assert await app.enqueue(speaks()).result(PATIENCE) == 1
    (record,) = [record for record in caplog.records if record.msg == "spoken"]
    assert (record.type, record.attempt) == ("speaks", 1)  # type: ignore[attr-defined]
    assert getattr(record, "input_args", None) == (1 if usable else None)
    assert ("log_context of speaks failed" in caplog.text) is not usable


async def test_one_result_that_cannot_be_decoded_does_not_hide_the_others(
    make_app: MakeApp, sound: None
) -> None:
    """`list` and `get` raised for the whole page."""

    @work(name="changed")
    async def changed() -> str:
        return "text"

    @work(name="changed")
    async def changed_since() -> int:
        return 1

    async with make_app(changed, echo) as app:
        ids = [await app.enqueue(changed()), await app.enqueue(echo(5))]
        assert [await each.result(PATIENCE) for each in ids] == ["text", 5]
    reader = make_app(changed_since, echo)
    assert [item.result for item in (await reader.list(oldest_first=True)).items] == [b'"text"', 5]
    assert [item and item.result for item in await reader.get(ids)] == [b'"text"', 5]
