"""How long each verb of the Redis backend holds the server at once: its longest call, for 300 items.

`python -m benchmarks.redis_longest` counts the instructions of every script with callgrind. `--time` takes
the processor time of the server instead, the least of several rounds.
"""

from __future__ import annotations

import argparse
import asyncio
import re
import shutil
from collections.abc import Awaitable, Callable, Sequence
from itertools import pairwise
from typing import Any, Final, NamedTuple

from msgspec.structs import replace

from benchmarks.redis_costs import WORKER, Server, server
from benchmarks.stores import backend
from treadle.item import Contribution, Demand, ErrorInfo, Heartbeat, Item, Lease, Settlement, Submission

COUNT: Final = 300
ROUNDS: Final = 5
LATER: Final = 3600.0
_USED: Final = re.compile(r"^used_cpu_(?:user|sys)_main_thread:(\S+)", re.MULTILINE)


class Call(NamedTuple):
    """One script, and what it cost: instructions, or microseconds."""

    script: str
    cost: int


class Recorder:
    """Measures each script that a store runs, while it is told to."""

    def __init__(self, on: Server, store: Any, *, timed: bool) -> None:
        self._on = on
        self._link = store._link
        self._run = self._link.run
        self._timed = timed
        self._calls: list[Call] | None = None
        self._link.run = self._recorded

    async def calls(self, call: Awaitable[Any]) -> list[Call]:
        self._calls = found = []
        await call
        self._calls = None
        return found

    async def _recorded(self, script: Any, *args: Any, **options: Any) -> Any:
        running = self._run(script, *args, **options)
        if self._calls is None:
            return await running
        if self._timed:
            before = await self._used()
            answer = await running
            cost = await self._used() - before
        else:
            answer, cost = await self._on.instructions(running)
        self._calls.append(Call(script.name, cost))
        return answer

    async def _used(self) -> int:
        found = (await self._link.command(b"INFO", "cpu")).decode()
        return round(sum(float(used) for used in _USED.findall(found)) * 1e6)


# -- what is measured --------------------------------------------------------------------------------------


class Cases:
    """Each case prepares a store, and returns the call to measure."""

    def __init__(self, store: Any) -> None:
        self._store = store
        self._number = 0

    def items(self, count: int = COUNT, **fields: Any) -> list[Item]:
        self._number += count
        first = self._number - count
        return [Item(id=f"{first + i:032d}", type="noop", input=bytes(12), **fields) for i in range(count)]

    def keyed(self) -> list[Item]:
        return [replace(item, key=f"key {item.id}") for item in self.items()]

    def chain(self) -> list[Item]:
        items = self.items()
        later = [replace(item, after=(last.id,), need=1) for last, item in pairwise(items)]
        return [items[0], *later]

    async def submitted(self, items: Sequence[Item]) -> list[str]:
        await self._store.submit([Submission((item,)) for item in items])
        return [item.id for item in items]

    async def leases(self, items: Sequence[Item] | None = None) -> list[Lease]:
        await self.submitted(self.items() if items is None else items)
        return await self.claimed()

    async def claimed(self, count: int = COUNT) -> list[Lease]:
        return list((await self._store.claim(Demand(worker=WORKER, limit=count))).leases)

    async def members(self) -> list[Lease]:
        """Leases of the members of one group."""
        (root,) = await self.leases(self.items(1))
        await self._store.settle([Settlement(lease=root, kind="success", children=tuple(self.items()))])
        return await self.claimed()

    async def dead(self, leases: Sequence[Lease] | None = None) -> list[str]:
        found = await self.leases() if leases is None else leases
        await self._store.settle([_dead(lease) for lease in found])
        return [lease.id for lease in found]

    async def one(self, children: Sequence[Item]) -> Awaitable[Any]:
        (root,) = await self.leases(self.items(1))
        return self._store.settle([Settlement(lease=root, kind="success", children=tuple(children))])

    def all(self) -> dict[str, Callable[[], Awaitable[Awaitable[Any]]]]:
        store = self._store

        async def submit_each(items: list[Item]) -> Awaitable[Any]:
            return store.submit([Submission((item,)) for item in items])

        async def submit_all(items: list[Item]) -> Awaitable[Any]:
            return store.submit([Submission(tuple(items))])

        async def claim(**fields: str) -> Awaitable[Any]:
            items = self.items()
            for number, item in enumerate(items):
                items[number] = replace(item, **dict.fromkeys(fields, f"{number}"))
            await self.submitted(items)
            return store.claim(Demand(worker=WORKER, limit=COUNT))

        async def settle(make: Callable[[Lease], Settlement], leases: list[Lease]) -> Awaitable[Any]:
            return store.settle([make(lease) for lease in leases])

        async def cancel_tree() -> Awaitable[Any]:
            leases = await self.members()
            return store.cancel([leases[0].group_id])

        async def prune(make: Callable[[Lease], Settlement], leases: list[Lease]) -> Awaitable[Any]:
            await store.settle([make(lease) for lease in leases])
            return store.prune(COUNT)

        kept: dict[str, Any] = {"keep": 0.0, "keep_dead": 0.0}
        return {
            "submit, plain": lambda: submit_each(self.items()),
            "submit in one, plain": lambda: submit_all(self.items()),
            "submit, delays": lambda: submit_each(self.items(delay=LATER)),
            "submit, keys": lambda: submit_each(self.keyed()),
            "submit in one, delays": lambda: submit_all(self.items(delay=LATER)),
            "submit in one, keys": lambda: submit_all(self.keyed()),
            "submit in one, a chain": lambda: submit_all(self.chain()),
            "claim, one line": claim,
            "claim, 300 lanes": lambda: claim(lane=""),
            "claim, 300 tenants": lambda: claim(tenant=""),
            "settle, success": lambda: _then(self.leases(), lambda found: settle(_success, found)),
            "settle, members": lambda: _then(self.members(), lambda found: settle(_success, found)),
            "settle, retry": lambda: _then(self.leases(), lambda found: settle(_retry, found)),
            "settle, release": lambda: _then(self.leases(), lambda found: settle(_release, found)),
            "settle, dead": lambda: _then(self.leases(), lambda found: settle(_dead, found)),
            "settle, dead members": lambda: _then(self.members(), lambda found: settle(_dead, found)),
            "settle, children": lambda: self.one(self.items()),
            "settle, children with keys": lambda: self.one(self.keyed()),
            "settle, children as a chain": lambda: self.one(self.chain()),
            "cancel, items": lambda: _then(
                self.submitted(self.items()), lambda ids: _made(store.cancel(ids))
            ),
            "cancel, a tree": cancel_tree,
            "delete, items": lambda: _then(
                self.submitted(self.items()), lambda ids: _made(store.delete(ids))
            ),
            "requeue, items": lambda: _then(self.dead(), lambda ids: _made(store.requeue(ids))),
            "get, items": lambda: _then(self.submitted(self.items()), lambda ids: _made(store.get(ids))),
            "prune, items": lambda: _then(
                self.leases(self.items(**kept)), lambda found: prune(_success, found)
            ),
            "prune, dead items": lambda: _then(
                self.leases(self.items(**kept)), lambda found: prune(_dead, found)
            ),
        }


async def _then(first: Awaitable[Any], second: Callable[[Any], Awaitable[Awaitable[Any]]]) -> Awaitable[Any]:
    return await second(await first)


async def _made(call: Awaitable[Any]) -> Awaitable[Any]:
    return call


def _success(lease: Lease) -> Settlement:
    return Settlement(lease=lease, kind="success", result=bytes(6), contribution=Contribution(), ran=0.001)


_ERROR: Final = ErrorInfo("ValueError", "an error of a usual length", "a traceback " * 20)


def _retry(lease: Lease) -> Settlement:
    return Settlement(lease=lease, kind="retry", delay=LATER, failure=_ERROR, ran=0.001)


def _release(lease: Lease) -> Settlement:
    return Settlement(lease=lease, kind="release")


def _dead(lease: Lease) -> Settlement:
    return Settlement(lease=lease, kind="dead", reason="exhausted", failure=_ERROR, mark="mark", ran=0.001)


# -- measuring ---------------------------------------------------------------------------------------------


async def _measure(on: Server, names: Sequence[str], *, timed: bool) -> None:
    print(f"{'verb, 300 items':30} calls   longest           {'ms' if timed else 'instructions'}")
    store: Any = backend(f"{on.url}?patience=600")
    await store.open()
    recorder = Recorder(on, store, timed=timed)
    cases = Cases(store)
    for name, case in cases.all().items():
        if names and not any(each in name for each in names):
            continue
        found: list[list[Call]] = []
        for _ in range(1 + (ROUNDS if timed else 1)):  # the first one does not count
            await store._link.command(b"FLUSHALL")
            await store.beat(Heartbeat(worker=WORKER, lease=3600, types=("noop",)))
            found.append(await recorder.calls(await case()))
        longest = min(
            (max(calls, key=lambda call: call.cost) for calls in found[1:]), key=lambda call: call.cost
        )
        cost = f"{longest.cost / 1000:10.2f}" if timed else f"{longest.cost:14,}"
        print(f"{name:30} {len(found[-1]):5}   {longest.script:16} {cost}", flush=True)
    await store.close()


def main() -> None:
    parser = argparse.ArgumentParser(prog="benchmarks.redis_longest", description=__doc__)
    parser.add_argument("names", nargs="*", help="only cases whose names have one of these texts")
    parser.add_argument("--time", action="store_true", help="processor time of the server")
    given = parser.parse_args()
    if not given.time and shutil.which("valgrind") is None:
        parser.error("valgrind is not installed: use --time")
    with server(counted=not given.time) as started:
        asyncio.run(_measure(started, given.names, timed=given.time))


if __name__ == "__main__":
    main()
