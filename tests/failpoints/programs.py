"""Small programs on one store, with a fault at one of their steps.

    python tests/failpoints/programs.py URL PROGRAM NAME STEP WHEN KIND

runs one in its own process, which a kill can end.
"""

from __future__ import annotations

import asyncio
import inspect
import os
import signal
import sys
from collections.abc import Awaitable, Callable
from typing import Any, Literal, TypeAlias

import msgspec

from treadle import Client, Context, Result, Retry, StoreUnavailable, Treadle, work
from treadle.backend import Backend
from treadle.base.timing import SystemClock
from treadle.connect import connect
from treadle.errors import UnsupportedError
from treadle.item import OPEN
from treadle.testing.wrap import WrappedBackend

LEASE = 0.75
PATIENT_LEASE = 10.0
SETTINGS: dict[str, Any] = {
    "lease": PATIENT_LEASE,
    "poll_interval": 0.1,
    "retry": Retry(attempts=4, base=0.01, jitter=0),
}
"""Of what runs without a fault: a machine that stalls for a second takes no lease from it."""
STALL = 2.5 * LEASE

When: TypeAlias = Literal["before", "after"]
Kind: TypeAlias = Literal["kill", "raise", "stall"]


class Failpoint(msgspec.Struct, frozen=True):
    """One fault: before or after a verb of the store, or within the handler (`run`)."""

    step: str
    when: When
    kind: Kind

    def settings(self) -> dict[str, Any]:
        """Of the process with the fault. Its lease is short where the outcome depends on it."""
        depends = self.kind != "raise" or self.step == "beat"
        return {**SETTINGS, "lease": LEASE if depends else PATIENT_LEASE}

    async def trigger(self) -> None:
        match self.kind:
            case "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            case "raise":
                raise StoreUnavailable(f"a fault {self.when} {self.step}")
            case "stall":
                await asyncio.sleep(STALL)

    def __str__(self) -> str:
        return f"{self.kind} {self.when} {self.step}"


class BackendWithFault(WrappedBackend):
    """A backend with one fault. The first `skip` calls of the verb are not affected. A process that is to be
    killed claims nothing before: it could claim the item of a fire or submit whose answer is under way."""

    def __init__(self, inner: Backend, point: Failpoint, skip: int = 0) -> None:
        super().__init__(inner)
        self._point = point
        self._skip = skip
        self.triggered = False

    async def around(self, verb: str, args: tuple[Any, ...], call: Callable[[], Awaitable[Any]]) -> Any:
        if verb == "claim" and self._point.step in ("fire", "submit") and self._point.kind == "kill":
            await asyncio.Event().wait()
        if self.triggered or not self._is_here(verb, args):
            return await call()
        if self._skip > 0:
            self._skip -= 1
            return await call()
        self.triggered = True
        if self._point.when == "before":
            await self._point.trigger()
            return await call()
        answer = await call()
        await self._point.trigger()
        return answer

    def _is_here(self, verb: str, args: tuple[Any, ...]) -> bool:
        """Whether this call is the step of the failpoint. An empty settle is not."""
        return verb == self._point.step and (verb != "settle" or bool(args[0]))


handler_failpoint: Failpoint | None = None
"""The failpoint of the handler, if that is its step."""


async def fail_if_armed() -> None:
    global handler_failpoint
    point, handler_failpoint = handler_failpoint, None
    if point is not None:
        await point.trigger()


def added(old: int | None) -> int:
    return (old or 0) + 1


@work(name="plain")
async def plain(ctx: Context) -> Result[int, int]:
    """Adds 1 to the value of its group."""
    await fail_if_armed()
    return ctx.result(1, append=added)


@work(name="effect")
async def effect(ctx: Context) -> int:
    """Writes a row to the user's own table, if the store is in a database."""
    try:
        async with ctx.transaction() as tx:
            await fail_if_armed()
            if hasattr(tx, "executemany") and not inspect.iscoroutinefunction(tx.execute):
                tx.execute("INSERT INTO effects (id) VALUES (?)", (ctx.id,))
            else:
                await tx.execute("insert into effects (id) values ($1)", ctx.id)
    except UnsupportedError:
        await fail_if_armed()
    return 1


@work(name="long")
async def long(ctx: Context) -> Result[int, int]:
    """Runs for several heartbeats."""
    await asyncio.sleep(LEASE)
    return ctx.result(1, append=added)


WORKS = {"plain": plain, "effect": effect, "long": long}


async def submit(backend: Backend, name: str, settings: dict[str, Any]) -> None:
    client = Client(backend, work=list(WORKS.values()), **settings)
    await client.enqueue(WORKS[name]())
    await client.close()


async def run(backend: Backend, name: str, settings: dict[str, Any]) -> None:
    """Run a worker until no item is open."""
    async with Treadle(backend, work=list(WORKS.values()), **settings) as app:
        await wait_until_ended(app)


async def wait_until_ended(client: Client) -> None:
    """Return when no item is open."""
    while (await client.list(status=sorted(OPEN), limit=1)).items:  # noqa: ASYNC110  items end in other processes
        await asyncio.sleep(0.02)


async def fire(backend: Backend, name: str, settings: dict[str, Any]) -> None:
    app = Treadle(backend, work=list(WORKS.values()), **settings)
    schedule_once(app, name)
    async with app:
        await wait_until_fired(app)


def schedule_once(app: Treadle, name: str) -> None:
    """A schedule with one occurrence, at an instant that is the same in every process."""
    at = float(name)
    app.schedule("once", next=lambda now: at if now != at else None, run=plain, catch_up="all")


async def wait_until_fired(app: Treadle) -> None:
    while not (await app.list(type="plain", limit=1)).items:  # noqa: ASYNC110
        await asyncio.sleep(0.02)
    await wait_until_ended(app)


PROGRAMS: dict[str, Callable[[Backend, str, dict[str, Any]], Awaitable[None]]] = {
    "submit": submit,
    "run": run,
    "fire": fire,
}


async def run_with_fault(url: str, program: str, name: str, point: Failpoint) -> bool:
    """Run the program with the fault. Return whether it was triggered."""
    global handler_failpoint  # noqa: PLW0603
    # The first heartbeat registers the worker. The fault is at a later one.
    backend = BackendWithFault(
        connect(url, clock=SystemClock()), point, skip=1 if point.step == "beat" else 0
    )
    handler_failpoint = point if point.step == "run" else None
    await PROGRAMS[program](backend, name, point.settings())
    return backend.triggered or (point.step == "run" and handler_failpoint is None)


def main() -> None:
    url, program, name, step, when, kind = sys.argv[1:]
    point = msgspec.convert({"step": step, "when": when, "kind": kind}, Failpoint)
    asyncio.run(run_with_fault(url, program, name, point))
    sys.exit("the fault was not triggered")


if __name__ == "__main__":
    main()
