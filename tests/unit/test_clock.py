import asyncio
import threading
from datetime import UTC, datetime, timedelta

import pytest

from treadle.base.timing import Clock, SystemClock
from treadle.errors import InputError
from treadle.testing import ManualClock


@pytest.mark.parametrize("clock", [SystemClock(), ManualClock()])
def test_both_clocks_satisfy_the_protocol(clock: Clock) -> None:
    assert isinstance(clock, Clock)


async def test_the_system_clock_sleeps_and_goes_forward() -> None:
    clock = SystemClock()
    before = clock.monotonic()
    await clock.sleep(0.01)
    assert clock.monotonic() - before >= 0.009
    assert abs(clock.now() - datetime.now(UTC).timestamp()) < 5


def test_a_manual_clock_stands_still() -> None:
    clock = ManualClock(100)
    assert (clock.now(), clock.monotonic()) == (100.0, 0.0)
    clock.advance(2.5)
    assert (clock.now(), clock.monotonic()) == (102.5, 2.5)
    clock.advance(timedelta(minutes=1))
    assert (clock.now(), clock.monotonic()) == (162.5, 62.5)


def test_a_manual_clock_can_be_set() -> None:
    clock = ManualClock(datetime(2026, 1, 1, tzinfo=UTC))
    clock.set(datetime(2026, 1, 2, tzinfo=UTC))
    assert (clock.now(), clock.monotonic()) == (datetime(2026, 1, 2, tzinfo=UTC).timestamp(), 86400)


def test_monotonic_time_never_goes_back() -> None:
    clock = ManualClock(100)
    clock.set(50)
    assert (clock.now(), clock.monotonic()) == (50.0, 0.0)
    with pytest.raises(InputError, match="negative"):
        clock.advance(-1)


async def test_sleepers_wake_in_the_order_in_which_they_are_due() -> None:
    clock, woken = ManualClock(), list[str]()

    async def sleeper(name: str, length: float) -> None:
        await clock.sleep(length)
        woken.append(name)

    async with asyncio.TaskGroup() as tasks:
        for name, length in [("late", 3), ("early", 1), ("middle", 2), ("early too", 1)]:
            tasks.create_task(sleeper(name, length))
        await clock.wait_for_sleepers(4)
        await clock.advance(0.5)
        assert woken == []
        await clock.advance(0.5)
        assert woken == ["early", "early too"]
        await clock.advance(10)
        assert woken == ["early", "early too", "middle", "late"]


async def test_a_long_jump_wakes_a_repeating_sleeper_once() -> None:
    clock, seen = ManualClock(0), list[float]()

    async def tick() -> None:
        while True:
            await clock.sleep(1)
            seen.append(clock.now())

    task = asyncio.create_task(tick())
    await clock.wait_for_sleepers()
    await clock.advance(10)
    assert seen == [10.0]
    task.cancel()


async def test_a_manual_clock_shows_its_sleepers_and_the_next_wake() -> None:
    clock = ManualClock()
    assert (clock.sleepers, clock.next_wake) == (0, None)
    first, second = (asyncio.create_task(clock.sleep(length)) for length in (3, 5))
    await clock.wait_for_sleepers(2)
    await clock.wait_for_sleepers(1)
    clock.advance(1)
    assert (clock.sleepers, clock.next_wake) == (2, 2.0)
    first.cancel()
    await asyncio.wait([first])
    assert (clock.sleepers, clock.next_wake) == (1, 4.0)
    await clock.advance(4)
    assert second.done()
    assert (clock.sleepers, clock.next_wake) == (0, None)


@pytest.mark.parametrize("length", [0, -1])
async def test_a_sleep_of_zero_lets_other_tasks_run(length: float) -> None:
    ran: list[str] = []
    asyncio.get_running_loop().call_soon(ran.append, "other")
    await ManualClock().sleep(length)
    assert ran == ["other"]


async def test_another_thread_may_move_the_clock() -> None:
    clock = ManualClock()
    sleeper = asyncio.create_task(clock.sleep(5))
    await clock.wait_for_sleepers()
    threading.Thread(target=clock.advance, args=(5,)).start()
    await asyncio.wait_for(sleeper, 10)


async def test_a_cancelled_wait_for_sleepers_is_dropped() -> None:
    clock = ManualClock()
    watcher = asyncio.create_task(clock.wait_for_sleepers())
    await asyncio.sleep(0)
    watcher.cancel()
    sleeper = asyncio.create_task(clock.sleep(1))
    await clock.wait_for_sleepers()
    await clock.advance(1)
    assert sleeper.done()


def test_a_sleeper_of_a_closed_loop_is_dropped() -> None:
    clock = ManualClock()
    loop = asyncio.new_event_loop()
    task = loop.create_task(clock.sleep(1))
    loop.run_until_complete(asyncio.sleep(0))
    task.cancel()
    loop.run_until_complete(asyncio.wait([task]))
    loop.close()
    clock.advance(2)
    assert clock.sleepers == 0
