"""An app for the tests of reading commands. Tests put an app of their own in its place."""

from __future__ import annotations

import logging
from datetime import timedelta
from typing import Annotated, Any

from treadle import Abort, Context, Result, Retry, Secret, Treadle, work
from treadle.handler.steps import Step


@work(name="mail.send", retry=Retry(attempts=2, base=0.001))
async def send(user_id: int, address: str = "a@example.org") -> str:
    if user_id % 3 == 0:
        raise ConnectionError(f"no \x1b[31mroute to {address}")
    return f"sent to {address}"


@work(name="order.process")
async def order(ctx: Context, users: list[int]) -> Result[None, None]:
    return ctx.queue(*(send(user) for user in users))


@work(name="report")
async def report(day: str = "today") -> dict[str, str]:
    if day == "noisy":
        logging.getLogger("shop").warning("no \x1b[31mdata\nsecond line")
    return {"day": day}


@work(name="log_in")
async def log_in(user: str, pass_code: Annotated[str, Secret]) -> None: ...


class Declined(Exception):
    """A card is declined."""


async def charge(total: int) -> dict[str, Any]:
    return {"total": total, "token": "tok-1"}


async def decline() -> None:
    raise Declined("no \x1b[31mcover")


CHECK = Step[None]("check", catch=Declined)


@work(name="order.fulfil", retry=Retry(attempts=1))
async def fulfil(ctx: Context, total: int) -> str:
    await ctx.progress(1, 4, "charged")
    await ctx.step("charge", charge, total)
    try:
        await ctx.step(CHECK, decline)
    except Declined:
        await ctx.emit({"password": "hunter2"})
    answer = await ctx.signal("approval", str, timeout=timedelta(days=2))
    if answer != "yes":
        raise Abort(f"answered {answer}")
    await ctx.sleep("cool-off", timedelta(days=2))
    return "done"


@work(name="order.label")
async def label(ctx: Context) -> int:
    await ctx.run("papers", report("one"), report("two"))
    return 2


async def say(ctx: Context, word: str) -> None:
    await ctx.emit(word)


@work(name="chat")
async def chat(ctx: Context) -> int:
    """Emit a chunk for each signal."""
    count = 0
    while word := await ctx.signal("word", str, step=f"word:{count}"):
        await ctx.step(f"say:{count}", say, ctx, word)
        count += 1
    return count


TYPES: list[Any] = [send, order, report, log_in, fulfil, label, chat]
app = Treadle(work=TYPES)
