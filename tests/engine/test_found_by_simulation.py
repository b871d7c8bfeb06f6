"""Bugs that seeds of the simulator have found, each at the lowest level that shows it."""

from __future__ import annotations

from tests.engine.kit import AT_ONCE, PATIENCE, MakeApp, Seen
from treadle import Context, work
from treadle.events import GroupDone
from treadle.testing import Faults


async def test_a_retry_whose_answer_was_lost_announces_no_group(make_faulty: MakeApp, faults: Faults) -> None:
    """Seed 6: by the time it is asked what a repeated settlement had ended, the next attempt has succeeded.
    That one has said that the group is done."""

    @work(name="flaky", retry=AT_ONCE)
    async def flaky(ctx: Context) -> int:
        if ctx.attempt == 1:
            raise ValueError("once")
        return ctx.attempt

    seen = Seen()
    lost = faults.fail("settle", when="after", match=lambda given: given[0].kind == "retry")
    asked = faults.hold("ended")
    async with make_faulty(flaky, on_event=seen) as app:
        handle = await app.enqueue(flaky())
        await asked.reached()
        await seen.until(GroupDone)
        asked.release()
        assert await handle.result(PATIENCE) == 2
        await app.worker.drain()
    assert lost.hits == 1
    assert len(seen.of(GroupDone, handle.id)) == 1
