"""The processes of a chaos run with steps: `python -m tests.chaos.journeys submit|work URL LEDGER ITEMS`.

A journey is a handler of ten steps, with signals, children, sleeps and a stream. Beside the lines of
`ledger`, its processes write:

journey ID              it is about to be submitted
stored ID NAME KEY      a signal was acknowledged as stored
asked ID STEP VALUE PID the function of a step was called, and will return this
saw ID STEP VALUE       a step has given this value to its handler
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sys
from collections import Counter
from pathlib import Path
from typing import Any
from uuid import uuid4

from msgspec.structs import replace

from tests.chaos.ledger import Ledger
from tests.chaos.processes import ENDLESS, SETTINGS, execute
from treadle import Context, Treadle, work
from treadle.doers import balanced
from treadle.engine.run import steps
from treadle.errors import AlreadyEnded, NotFound, StoreUnavailable
from treadle.events import Event, Succeeded

MESSAGES = 3
"""Signals of one name that a journey takes one after the other."""
TOKENS = 6
"""Chunks that one call of the step `write` emits."""
IN_WORKER = 0.05
"""The longest sleep that stays in its worker, so that a run need not wait for five seconds."""
CALLS = ("reserve", "left", "right", "write", "last")
IN_TRANSACTION = ("charge", "book")
WAITS = ("nap", "approval", "rest", "papers", "hurry", *(f"message:{n}" for n in range(MESSAGES)))
"""`nap` is a short sleep."""

ledger: Ledger
url: str


@work(name="paper", retry=ENDLESS)
async def paper(n: int) -> int:
    return n * 10


@work(name="journey", retry=ENDLESS)
async def journey(ctx: Context, n: int) -> list[int]:
    """Each value that a step gives is written down: it must never change."""
    ledger.write(f"run {ctx.id} {os.getpid()} 0 {ctx.attempt}")
    await call(ctx, "reserve")
    await call_within(ctx, "charge")
    await ctx.sleep("nap", IN_WORKER / 2)
    approved = await ctx.signal("approval", int)
    saw(ctx, "approval", approved)
    await asyncio.gather(call(ctx, "left"), call(ctx, "right"))
    await ctx.sleep("rest", 4 * IN_WORKER)
    saw(ctx, "hurry", await ctx.signal("hurry", int, timeout=0.3))
    papers = await ctx.run("papers", paper(n), paper(n + 1))
    saw(ctx, "papers", ",".join(str(each) for each in papers))
    await call(ctx, "write")
    messages = [await message(ctx, number) for number in range(MESSAGES)]
    await call_within(ctx, "book")
    await call(ctx, "last")
    await ctx.progress(1, 1)
    return [approved or 0, *papers, *messages]


async def message(ctx: Context, number: int) -> int:
    found = await ctx.signal("message", int, step=f"message:{number}")
    saw(ctx, f"message:{number}", found)
    assert found is not None
    return found


async def call(ctx: Context, name: str) -> None:
    saw(ctx, name, await ctx.step(name, act, ctx, name))


async def call_within(ctx: Context, name: str) -> None:
    if url.startswith("redis"):
        await call(ctx, name)
    else:
        saw(ctx, name, await ctx.step_tx(name, act_within, ctx, name))


async def act(ctx: Context, name: str) -> str:
    """An effect outside of the store. It has another value each time."""
    value = uuid4().hex
    ledger.write(f"asked {ctx.id} {name} {value} {os.getpid()}")
    if name == "write":
        for number in range(TOKENS):
            await ctx.emit(f"{value}:{number}")
            await asyncio.sleep(random.choice((0, 0.03)))
    await asyncio.sleep(0.002)
    return value


async def act_within(tx: Any, ctx: Context, name: str) -> str:
    value = uuid4().hex
    await execute(tx, f"{ctx.id}:{name}")
    await asyncio.sleep(0.002)
    return value


def saw(ctx: Context, step: str, value: object) -> None:
    ledger.write(f"saw {ctx.id} {step} {value}")


# ---------------------------------------------------------------------------------------------- submitting


async def submit(url: str, items: int) -> None:
    """Submit journeys and send their signals. What an earlier process has begun is done first."""
    app = Treadle(url, work=[journey, paper], **SETTINGS)
    known = [id for _, id in ledger.lines("journey")]
    sent = {(id, key) for _, id, _, key in ledger.lines("stored")}
    acknowledged = Counter(id for id, key in sent if key != "hurry")
    unfinished = [id for id in known if acknowledged[id] < 1 + MESSAGES]
    ledger.write(f"ready {os.getpid()}")
    tasks = {asyncio.create_task(send_all(app, id, sent)) for id in unfinished}
    number = len(known)
    while True:
        if number < items:
            number += 1
            id = f"j{uuid4().hex[:20]}"
            ledger.write(f"journey {id}")
            tasks.add(asyncio.create_task(send_all(app, id, sent)))
        await asyncio.sleep(0.03)
        for task in [task for task in tasks if task.done()]:
            tasks.discard(task)
            task.result()


async def send_all(app: Treadle, id: str, sent: set[tuple[str, str]]) -> None:
    """Submit a journey, unless it is there, and send its signals: before, while and after it waits."""
    if not any(one[0] == id for one in sent):
        await insist(app, id)
        await asyncio.sleep(random.choice((0, 0, random.uniform(0, 1))))
    await asyncio.gather(
        send(app, id, "approval", 7, "yes", sent), send_messages(app, id, sent), hurry(app, id)
    )


async def insist(app: Treadle, id: str) -> None:
    while True:
        try:
            if (await app.get(id))[0] is None:
                await app.enqueue(replace(journey(1), id=id))
        except StoreUnavailable:
            continue
        return


async def send_messages(app: Treadle, id: str, sent: set[tuple[str, str]]) -> None:
    for number in range(MESSAGES):
        await asyncio.sleep(random.choice((0, 0, random.uniform(0, 0.5))))
        await send(app, id, "message", number, f"m{number}", sent)


async def hurry(app: Treadle, id: str) -> None:
    """A signal for a wait with a time limit. It comes in time, or too late, or never."""
    await asyncio.sleep(random.uniform(0, 3))
    try:
        if await app.signal(id, "hurry", 1, key="hurry"):
            ledger.write(f"stored {id} hurry hurry")
    except (AlreadyEnded, NotFound, StoreUnavailable):
        return


async def send(app: Treadle, id: str, name: str, value: int, key: str, sent: set[tuple[str, str]]) -> None:
    """Send a signal until the store answers, and sometimes once more: its key is known."""
    if (id, key) in sent:
        return
    while True:
        try:
            await app.signal(id, name, value, key=key)
            ledger.write(f"stored {id} {name} {key}")
            if random.random() < 0.2:
                assert not await app.signal(id, name, value, key=key), "a key was forgotten"
        except StoreUnavailable:
            await asyncio.sleep(0.01)
            continue
        except AlreadyEnded:  # it was stored by a process that could not write it down
            return
        return


async def run(url: str, _: int) -> None:
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    app = Treadle(url, work=[journey, paper], on_event=on_event, doer=balanced(16), **SETTINGS)
    await app.start()
    ledger.write(f"ready {os.getpid()}")
    await stop.wait()
    await app.stop()


def on_event(event: Event) -> None:
    if isinstance(event, Succeeded) and event.type == "journey":
        ledger.write(f"done {event.id}")


def main() -> None:
    global ledger, url  # noqa: PLW0603  handlers are functions of this module
    role, url, path, items = sys.argv[1:5]
    ledger = Ledger(Path(path))
    steps.SHORT = IN_WORKER  # type: ignore[misc]
    asyncio.run({"submit": submit, "work": run}[role](url, int(items)))


if __name__ == "__main__":
    main()
