"""Workers that use the same groups, dependencies and keys of a PostgreSQL store, and checks of the result.

`make hammer SECONDS=30`: 8 processes.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import random
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from msgspec.structs import replace

from tests.backends.postgres_store import WRONG, connected, opened
from tests.support.keeper import start_postgres
from tests.support.run import Run
from treadle.backends.postgres import PostgresBackend
from treadle.backends.postgres.errors import is_conflict
from treadle.errors import AlreadyEnded, NotFound, ReferencedError, StoreUnavailable
from treadle.item import (
    GROUP_MARK,
    GROUP_TYPE,
    Contribution,
    Demand,
    ErrorInfo,
    Heartbeat,
    Item,
    Lease,
    Record,
    Settlement,
    Signal,
    StepRecord,
    Submission,
)
from treadle.testing.contract.check import consistent

PROJECT = Path(__file__).parents[2]
PARENTS = ("success", "suspend")
DEADLOCKS = "select deadlocks from pg_stat_database where datname = current_database()"


class HammerWorker:
    """One worker on one connection that calls random verbs."""

    def __init__(self, backend: PostgresBackend, name: str, seed: int, tally: Counter[str]) -> None:
        self._backend = backend
        self._name = name
        self._random = random.Random(seed)
        self._numbers = itertools.count()
        self._tally = tally
        self._incarnation = 0

    @property
    def _worker(self) -> str:
        return f"{self._name}.{self._incarnation}"

    async def work(self, until: float) -> None:
        while time.monotonic() < until:
            await self._backend.beat(Heartbeat(worker=self._worker, lease=60))
            verb = self._random.choices(
                [
                    self._submit,
                    self._run,
                    self._cancel,
                    self._requeue,
                    self._complete,
                    self._delete,
                    self._remove,
                    self._signal,
                ],
                [6, 12, 2, 2, 1, 1, 1, 4],
            )[0]
            try:
                await verb()
            except StoreUnavailable as error:
                # The call lost against others a dozen times in a row. Nothing was lost.
                if not is_conflict(error.__cause__):
                    raise
                self._tally[f"{verb.__name__} gave up"] += 1
            self._tally[verb.__name__] += 1

    def _some_id(self) -> str:
        """One of few ids, so that all workers use the same ones."""
        return f"n{self._random.randrange(60)}"

    def _item(self, id: str | None = None) -> Item:
        choose = self._random
        after = tuple({self._some_name() for _ in range(choose.choice([0, 0, 0, 1, 2, 3]))} - {id})
        return Item(
            id=id or f"{self._name}-{self._incarnation}-{next(self._numbers)}",
            type="work",
            input=b"",
            attempts=None,
            after=after,
            need=choose.randint(min(1, len(after)), len(after)),
            counting=choose.choice(["success", "done"]),
            key=f"k{choose.randrange(10)}" if choose.random() < 0.1 else None,
            lane=choose.choice(["", "a", "b"]),
            contributes=choose.random() < 0.9,
        )

    def _some_name(self) -> str:
        """The name of an item, or of a whole group."""
        return self._some_id() if self._random.random() < 0.8 else GROUP_MARK + self._some_id()

    def _nested(self) -> Iterator[Item]:
        """A group of a few new items, and the item that closes it."""
        closer = self._item()
        yield replace(
            closer,
            type=GROUP_TYPE,
            closes_group=True,
            after=(GROUP_MARK + closer.id,),
            need=1,
            counting="success",
            key=None,
        )
        for _ in range(self._random.randrange(4)):
            yield replace(self._item(), group_id=closer.id)

    async def _submit(self) -> None:
        items = [self._item(self._some_id()), *(self._item() for _ in range(self._random.randrange(4)))]
        await self._backend.submit([Submission((item,)) for item in items])

    async def _run(self) -> None:
        claimed = await self._backend.claim(Demand(worker=self._worker, limit=8))
        steps = (StepRecord(name="one", value=b"v"),)
        await self._backend.record(
            [Record(lease=lease, steps=steps, progress=b"p") for lease in claimed.leases[::2]]
        )
        settled = await self._backend.settle([self._settlement(lease) for lease in claimed.leases])
        self._tally.update(outcome.verb for outcome in settled.outcomes)
        moved = [
            Settlement(lease=lease, kind="success", result=b"r")
            for lease, outcome in zip(claimed.leases, settled.outcomes, strict=True)
            if outcome.verb in ("moved", "rejected")
        ]
        await self._backend.settle(moved)

    def _settlement(self, lease: Lease) -> Settlement:
        kinds = ["success", "dead", "retry", "cancelled", "release", "suspend"]
        kind = self._random.choices(kinds, [10, 2, 2, 1, 1, 4])[0]
        if lease.verdict is not None:
            kind = "dead"
        children = [self._item() for _ in range(self._random.choice([0, 0, 1, 3]))] if kind in PARENTS else []
        if kind in PARENTS and self._random.random() < 0.2:
            children.append(self._item(self._some_id()))
        if kind in PARENTS and self._random.random() < 0.3:
            children += self._nested()
        version = self._random.choice([None, None, 0, 1, 2])
        return Settlement(
            lease=lease,
            kind=kind,  # type: ignore[arg-type]
            result=b"r",
            reason="aborted" if kind == "dead" else None,
            failure=ErrorInfo("Oops", "no") if kind in ("dead", "retry") else None,
            contribution=Contribution(b"v", version=version) if kind == "success" else None,
            children=tuple(children),
            steps=(self._wait(), self._wait()) if kind == "suspend" else (),
        )

    def _wait(self) -> StepRecord:
        name = self._random.choice("abc")
        return StepRecord(name=name, kind="signal", signal=name, over=False, delay=self._random.random())

    async def _cancel(self) -> None:
        await self._backend.cancel([self._some_id(), self._some_id()])

    async def _requeue(self) -> None:
        await self._backend.requeue(
            [self._some_id() for _ in range(4)],
            alone=self._random.random() < 0.3,
            cancelled=self._random.random() < 0.3,
        )

    async def _complete(self) -> None:
        try:
            await self._backend.complete(self._some_id(), b"by hand")
        except (AlreadyEnded, NotFound):
            self._tally["nothing to complete"] += 1

    async def _delete(self) -> None:
        try:
            await self._backend.delete(
                [self._some_id() for _ in range(3)], cascade=self._random.random() < 0.3
            )
        except ReferencedError:
            self._tally["referenced"] += 1

    async def _signal(self) -> None:
        signals = [
            Signal(id=self._some_id(), name=self._random.choice("abc"), key=self._random.choice([None, "k"]))
            for _ in range(10)
        ]
        answers = await self._backend.signal(signals)
        self._tally["woken"] += sum(answer.woken is not None for answer in answers)

    async def _remove(self) -> None:
        await self._backend.claim(Demand(worker=self._worker, limit=4))
        await self._backend.remove_worker(self._worker)
        self._incarnation += 1


async def drain(backend: PostgresBackend) -> None:
    """Run what is left, so that `check` sees items that no claim finds."""
    await backend.beat(Heartbeat(worker="last", lease=60))
    while leases := (await backend.claim(Demand(worker="last", limit=200))).leases:
        await backend.settle(
            [
                Settlement(
                    lease=lease,
                    kind="dead" if lease.verdict else "success",
                    reason=lease.verdict,
                )
                for lease in leases
            ]
        )


async def check(url: str, backend: PostgresBackend) -> None:
    """Check that every counter equals its recount, and that the server never had to break a deadlock."""
    async with connected(url) as admin:
        for wrong, query in WRONG.items():
            assert await admin.fetch(query) == [], wrong
        assert await admin.fetchval(DEADLOCKS) == 0
    await consistent(backend)


# -- many processes ------------------------------------------------------------------------------------------


async def hammer(url: str, number: int, seconds: float) -> None:
    """One process of many. It prints its tally."""
    tally: Counter[str] = Counter()
    async with opened(url, pool_size=3, reserved=1) as backend:
        await HammerWorker(backend, f"p{number}", number, tally).work(time.monotonic() + seconds)
    sys.stdout.write(json.dumps(tally))


async def together(url: str, processes: int, seconds: float) -> Counter[str]:
    """Start the processes, wait for them, run what is left, and check."""
    async with opened(url) as backend:
        command = [sys.executable, "-m", "tests.backends.hammer", "--url", url, "--seconds", str(seconds)]
        running = [
            await asyncio.create_subprocess_exec(
                *command, "--number", str(n), cwd=PROJECT, stdout=asyncio.subprocess.PIPE
            )
            for n in range(processes)
        ]
        tally: Counter[str] = Counter()
        for process in running:
            said, _ = await process.communicate()
            assert process.returncode == 0
            tally.update(json.loads(said))
        await drain(backend)
        await check(url, backend)
    return tally


def main() -> None:
    parser = argparse.ArgumentParser(prog="hammer", description=__doc__)
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--processes", type=int, default=8)
    parser.add_argument("--url")
    parser.add_argument("--number", type=int)
    given = parser.parse_args()
    if given.number is not None:
        asyncio.run(hammer(given.url, given.number, given.seconds))
        return
    run = Run.begin()
    try:
        tally = asyncio.run(together(start_postgres(run.directory), given.processes, given.seconds))
    finally:
        run.end()
    done = ", ".join(f"{name.removeprefix('_')} {count:,}" for name, count in tally.most_common())
    sys.stdout.write(f"{given.processes} processes, {given.seconds:.0f} s: {done}\n")
    sys.stdout.write("no deadlock, every counter equals its recount\n")


if __name__ == "__main__":
    main()
