"""Work that recurs: a report every night at three in Paris, and a heartbeat several times a second.

Every process of a fleet has the same schedules, and each occurrence runs once. See docs/schedules.md.

Run it: python examples/schedule_nightly.py
"""

import asyncio
from datetime import datetime
from zoneinfo import ZoneInfo

from treadle import Treadle, work

PARIS = ZoneInfo("Europe/Paris")
beats = asyncio.Semaphore(0)


@work
async def report(region: str) -> str:
    return f"{region}: all is well"


@work
async def heartbeat() -> None:
    print("  beat")
    beats.release()


async def main() -> None:
    app = Treadle("sqlite:///nightly.db", work=[report, heartbeat])
    nightly = app.schedule(
        "nightly report",
        cron="0 3 * * *",
        tz="Europe/Paris",
        run=lambda: report("Europe"),
        catch_up="one",  # if no process ran at three, it runs once when a process starts
        queue="reports",
    )
    beating = app.schedule("heartbeat", every=0.2, run=heartbeat)

    async with app:
        assert nightly.next_at is not None
        print(f"the next report: {datetime.fromtimestamp(nightly.next_at, PARIS):%A %H:%M} in Paris")
        handle = await nightly.trigger()  # do not wait for three o'clock
        assert handle is not None
        print(f"tonight's, now: {await handle.result()}")

        print("heartbeats:")
        for _ in range(3):
            await beats.acquire()
        await beating.cancel()  # for the whole fleet

        for state in await app.schedules.list():
            print(f"what is left: {state.name!r}, {dict(state.timing)}")


if __name__ == "__main__":
    asyncio.run(main())
