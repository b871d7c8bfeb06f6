"""A tenant with many ended items moves from SQLite to PostgreSQL and back, beside a worker: how long others
wait. `python -m benchmarks.moves --ended 100000`."""

from __future__ import annotations

import argparse
import asyncio
import time

from benchmarks.measure import machine
from benchmarks.stores import stores
from treadle import Treadle, work
from treadle.item import Demand, Heartbeat, Item, Settlement, Submission

PORTION = 500
OPEN = 500


@work(name="noop")
async def noop() -> None: ...


async def fill(app: Treadle, ended: int) -> None:
    """Ended items, and open ones whose type no worker has."""
    backend = app.backend
    for first in range(0, ended, PORTION):
        new = [
            Item(id=f"ended-{first + n}", type="old", input=b"[1, 2]", tenant="acme") for n in range(PORTION)
        ]
        await backend.submit([Submission(items=tuple(new))])
        await backend.beat(Heartbeat(worker="filler", lease=300.0))
        claim = await backend.claim(Demand(worker="filler", limit=PORTION, types={"old": PORTION}))
        await backend.settle([Settlement(lease=one, kind="success", result=b"[3]") for one in claim.leases])
    new = [Item(id=f"open-{n}", type="unknown", input=b"[1, 2]", tenant="acme") for n in range(OPEN)]
    await backend.submit([Submission(items=tuple(new))])
    await backend.remove_worker("filler")


async def longest(app: Treadle, store: str, over: asyncio.Event) -> float:
    """Seconds that the slowest submit of another tenant takes."""
    tenant, most = f"beside-{store}", 0.0
    await app.place(tenant, store)
    while not over.is_set():
        began = time.perf_counter()
        await app.tenant(tenant).enqueue(noop())
        most = max(most, time.perf_counter() - began)
        await asyncio.sleep(0.01)
    return most


async def run(ended: int) -> None:
    with stores(("sqlite", "postgres")) as several:
        async with several.fresh("sqlite") as lite, several.fresh("postgres") as postgres:
            app = Treadle({"lite": lite, "pg": postgres}, work=[noop], poll_interval=0.1)
            async with app:
                await app.place("acme", "lite")
                await fill(app, ended)
                print(f"{machine()}; {ended:,} ended items, {OPEN} open", flush=True)
                for to in ("pg", "lite"):
                    print(await there(app, to), flush=True)


async def there(app: Treadle, to: str) -> str:
    over = asyncio.Event()
    waits = [asyncio.ensure_future(longest(app, store, over)) for store in ("lite", "pg")]
    began = time.perf_counter()
    moved = await app.move_tenant("acme", to, freeze=600)
    took = time.perf_counter() - began
    over.set()
    lite, pg = await asyncio.gather(*waits)
    return (
        f"to {to}: {took:.1f} s, {moved.waited:.2f} s of them frozen; "
        f"longest submit of another tenant: {lite:.2f} s in lite, {pg:.2f} s in pg"
    )


def main() -> None:
    parser = argparse.ArgumentParser(prog="benchmarks.moves", description=__doc__)
    parser.add_argument("--ended", type=int, default=100_000)
    asyncio.run(run(parser.parse_args().ended))


if __name__ == "__main__":
    main()
