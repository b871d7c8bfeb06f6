"""How many Python calls an item takes. They are what a worker's processor time goes into, and a busy machine
does not change their number."""

from __future__ import annotations

import sys

from treadle import Treadle, work

ITEMS = 1000
MOST_CALLS = 52.0
"""Per no-op that a worker claims, runs and settles in memory. It takes 47."""


@work(name="noop")
async def noop(n: int) -> int:
    return n


async def test_an_item_takes_few_python_calls() -> None:
    app = Treadle("memory://", work=[noop])
    await app.enqueue_many([noop(n) for n in range(ITEMS)])
    calls = 0

    def count(frame: object, event: str, arg: object) -> None:
        nonlocal calls
        calls += event == "call"

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        await app.start()
        await app.worker.drain()
    finally:
        sys.setprofile(before)
    await app.stop()
    assert app.metrics.of("noop").succeeded == ITEMS
    assert calls / ITEMS < MOST_CALLS
