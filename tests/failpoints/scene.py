"""What happens at a failpoint: a small program on one store, and a fault at one of its steps.

    python -m tests.failpoints.scene URL PROGRAM STEP WHEN KIND

runs it in a process of its own, which a kill can end.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Awaitable, Callable
from typing import Any, Literal, TypeAlias

import msgspec

from treadle import Client, Context, Result, Retry, StoreUnavailable, Treadle, work
from treadle.backend import Backend
from treadle.clock import SystemClock
from treadle.connect import connect
from treadle.item import OPEN
from treadle.testing.wrap import WrappedBackend

LEASE = 1.0
SETTINGS: dict[str, Any] = {
    "lease": LEASE,
    "poll_interval": 0.1,
    "retry": Retry(attempts=4, base=0.01, jitter=0),
}
STALL = 2.5 * LEASE

When: TypeAlias = Literal["before", "after"]
Kind: TypeAlias = Literal["kill", "raise", "stall"]


class Point(msgspec.Struct, frozen=True):
    """Where something happens, once: before or after a verb of the store, or within the handler (`run`)."""

    step: str
    when: When
    kind: Kind

    async def strike(self) -> None:
        match self.kind:
            case "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            case "raise":
                raise StoreUnavailable(f"a fault {self.when} {self.step}")
            case "stall":
                await asyncio.sleep(STALL)

    def __str__(self) -> str:
        return f"{self.kind} {self.when} {self.step}"


class Armed(WrappedBackend):
    """A store with a fault at one point. The first `skip` calls pass."""

    def __init__(self, inner: Backend, point: Point, skip: int = 0) -> None:
        super().__init__(inner)
        self._point = point
        self._skip = skip
        self.struck = False

    async def around(self, verb: str, args: tuple[Any, ...], call: Callable[[], Awaitable[Any]]) -> Any:
        if self.struck or not self._meant(verb, args):
            return await call()
        if self._skip > 0:
            self._skip -= 1
            return await call()
        self.struck = True
        if self._point.when == "before":
            await self._point.strike()
            return await call()
        answer = await call()
        await self._point.strike()
        return answer

    def _meant(self, verb: str, args: tuple[Any, ...]) -> bool:
        """A settle without settlements, or a claim without room, is not what is meant."""
        return verb == self._point.step and (verb != "settle" or bool(args[0]))


armed_handler: Point | None = None
"""What the handler is struck by, if that is where the point is."""


async def pass_through() -> None:
    global armed_handler
    point, armed_handler = armed_handler, None
    if point is not None:
        await point.strike()


def added(old: int | None) -> int:
    return (old or 0) + 1


@work(name="plain")
async def plain(ctx: Context) -> Result[int, int]:
    """Its effect is its share of the group's value."""
    await pass_through()
    return ctx.result(1, append=added)


@work(name="effect")
async def effect(ctx: Context) -> int:
    """Its effect is a row of the user's own."""
    async with ctx.transaction() as tx:
        await pass_through()
        if hasattr(tx, "executemany") and not asyncio.iscoroutinefunction(tx.execute):
            tx.execute("INSERT INTO effects (id) VALUES (?)", (ctx.id,))
        else:
            await tx.execute("insert into effects (id) values ($1)", ctx.id)
    return 1


@work(name="long")
async def long(ctx: Context) -> Result[int, int]:
    """Several beats long."""
    await asyncio.sleep(LEASE)
    return ctx.result(1, append=added)


WORKS = {"plain": plain, "effect": effect, "long": long}


async def submit(backend: Backend, name: str) -> None:
    client = Client(backend, work=list(WORKS.values()), **SETTINGS)
    await client.enqueue(WORKS[name]())
    await client.close()


async def run(backend: Backend, name: str) -> None:
    """Work until there is nothing open."""
    async with Treadle(backend, work=list(WORKS.values()), **SETTINGS) as app:
        await ended(app)


async def ended(client: Client) -> None:
    """Return when nothing is open."""
    while (await client.list(status=sorted(OPEN), limit=1)).items:  # noqa: ASYNC110  in other processes
        await asyncio.sleep(0.02)


async def fire(backend: Backend, name: str) -> None:
    app = Treadle(backend, work=list(WORKS.values()), **SETTINGS)
    scheduled_once(app, name)
    async with app:
        await fired(app)


def scheduled_once(app: Treadle, name: str) -> None:
    """A schedule with one occurrence, at an instant that every process agrees on."""
    at = float(name)
    app.schedule("once", next=lambda now: at if now != at else None, run=plain, catch_up="all")


async def fired(app: Treadle) -> None:
    while not (await app.list(type="plain", limit=1)).items:  # noqa: ASYNC110
        await asyncio.sleep(0.02)
    await ended(app)


PROGRAMS: dict[str, Callable[[Backend, str], Awaitable[None]]] = {"submit": submit, "run": run, "fire": fire}


async def play(url: str, program: str, name: str, point: Point) -> bool:
    """Run it with the point armed. Whether it was struck."""
    global armed_handler  # noqa: PLW0603
    # The first beat registers the worker: the one meant is a later one.
    backend = Armed(connect(url, clock=SystemClock()), point, skip=1 if point.step == "beat" else 0)
    armed_handler = point if point.step == "run" else None
    await PROGRAMS[program](backend, name)
    return backend.struck or (point.step == "run" and armed_handler is None)


def main() -> None:
    url, program, name, step, when, kind = sys.argv[1:]
    point = msgspec.convert({"step": step, "when": when, "kind": kind}, Point)
    asyncio.run(play(url, program, name, point))
    sys.exit("it was not struck")


if __name__ == "__main__":
    main()
