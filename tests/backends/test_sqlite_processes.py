"""SqliteBackend: several processes on one file."""

from __future__ import annotations

import asyncio
import json
import stat
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support.sqlite import (
    claim,
    finished,
    heard,
    process,
    status,
    submit,
    wait_until,
)
from treadle.backends.sqlite import SqliteBackend
from treadle.item import Lease, Wake


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "work.db"


@pytest.fixture
async def backend(path: Path) -> AsyncIterator[SqliteBackend]:
    backend = SqliteBackend(path, busy_timeout=10)
    await backend.open()
    yield backend
    await backend.close()


WORK = """
    name = arguments[0]
    await backend.beat(Heartbeat(worker=name, lease=1000))
    while len(await backend.workers()) < 3 and await backend.counts():
        await asyncio.sleep(0.01)
    fairness, done = None, 0
    while True:
        found = await backend.claim(Demand(worker=name, limit=10, fairness=fairness))
        fairness = found.fairness
        if not found.leases:
            break
        await backend.settle([Settlement(lease=lease, kind="success", result=name.encode(),
            contribution=Contribution()) for lease in found.leases])
        done += len(found.leases)
    await backend.remove_worker(name)
    say(done)
"""


@pytest.mark.usefixtures("processes")
async def test_several_processes_share_a_file(backend: SqliteBackend, path: Path) -> None:
    """Every item is settled once, every process gets some, and no call fails."""
    await submit(backend, *(f"i{n}" for n in range(1500)))
    others = [process(WORK, path, f"w{n}") for n in range(3)]
    counts = [int(await asyncio.to_thread(finished, other)) for other in others]
    assert sum(counts) == 1500
    assert all(counts), counts
    ended = {(one.status, one.count) for one in await backend.counts(ended=True)}
    assert ended == {("success", 1500)}


MIXED = """
    name, seconds = arguments[0], float(arguments[1])
    chance, until = random.Random(name), time.monotonic() + seconds
    numbers, submitted, settled, errors = itertools.count(), 0, 0, []
    await backend.beat(Heartbeat(worker=name, lease=1000))

    async def submit():
        nonlocal submitted
        many = chance.randint(1, 20)
        new = [Item(id=f"{name}-{next(numbers)}", type="work", input=b"{}") for _ in range(many)]
        answers = await backend.submit([Submission((item,)) for item in new])
        submitted += sum(not isinstance(answer, Rejected) for answer in answers)

    async def work():
        nonlocal settled
        found = await backend.claim(Demand(worker=name, limit=chance.randint(1, 20)))
        done = await backend.settle([Settlement(lease=lease, kind="success") for lease in found.leases])
        settled += sum(outcome.verb == "applied" for outcome in done.outcomes)

    async def look():
        await backend.counts()
        await backend.list(Filter(status=("ready",)), limit=20)
        await backend.cancel([f"{name}-{chance.randrange(submitted + 1)}"])

    async def client():
        while time.monotonic() < until:
            try:
                await chance.choice([submit, work, work, look])()
            except Exception as error:
                errors.append(repr(error))

    await asyncio.gather(*(client() for _ in range(4)))
    say(json.dumps([submitted, settled, errors]))
"""


@pytest.mark.usefixtures("processes")
@pytest.mark.timeout(120)
async def test_a_mixed_load_of_four_processes(backend: SqliteBackend, path: Path) -> None:
    """For a few seconds: no call fails because the file is locked, all processes make progress, everything
    that was acknowledged is stored, and the log stays small. `make bench` does this for a minute."""
    others = [process(MIXED, path, f"w{n}", 3) for n in range(4)]
    answers = [json.loads(await asyncio.to_thread(finished, other)) for other in others]
    assert [errors for _, _, errors in answers] == [[], [], [], []]
    assert all(submitted and settled for submitted, settled, _ in answers), answers
    counts = {one.status: one.count for one in await backend.counts(ended=True)}
    assert sum(counts.values()) == sum(submitted for submitted, _, _ in answers)
    assert counts["success"] == sum(settled for _, settled, _ in answers)
    assert path.with_name("work.db-wal").stat().st_size < 64 * 2**20


HOLD = """
    await backend.beat(Heartbeat(worker="doomed", lease=1000))
    found = await backend.claim(Demand(worker="doomed", limit=10))
    say(len(found.leases))
    sys.stdin.readline()
"""


@pytest.mark.usefixtures("processes")
async def test_the_items_of_a_killed_process_are_freed_at_once(backend: SqliteBackend, path: Path) -> None:
    """Although its lease lasts a thousand seconds."""
    await submit(backend, "a", "b")
    other = process(HOLD, path)
    assert await asyncio.to_thread(heard, other) == "2"
    assert (await claim(backend)).leases == ()
    other.kill()
    other.communicate()
    found: list[Lease] = []

    async def freed() -> bool:
        found.extend((await claim(backend)).leases)
        return len(found) == 2

    await wait_until(freed)
    assert [lease.attempt for lease in found] == [2, 2]


@pytest.mark.usefixtures("processes")
async def test_a_live_process_keeps_its_items(backend: SqliteBackend, path: Path) -> None:
    await submit(backend, "a")
    other = process(HOLD, path)
    assert await asyncio.to_thread(heard, other) == "1"
    for _ in range(3):
        await asyncio.sleep(0.3)
        assert (await claim(backend)).leases == ()
    await asyncio.to_thread(other.communicate, "\n", 30)
    assert await status(backend, "a") == "running"


LISTEN = """
    came = asyncio.Event()
    wakes = []
    def receive(wake):
        wakes.append(wake)
        came.set()
    await backend.subscribe(receive)
    say("listening")
    await asyncio.wait_for(came.wait(), 20)
    say(wakes[0].items)
"""


@pytest.mark.usefixtures("processes")
async def test_a_wake_up_reaches_another_process(backend: SqliteBackend, path: Path) -> None:
    other = process(LISTEN, path)
    assert await asyncio.to_thread(heard, other) == "listening"
    await backend.publish(Wake(items=(("t", "i"),)))
    assert (await asyncio.to_thread(finished, other)).strip() == "(('t', 'i'),)"


@pytest.mark.usefixtures("processes")
async def test_the_pipe_of_a_dead_process_is_removed(backend: SqliteBackend, path: Path) -> None:
    other = process(LISTEN, path)
    assert await asyncio.to_thread(heard, other) == "listening"
    directory = path.with_name("work.db-treadle")
    assert len(list(directory.glob("*.fifo"))) == 1
    other.kill()
    other.communicate()
    await backend.publish(Wake(ready=True))
    assert list(directory.glob("*.fifo")) == []


async def test_other_users_cannot_read_the_process_directory(backend: SqliteBackend, path: Path) -> None:
    assert stat.S_IMODE(path.with_name("work.db-treadle").stat().st_mode) == 0o700


async def test_closing_leaves_nothing_but_the_file(path: Path) -> None:
    backend = SqliteBackend(path)
    await backend.open()
    await backend.subscribe(lambda _: None)
    await claim(backend)
    await backend.close()
    assert [entry.name for entry in path.parent.iterdir()] == ["work.db"]


async def test_waiting_for_wake_ups_costs_almost_nothing(backend: SqliteBackend) -> None:
    """Other threads of this process may use time meanwhile, but hardly all the time."""
    await backend.subscribe(lambda _: None)
    costs: list[float] = []
    for _ in range(3):
        await asyncio.sleep(0.02)
        before = time.process_time()
        await asyncio.sleep(0.15)
        costs.append(time.process_time() - before)
    assert min(costs) < 0.0045
