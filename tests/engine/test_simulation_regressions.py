"""Regression tests for bugs that the simulator found, each at the lowest level that shows the bug."""

from __future__ import annotations

from tests.engine.kit import AT_ONCE, PATIENCE, MakeApp, Seen
from treadle import Context, work
from treadle.events import GroupDone
from treadle.testing import Faults


async def test_a_repeated_retry_settlement_does_not_announce_the_group_again(
    make_faulty: MakeApp, faults: Faults
) -> None:
    """Seed 6. The answer to a retry settlement is lost. When the repeated settlement asks what it ended,
    the next attempt has already succeeded and announced the end of the group."""

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
