"""The history of failed attempts (SPEC §5)."""

from __future__ import annotations

import time

import pytest

from tests.engine.kit import PATIENCE, MakeApp, class_path, failure
from treadle import Context, Retry, work


async def test_the_last_ten_failed_attempts_are_kept(make_app: MakeApp) -> None:
    """§5: With error type, message, traceback, time and worker."""

    @work(name="always", retry=Retry(attempts=12, base=0))
    async def always(ctx: Context) -> None:
        raise LookupError(f"attempt {ctx.attempt}")

    async with make_app(always, worker_id="w-1") as app:
        before = time.time()
        handle = await app.enqueue(always())
        await failure(handle.result(PATIENCE))
        history = (await handle.state()).history
        assert [each.attempt for each in history] == list(range(3, 13))
        assert {each.error_type for each in history} == {"LookupError"}
        assert [each.message for each in history] == [f"attempt {n}" for n in range(3, 13)]
        assert {each.worker for each in history} == {"w-1"}
        assert all(before - 1 < each.at < time.time() + 1 for each in history)
        assert "in always" in history[0].traceback
        assert "LookupError: attempt 3" in history[0].traceback


class Unspeakable(Exception):
    """An exception whose text cannot be made."""

    def __str__(self) -> str:
        raise RuntimeError("no words")


@pytest.mark.parametrize(
    "error",
    [
        ValueError("x" * 50_000),
        ValueError("\N{GRINNING FACE}" * 20_000),
        ValueError("nul \x00 in the middle"),
        ValueError("lone \ud800 surrogate"),
        Unspeakable(),
        SystemExit(3),
        KeyboardInterrupt(),
    ],
    ids=["long", "wide", "nul", "surrogate", "unspeakable", "exit", "interrupt"],
)
async def test_any_error_can_be_kept(make_app: MakeApp, error: BaseException) -> None:
    """§5: Each text is cut at 10 kB. Every error can be stored."""

    @work(name="strange", retry=Retry(attempts=2, base=0))
    async def strange() -> None:
        raise error

    async with make_app(strange) as app:
        handle = await app.enqueue(strange())
        failed = await failure(handle.result(PATIENCE))
        assert (failed.error_type, failed.reason, failed.attempts) == (
            class_path(error),
            "exhausted",
            2,
        )
        for kept in (await handle.state()).history:
            assert len(kept.message.encode()) <= 10_000
            assert len(kept.traceback.encode()) <= 10_000
            assert kept.error_type == class_path(error)


class Declined(Exception):
    pass


async def test_the_class_of_an_error_is_stored_with_its_module(make_app: MakeApp) -> None:
    @work(name="declines", retry=Retry(attempts=1))
    async def declines() -> None:
        raise Declined("no")

    async with make_app(declines) as app:
        handle = await app.enqueue(declines())
        failed = await failure(handle.result(PATIENCE))
        assert failed.error_type == f"{__name__}.Declined"
        state = await handle.state()
        assert (state.error_type, state.error) == (f"{__name__}.Declined", f"{__name__}.Declined: no")


async def test_dead_letters_have_their_history(make_app: MakeApp) -> None:
    @work(name="declines", retry=Retry(attempts=2, base=0))
    async def declines() -> None:
        raise Declined("no")

    async with make_app(declines) as app:
        await failure(app.enqueue(declines()).result(PATIENCE))
        (dead,) = (await app.dead.list()).items
        assert [each.attempt for each in dead.history] == [1, 2]
        (listed,) = (await app.list("dead")).items
        assert listed.history == ()
        (listed,) = (await app.list("dead", history=True)).items
        assert "Declined: no" in listed.history[-1].traceback
