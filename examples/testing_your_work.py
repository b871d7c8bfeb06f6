"""Tests of work types: deterministic, in memory, and without real waiting.

Run it: pytest examples/testing_your_work.py
"""

import asyncio

import pytest

from treadle import Context, Result, Retry, Treadle, WorkFailed, work
from treadle.testing import ManualClock, drain, run_inline

# ---------------------------------------------------------------------------------- the work to be tested

SENT: list[str] = []


@work(retry=Retry(attempts=3, base=60, factor=2, max=3600, jitter=0))
async def send(ctx: Context, to: str) -> None:
    if to == "greylisted@example.org" and ctx.attempt < 3:
        raise ConnectionError("451 try again later")
    SENT.append(to)


@work
async def remind(ctx: Context, to: list[str]) -> Result[None, None]:
    return ctx.queue([send(address) for address in to], expires_in=150)


@work
def subject(name: str) -> str:
    return f"Dear {name}"


# ---------------------------------------------------------------------------------------------- the tests


def test_the_function_itself() -> None:
    assert subject.fn("Ada") == "Dear Ada"  # no app, no store


async def test_a_whole_workflow() -> None:
    SENT.clear()
    async with run_inline(Treadle(work=[send, remind])) as app:
        await app.enqueue(remind(["ada@example.org", "bob@example.org"]))
        await drain(app)  # returns when every due item has run, without sleeps or polling
        assert SENT == ["ada@example.org", "bob@example.org"]


async def test_retries_without_waiting() -> None:
    clock = ManualClock()
    async with run_inline(Treadle(work=[send], clock=clock)) as app:
        handle = await app.enqueue(send("greylisted@example.org"))
        for delay in (60, 120):
            await drain(app)
            assert (await handle.state()).status == "scheduled"
            await clock.advance(delay)
        await handle.result()
        assert (await handle.state()).attempt == 3


async def test_that_it_gives_up_in_time() -> None:
    clock = ManualClock()
    async with run_inline(Treadle(work=[send, remind], clock=clock)) as app:
        handle = await app.enqueue(remind(["greylisted@example.org"]))
        await drain(app)
        await clock.advance(60)  # the second attempt. The third would come after the deadline
        with pytest.raises(WorkFailed, match="expired"):
            await handle.group()


if __name__ == "__main__":
    test_the_function_itself()
    for test in (test_a_whole_workflow, test_retries_without_waiting, test_that_it_gives_up_in_time):
        asyncio.run(test())
        print("passed:", test.__name__)
