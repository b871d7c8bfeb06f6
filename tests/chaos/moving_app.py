"""The processes of a run in which a tenant moves.

`python -m tests.chaos.moving_app work|move FILE POSTGRES REDIS`
"""

from __future__ import annotations

import asyncio
import random
import sys
from typing import Any, Final

from treadle import Context, Result, Retry, Treadle, work
from treadle.doers import concurrency
from treadle.errors import BackendError

ENDLESS = Retry(attempts=None, base=0.05, max=0.5)
LEAVES = 3
TENANT = "acme"
STORES: Final = "lite", "postgres", "redis"


def counted(old: list[str] | None, id: str) -> list[str]:
    return [*(old or ()), id]


@work(name="leaf", retry=ENDLESS, doer=concurrency(20))
async def leaf(ctx: Context, n: int) -> Result[None, list[str]]:
    """Adds itself to the value of its group, once."""
    await asyncio.sleep(random.uniform(0, 0.2))
    return ctx.result(None, append=lambda old: counted(old, ctx.id))


@work(name="root", retry=ENDLESS)
async def root(ctx: Context, n: int) -> Result[None, list[str]]:
    await asyncio.sleep(random.uniform(0, 0.1))
    return ctx.queue(*(leaf(k) for k in range(LEAVES - 1))).next(leaf(n))


@work(name="tick", retry=ENDLESS)
async def tick() -> None:
    """What the tenant's schedule submits."""


def app_of(file: str, *servers: str) -> Treadle:
    stores: dict[str, Any] = dict(zip(STORES, (f"sqlite:///{file}", *servers), strict=True))
    return Treadle(stores, by="tenant", work=[leaf, root, tick], lease=3, poll_interval=0.1, statistics=False)


async def run_worker(app: Treadle) -> None:
    app.tenant(TENANT).schedule("tick", every=1, run=tick)
    async with app:
        say("ready")
        await asyncio.Event().wait()


async def move(app: Treadle) -> None:
    """Move the tenant from store to store until this process dies. A move that another one has begun is gone
    on with, or given up."""
    await app.connect()
    say("ready")
    while True:
        to = random.choice(STORES)
        try:
            if random.random() < 0.15:
                await app.give_up_move(TENANT)
            moved = await app.move_tenant(TENANT, to, resume=True)
            if moved.source != to:
                say(moved.source, to, moved.running)
        except BackendError as error:
            sys.stderr.write(f"{error}\n")
        await asyncio.sleep(random.uniform(0, 0.3))


def say(*words: object) -> None:
    sys.stdout.write(" ".join(map(str, words)) + "\n")
    sys.stdout.flush()


def main() -> None:
    what, *stores = sys.argv[1:]
    asyncio.run((run_worker if what == "work" else move)(app_of(*stores)))


if __name__ == "__main__":
    main()
