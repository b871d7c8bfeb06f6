"""`python -m tests.chaos.steps --on postgres --kills 100`: kill -9 while journeys of ten steps run.

Processes are killed at random moments, suspended for longer than their lease, and cut off; a server is killed
and restarted. Then each journey is accounted for: what its steps gave to its handler never changed, its
writes within transactions happened once, each signal was taken once and in order, its stream has no gaps.
"""

from __future__ import annotations

import argparse
import asyncio
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console

from tests.chaos.journeys import CALLS, IN_TRANSACTION, MESSAGES, TOKENS, WAITS, journey, paper
from tests.chaos.processes import SETTINGS
from tests.chaos.report import everything, recorded_twice
from tests.chaos.run import PROJECT, ChaosRun
from tests.chaos.stores import DurableStore, PostgresStore, RedisStore, SqliteStore
from tests.support import postgres
from tests.support.records import record
from tests.support.run import Run
from tests.support.valkey import ValkeyServer
from treadle import Client
from treadle.errors import StoreUnavailable
from treadle.item import ItemState, Recorded
from treadle.testing.contract.check import consistent

STEPS = {*CALLS, *IN_TRANSACTION, *WAITS}
FOLLOWED = 5
"""Streams that are read while they are written."""


@dataclass
class JourneyReport:
    """What became of the journeys, and what was wrong."""

    store: str
    journeys: int = 0
    attempts: int = 0
    kills: int = 0
    pauses: int = 0
    cuts: int = 0
    restarts: int = 0
    steps: int = 0
    signals: int = 0
    repeated: int = 0
    """Functions of steps that ran again, because their worker died before the step was recorded."""
    followed: int = 0
    seconds: float = 0.0
    wrong: list[str] = field(default_factory=list[str])

    def check(self) -> None:
        assert not self.wrong, f"{len(self.wrong)} wrong: {self.wrong[:10]}"

    def __str__(self) -> str:
        return (
            f"{self.store}: {self.journeys} journeys in {self.seconds:.0f} s, {self.attempts} attempts;"
            f" {self.kills} kills, {self.pauses} processes suspended, {self.cuts} connections cut,"
            f" {self.restarts} restarts of the server; {self.steps} steps recorded, {self.repeated} functions"
            f" repeated, {self.signals} signals, {self.followed} streams followed; wrong {len(self.wrong)}"
        )


class JourneyRun(ChaosRun):
    """A chaos run whose processes submit and run journeys."""

    def __init__(self, store: DurableStore, directory: Path, **options: Any) -> None:
        super().__init__(store, directory, **options)
        self._followers: dict[str, asyncio.Task[list[int]]] = {}
        self.journeys = JourneyReport(type(store).__name__.removesuffix("Store"))

    def _start(self, role: str) -> None:
        command = [sys.executable, "-m", "tests.chaos.journeys", role, self._store.url]
        command += [str(self._ledger.path), str(self._items)]
        self._running[subprocess.Popen(command, cwd=PROJECT)] = role

    def _submitted(self) -> bool:
        return len(self._ledger.lines("journey")) >= (self._items or 0)

    def _did_enough_work(self, kills: int) -> bool:
        # A process that is killed after a settlement cannot write that down.
        ended = len(self._ledger.lines("done")) + self.report.kills
        return ended >= (self._items or 0) * 0.9 * self.report.kills / kills

    async def _disturb(self, kills: int) -> None:
        self._follow()
        await super()._disturb(kills)

    def _follow(self) -> None:
        for _, id in self._ledger.lines("journey")[-1:]:
            if len(self._followers) < FOLLOWED and id not in self._followers:
                self._followers[id] = asyncio.create_task(follow(self._store.url, id))

    async def _finish(self) -> None:
        async with Client(self._store.url, work=[journey, paper], **SETTINGS) as client:
            await self._wait_until_ended(client)
            await self._account(client)

    async def _account(self, client: Client) -> None:
        found, ledger = self.journeys, self._ledger
        states = {state.id: state async for state in everything(client)}
        for _, id in ledger.lines("journey"):
            if id not in states:
                continue  # its submission was never acknowledged
            (recorded,) = await client.backend.steps([id])
            chunks = [chunk async for chunk in client.handle(id).stream()]
            assert recorded is not None
            found.journeys += 1
            found.steps += len(recorded.steps)
            check = JourneyCheck(id, states[id], recorded, ledger_of(ledger, id))
            check.ended()
            check.steps()
            check.signals()
            check.stream([chunk.number for chunk in chunks], [str(chunk.value) for chunk in chunks])
            found.wrong += check.wrong
            found.repeated += check.repeated
        found.wrong += [f"settled twice: {id}" for id in recorded_twice(ledger, "done")]
        await self._account_effects(states)
        await self._account_followers(client)
        found.signals, found.attempts = len(ledger.lines("stored")), len(ledger.lines("run"))
        await consistent(client.backend)
        found.wrong += [f"{wrong}: {rows}" for wrong, rows in (await self._store.recount()).items()]
        report = self.report
        found.kills, found.pauses, found.cuts = report.kills, report.pauses, report.cuts
        found.restarts = report.restarts

    async def _account_effects(self, states: dict[str, ItemState]) -> None:
        if not self._store.transactions:
            return
        effects = Counter(await self._store.effects())
        ids = [id for id, state in states.items() if state.type == "journey"]
        wanted = {f"{id}:{name}" for id in ids for name in IN_TRANSACTION}
        self.journeys.wrong += [f"effect {one} {effects[one]} times" for one in wanted if effects[one] != 1]
        self.journeys.wrong += [f"effect {one} of nothing" for one in effects if one not in wanted]

    async def _account_followers(self, client: Client) -> None:
        for id, follower in self._followers.items():
            numbers = await asyncio.wait_for(follower, 30)
            wanted = [chunk.number async for chunk in client.handle(id).stream()]
            self.journeys.followed += 1
            if numbers != wanted:
                self.journeys.wrong.append(f"a reader of {id} saw {numbers}, not {wanted}")


async def follow(url: str, id: str) -> list[int]:
    """The numbers of the chunks that a reader sees, who connects again after each error."""
    numbers: list[int] = []
    while True:
        with suppress(StoreUnavailable):
            async with Client(url, work=[journey, paper], **SETTINGS) as client:
                if (await client.get(id))[0] is not None:
                    since = numbers[-1] if numbers else 0
                    async for chunk in client.handle(id).stream(since):
                        numbers.append(chunk.number)
                    return numbers
        await asyncio.sleep(0.1)


def ledger_of(ledger: Any, id: str) -> dict[str, list[list[str]]]:
    """The lines about one journey, by kind."""
    found: dict[str, list[list[str]]] = defaultdict(list)
    for kind in ("asked", "saw", "stored"):
        index = _by_id.setdefault(kind, {})
        if not index:
            for line in ledger.lines(kind):
                index.setdefault(line[1], []).append(line[2:])
        found[kind] = index.get(id, [])
    return found


_by_id: dict[str, dict[str, list[list[str]]]] = {}


class JourneyCheck:
    """What must be true of one journey."""

    def __init__(
        self, id: str, state: ItemState, recorded: Recorded, lines: dict[str, list[list[str]]]
    ) -> None:
        self._id = id
        self._state = state
        self._recorded = recorded
        self._lines = lines
        self._saw: dict[str, set[str]] = defaultdict(set)
        for step, value in lines["saw"]:
            self._saw[step].add(value)
        self.repeated = 0
        self.wrong: list[str] = []

    def _must(self, truth: object, what: str) -> None:
        if not truth:
            self.wrong.append(f"{self._id}: {what}")

    def ended(self) -> None:
        self._must(self._state.status == "success", f"{self._state.status} {self._state.error}")

    def steps(self) -> None:
        """Each step is recorded once, and gave its handler one value, in every attempt."""
        names = Counter(step.name for step in self._recorded.steps)
        self._must(names.keys() == STEPS, f"recorded {sorted(names.keys() ^ STEPS)}")
        self._must(set(names.values()) == {1}, f"recorded twice: {names}")
        for step, values in self._saw.items():
            self._must(len(values) == 1, f"{step} gave {values}")
        asked = Counter(step for step, _, _ in self._lines["asked"])
        self.repeated = sum(asked.values()) - len(asked)

    def signals(self) -> None:
        for number in range(MESSAGES):
            got = self._saw[f"message:{number}"]
            self._must(got == {str(number)}, f"message {number} is {got}")
        self._must(self._saw["approval"] == {"7"}, f"the approval is {self._saw['approval']}")
        taken = self._saw["hurry"] == {"1"}
        stored = any(name == "hurry" for name, _ in self._lines["stored"])
        unread = self._recorded.unread
        # A process that was killed could not write down that it was stored.
        right = unread == 0 if taken else unread == 1 if stored else unread <= 1
        self._must(right, f"{unread} unread; the one with a time limit was stored: {stored}, taken: {taken}")

    def stream(self, numbers: list[int], values: list[str]) -> None:
        """All that the recorded call of `write` has said is there, once and in order."""
        self._must(numbers == list(range(1, len(numbers) + 1)), f"chunks {numbers}")
        (written,) = self._saw["write"] or {""}
        said = [value.partition(":")[2] for value in values if value.startswith(written)]
        self._must(said == [str(number) for number in range(TOKENS)], f"its call of `write` said {said}")


# ------------------------------------------------------------------------------------------------- running


async def measure(store: DurableStore, directory: Path, kills: int, items: int, seed: int) -> JourneyReport:
    _by_id.clear()
    await store.prepare()
    run = JourneyRun(store, directory, seed=seed, items=items, workers=3)
    began = time.monotonic()
    await run.run(kills)
    run.journeys.seconds = time.monotonic() - began
    return run.journeys


def main() -> None:
    parser = argparse.ArgumentParser(prog="steps", description=__doc__)
    parser.add_argument("--on", choices=["sqlite", "postgres", "redis"], action="append", help="default: all")
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--items", type=int, default=300)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    for name in given.on or ["sqlite", "postgres", "redis"]:
        report = on(name, given.kills, given.items, given.seed)
        Console(width=140).print(str(report), "\n".join(report.wrong[:20]), highlight=False)
        command = f"python -m tests.chaos.steps --kills {given.kills} --items {given.items}"
        record(
            f"kills of steps on {name}",
            command,
            journeys=report.journeys,
            kills=report.kills,
            wrong=len(report.wrong),
        )
        if report.wrong:
            sys.exit(1)


def on(name: str, kills: int, items: int, seed: int) -> JourneyReport:
    with tempfile.TemporaryDirectory() as place:
        directory = Path(place)
        if name == "sqlite":
            store = SqliteStore(directory / "work.db")
            return asyncio.run(measure(store, directory, kills, items, seed))
        run = Run.begin()
        try:
            if name == "postgres":
                url = postgres.start(run.directory, forgetful=False)
                on_server: DurableStore = PostgresStore(url, run.directory)
                return asyncio.run(measure(on_server, directory, kills, items, seed))
            server = ValkeyServer(run.directory / "own", settings={"appendfsync": "always"})
            server.start()
            try:
                return asyncio.run(measure(RedisStore(server.url, server), directory, kills, items, seed))
            finally:
                server.kill()
        finally:
            run.end()


if __name__ == "__main__":
    main()
