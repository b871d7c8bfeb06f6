"""Mistakes that programs make. None is silent: each is refused, told in the log, or harmless.

A mistake is a function that makes it and returns what it was told. `MISTAKES` has the words to look for.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeAlias

import pytest
import typer

from tests.engine.kit import PATIENCE
from treadle import Client, Schedule, Treadle, WaitTimeout, Work, work
from treadle.cli.worker import worker
from treadle.doers import concurrency
from treadle.doers.base import BaseDoer
from treadle.errors import InputError, ScheduleError
from treadle.testing import ManualClock

Log: TypeAlias = pytest.LogCaptureFixture


@work
async def add(a: int, b: int = 0) -> int:
    return a + b


@work
async def collect(one: int, seen: list[int] = [], *, also: dict[str, int] = {}) -> tuple[list[int], int]:  # noqa: B006
    seen.append(one)
    also[str(one)] = one
    return seen, len(also)


class Mistakes:
    """What a mistake needs: the log, and a directory for a store that other processes could reach."""

    def __init__(self, log: Log, directory: Path) -> None:
        self.log = log
        self.url = f"sqlite:///{directory}/work.db"

    def told(self) -> str:
        """The warnings and errors in the log."""
        return "\n".join(each.getMessage() for each in self.log.records if each.levelno >= logging.WARNING)


# -- the mistakes ------------------------------------------------------------------------------------------


async def a_schedule_name_twice(_: Mistakes) -> str:
    app = Treadle(work=[add])
    app.schedule("nightly", every=60, run=lambda: add(1))
    with pytest.raises(ScheduleError) as caught:
        app.schedule("nightly", every=60, run=lambda: add(2))
    return str(caught.value)


async def empty_queues(_: Mistakes) -> str:
    told = io.StringIO()
    with contextlib.redirect_stderr(told), pytest.raises(typer.Exit):
        worker("shop:app", queues="")
    return told.getvalue()


async def a_mutable_default(_: Mistakes) -> str:
    async with Treadle(work=[collect]) as app:
        return "".join([f"{await app.enqueue(collect(n)).result(PATIENCE)} " for n in (1, 2)])


async def a_local_function(mistakes: Mistakes) -> str:
    @work
    async def local() -> None: ...

    async with Client(mistakes.url) as client:
        await client.enqueue_many([local(), local()])
        await client.enqueue(local())
    assert mistakes.told().count("a_local_function") == 1
    return mistakes.told()


async def no_worker(mistakes: Mistakes) -> str:
    clock = ManualClock()
    async with Client(clock=clock) as client:
        waiting = asyncio.ensure_future(client.enqueue(add(1), id="sum-1").result())
        for _ in range(100):
            await asyncio.sleep(0)
            clock.advance(0.5)
        waiting.cancel()
    assert mistakes.told().count("sum-1 still waits") == 1
    return mistakes.told()


async def no_worker_in_time(_: Mistakes) -> str:
    async with Client() as client:
        with pytest.raises(WaitTimeout) as caught:
            await client.enqueue(add(1), id="sum-1").result(timeout=0.01)
        return str(caught.value)


async def a_number_as_doer(_: Mistakes) -> str:
    with pytest.raises(InputError) as caught:
        work(doer=5)
    return str(caught.value)


async def an_option_of_another_library(_: Mistakes) -> str:
    options: Any = {"countdown": 5}
    with pytest.raises(TypeError) as caught:
        Treadle().enqueue(add(1), **options)
    return str(caught.value)


async def compensation_of_another_type(_: Mistakes) -> str:
    with pytest.raises(TypeError) as caught:
        work(on_dead=add)  # type: ignore[arg-type]
    return str(caught.value)


async def a_forgotten_await(mistakes: Mistakes) -> str:
    with pytest.warns(RuntimeWarning, match="never awaited"):
        Treadle(work=[add]).enqueue(add(1))  # pyright: ignore[reportUnusedCoroutine]
    return mistakes.told()


async def a_schedule_that_raises(mistakes: Mistakes) -> str:
    def run() -> Work[Any, Any]:
        raise OSError("no route")

    async with Treadle(work=[add], schedules=[Schedule("nightly", every=0.01, run=run)]) as app:
        async with asyncio.timeout(PATIENCE):
            while not (found := await app.problems()):  # noqa: ASYNC110  it has no event
                await asyncio.sleep(0.01)
    return found[0].text


MISTAKES: list[tuple[Callable[[Mistakes], Awaitable[str]], str]] = [
    (
        a_schedule_name_twice,
        "this app has a schedule 'nightly' already: choose another name, or end the",
    ),
    (empty_queues, "--queues '' names no queues: name some, as in --queues a,b, or leave it out"),
    (a_mutable_default, "([1], 1) ([2], 1)"),
    (a_local_function, "a_local_function() defines 'tests.engine.test_silent_mistakes.local', so other proc"),
    (no_worker, "no live worker runs tests.engine.test_silent_mistakes.add. `treadle why sum-1` says more"),
    (
        no_worker_in_time,
        "'sum-1' has not ended after 0.01 s: `treadle why sum-1`, or app.why('sum-1'), says what it waits",
    ),
    (
        a_number_as_doer,
        "doer=5 has no method available: give one of treadle.doers, as in doer=conc",
    ),
    (an_option_of_another_library, "enqueue has no option 'countdown': did you mean 'delay'?"),
    (compensation_of_another_type, "cannot be on_dead"),
    (a_forgotten_await, "was never awaited: nothing was submitted. Write `await app.enqueue(...)`"),
    (a_schedule_that_raises, "no route"),
]


@pytest.mark.parametrize(("mistake", "message"), MISTAKES, ids=lambda each: getattr(each, "__name__", ""))
async def test_no_mistake_is_silent(
    mistake: Callable[[Mistakes], Awaitable[str]],
    message: str,
    caplog: Log,
    tmp_path: Path,
) -> None:
    assert message in await mistake(Mistakes(caplog, tmp_path))


# -- what is like them -------------------------------------------------------------------------------------

app_options: Any = Treadle


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: app_options(queues=[]),
            r"queues=\[\] would serve nothing: leave it out to serve all q",
        ),
        (lambda: app_options(tenants=()), r"tenants=\(\) would serve nothing"),
        (lambda: app_options(doer=5), "doer=5 has no method available"),
        (lambda: work(doer=concurrency), r"makes a doer, and is none: call it, as in doer=concurrency\(5\)"),
        (lambda: work.batch(doer=BaseDoer), "makes a doer, and is none"),
    ],
)
def test_what_is_like_them_is_refused(make: Callable[[], object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        make()


@pytest.mark.parametrize(
    ("option", "meant"),
    [("eta", "run_at"), ("task_id", "id"), ("max_retries", "retry")],
)
def test_options_of_other_libraries_are_known(option: str, meant: str) -> None:
    options: Any = {option: 5}
    with pytest.raises(TypeError, match=f"has no option '{option}': did you mean '{meant}'"):
        Treadle().enqueue(add(1), **options)


async def test_a_local_function_that_runs_here_is_no_mistake(tmp_path: Path, caplog: Log) -> None:
    @work
    async def local() -> int:
        return 1

    async with Treadle(f"sqlite:///{tmp_path}/work.db", work=[local]) as app:
        assert await app.enqueue(local()).result(PATIENCE) == 1
    assert Mistakes(caplog, tmp_path).told() == ""


async def test_a_local_function_with_a_name_of_its_own_is_no_mistake(tmp_path: Path, caplog: Log) -> None:
    """A worker may have another function under that name."""

    @work(name="books.close")
    async def local() -> None: ...

    async with Client(f"sqlite:///{tmp_path}/work.db") as client:
        await client.enqueue(local())
    assert Mistakes(caplog, tmp_path).told() == ""


async def test_a_wait_for_a_worker_that_is_there_is_no_mistake(tmp_path: Path, caplog: Log) -> None:
    clock = ManualClock()
    async with Treadle(clock=clock, work=[add]) as app:
        waiting = asyncio.ensure_future(app.enqueue(add(1), delay=3600).result())
        for _ in range(100):
            await asyncio.sleep(0)
            clock.advance(0.5)
        waiting.cancel()
    assert Mistakes(caplog, tmp_path).told() == ""
