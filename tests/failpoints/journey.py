"""A handler of ten steps on one store, with a fault at one of its points.

    python tests/failpoints/journey.py URL ID FILE POINT NUMBER WHEN KIND

runs it in its own process, which a kill can end. POINT: a verb of the store, of which the call with this
number has the fault; or `call`, the functions of steps. FILE: what they did.
"""

from __future__ import annotations

import asyncio
import inspect
import sys
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any
from uuid import uuid4

import msgspec

from tests.failpoints.programs import SETTINGS, Failpoint, wait_until_ended
from treadle import Client, Context, Treadle, work
from treadle.backend import Backend
from treadle.base.timing import SystemClock
from treadle.connect import connect
from treadle.engine.run import steps
from treadle.errors import AlreadyEnded
from treadle.testing.wrap import WrappedBackend

IN_WORKER = 0.05
"""The longest sleep that stays in its worker."""
CALLS = ("reserve", "write", "left", "right", "last")
IN_TRANSACTION = ("charge", "book")
WAITS = ("nap", "approval", "rest", "papers", "late", "message:0", "message:1")
RESULT = [7, 10, 0, 1]
TOKENS = 3
SIGNALS = (("approval", 7, "yes"), ("message", 0, "m0"), ("message", 1, "m1"))
"""What is sent to a journey, each with its key: the first before it begins, the others while it waits."""

notes = Path()
reach: Callable[[str], Awaitable[None]] | None = None
"""The failpoint of the functions of steps."""


@work(name="paper")
async def paper(n: int) -> int:
    return n * 10


@work(name="journey")
async def journey(ctx: Context, within: bool) -> list[int]:
    """within: two of its steps write in a transaction of their own."""
    await ctx.step("reserve", act, ctx, "reserve")
    await call_within(ctx, "charge", within=within)
    await ctx.sleep("nap", IN_WORKER / 5)
    approval = await ctx.signal("approval", int)
    await ctx.step("write", act, ctx, "write")
    await ctx.sleep("rest", 2 * IN_WORKER)
    await asyncio.gather(ctx.step("left", act, ctx, "left"), ctx.step("right", act, ctx, "right"))
    (printed,) = await ctx.run("papers", paper(1))
    late = await ctx.signal("late", int, 2 * IN_WORKER)
    messages = [await ctx.signal("message", int, step=f"message:{n}") for n in range(2)]
    await call_within(ctx, "book", within=within)
    await ctx.step("last", act, ctx, "last")
    assert late is None
    return [approval or 0, printed, *(message or 0 for message in messages)]


async def act(ctx: Context, name: str) -> str:
    value = uuid4().hex
    if reach is not None:
        await reach("before")
    note(f"{name} {value}")
    if name == "write":
        for n in range(TOKENS):
            await ctx.emit(f"{value}:{n}")
    if reach is not None:
        await reach("after")
    return value


async def call_within(ctx: Context, name: str, *, within: bool) -> None:
    if within:
        await ctx.step_tx(name, act_within, ctx, name)
    else:
        await ctx.step(name, act, ctx, name)


async def act_within(tx: Any, ctx: Context, name: str) -> str:
    value = await act(ctx, name)
    if hasattr(tx, "executemany") and not inspect.iscoroutinefunction(tx.execute):
        tx.execute("INSERT INTO effects (id) VALUES (?)", (name,))
    else:
        await tx.execute("insert into effects (id) values ($1)", name)
    return value


def note(line: str) -> None:
    with notes.open("a") as file:
        file.write(f"{line}\n")


def called(path: Path) -> Counter[str]:
    """How often the function of each step has done its work."""
    return Counter(line.split()[0] for line in path.read_text().splitlines())


class FaultAt(WrappedBackend):
    """A backend with one fault, at the call of a verb that has this number. Empty settles do not count."""

    def __init__(self, inner: Backend, point: Failpoint, number: int) -> None:
        super().__init__(inner)
        self._point = point
        self._left = number
        self.triggered = False

    async def around(self, verb: str, args: tuple[Any, ...], call: Callable[[], Awaitable[Any]]) -> Any:
        if verb != self._point.step or (verb == "settle" and not args[0]):
            return await call()
        here = await self._count()
        if here and self._point.when == "before":
            await self._point.trigger()
        answer = await call()
        if here and self._point.when == "after":
            await self._point.trigger()
        return answer

    async def reach(self, when: str) -> None:
        """A function of a step is called, or has done its work."""
        if self._point.step == "call" and when == self._point.when and await self._count():
            await self._point.trigger()

    async def _count(self) -> bool:
        self._left -= 1
        self.triggered = self.triggered or not self._left
        return self._left == 0


async def send_signals(client: Client, id: str) -> None:
    """Send what is not sent yet, until the journey has ended."""
    while True:
        try:
            for name, value, key in SIGNALS:
                await client.signal(id, name, value, key=key)
                await asyncio.sleep(0.05)
        except AlreadyEnded:
            return


async def finish(app: Treadle, client: Client, id: str) -> None:
    """Run the journey to its end."""
    async with app:
        sending = asyncio.create_task(send_signals(client, id))
        await wait_until_ended(app)
        await sending


async def run_with_fault(url: str, id: str, path: str, point: Failpoint, number: int) -> bool:
    """Run the journey with the fault. Return whether it was triggered."""
    global notes, reach  # noqa: PLW0603  the functions of steps are functions of this module
    notes, short = Path(path), steps.SHORT
    backend = FaultAt(connect(url, clock=SystemClock()), point, number)
    steps.SHORT = IN_WORKER  # type: ignore[misc]
    reach = backend.reach
    try:
        client = Client(url, work=[journey, paper], **SETTINGS)
        await finish(Treadle(backend, work=[journey, paper], **point.settings()), client, id)
        await client.close()
    finally:
        steps.SHORT, reach = short, None  # type: ignore[misc]
    return backend.triggered


def main() -> None:
    url, id, path, step, number, when, kind = sys.argv[1:]
    point = msgspec.convert({"step": step, "when": when, "kind": kind}, Failpoint)
    asyncio.run(run_with_fault(url, id, path, point, int(number)))
    sys.exit("the fault was not triggered")


if __name__ == "__main__":
    main()
