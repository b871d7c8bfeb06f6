"""The line in the log of a process that waits for what no worker can run."""

import pytest

from treadle import Client, work
from treadle.backends.memory import MemoryBackend
from treadle.engine.wait.waiters import AGAIN, SLOW, SOON, NoWorkerNotice
from treadle.item import DEFAULT_TENANT, Heartbeat
from treadle.operate.operator import core_of
from treadle.testing import ManualClock


@work(name="served")
async def served() -> None: ...


@work(name="forgotten")
async def forgotten() -> None: ...


async def test_an_item_that_a_worker_runs_hides_no_other(caplog: pytest.LogCaptureFixture) -> None:
    """The worker is found for the first one. The second has none, and is named once in a while."""
    clock = ManualClock()
    backend = MemoryBackend(clock)
    async with Client(backend, clock=clock) as client:
        notice = NoWorkerNotice(backend, core_of(client).registry, clock)

        async def look(id: str, seconds: float) -> list[str]:
            """Wait for an item this long. Return what was logged."""
            caplog.clear()
            await notice.look([(DEFAULT_TENANT, id)])
            clock.advance(seconds)
            await backend.beat(Heartbeat(worker="w", lease=AGAIN, types=("served",)))
            await notice.look([(DEFAULT_TENANT, id)])
            return [record.message for record in caplog.records]

        first, second = await client.enqueue(served()), await client.enqueue(forgotten())
        await backend.beat(Heartbeat(worker="w", lease=AGAIN, types=("served",)))
        assert await look(first.id, SLOW) == []
        (line,) = await look(second.id, SOON)
        assert "no live worker runs forgotten" in line
        assert await look(second.id, SOON) == []
        assert len(await look(second.id, AGAIN)) == 1
