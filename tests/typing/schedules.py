"""The types of schedules, and what `run` and `next` may be."""

from datetime import UTC, datetime, timedelta
from typing import Any, assert_type

from tests.typing.definitions import add
from treadle import Client, Handle, Schedule, Treadle, Work, next_after, work
from treadle.schedule import ScheduleHandle, ScheduleState


@work
async def tidy() -> None: ...


def maybe() -> Work[int, int] | None:
    return add(1, 2)


async def later() -> Work[int, int]:
    return add(1, 2)


def soon(now: float) -> datetime | None:
    return datetime.fromtimestamp(now + 5, UTC)


async def scheduling(client: Client) -> None:
    assert_type(
        client.schedule("a", cron="0 3 * * *", tz="Europe/Paris", run=lambda: add(1, 2)), ScheduleHandle
    )
    client.schedule("b", every=timedelta(hours=1), run=tidy, catch_up="one", priority=5, key="b")
    client.schedule("c", next=lambda now: now + 60, run=maybe)
    handle = client.schedule("d", next=soon, run=later)
    assert_type(handle.next_at, float | None)
    assert_type(await handle.trigger(), Handle[Any, Any] | None)
    assert_type(await client.schedules.list(), list[ScheduleState])


nightly = Schedule(
    "nightly", cron="0 3 * * *", tz="Europe/Paris", run=lambda: add(1, 2), catch_up="one", queue="q"
)
Treadle(schedules=[nightly, Schedule("b", every=timedelta(hours=1), run=tidy)])

assert_type(next_after("0 3 * * *", 0.0), float | None)
assert_type(next_after("0 3 * * *", datetime.now(UTC), "Europe/Paris"), datetime | None)
