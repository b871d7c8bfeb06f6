"""Handlers with contexts that tests run in other processes. It imports little: processes start slowly."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from pathlib import Path
from typing import Any

from treadle import Context, Result, Retry, WorkFailed, work
from treadle.errors import Stopped
from treadle.options import TypeOptions

PATIENCE = 15.0

ONCE: TypeOptions = {"run_in": "process", "retry": Retry(attempts=1)}


@work(name="value")
async def value(n: int) -> int:
    return n


@work(name="bad", retry=Retry(attempts=1))
async def bad() -> None:
    raise ValueError("bad")


@work(name="facts", **ONCE)
def facts(ctx: Context, n: int) -> dict[str, Any]:
    assert ctx.deadline is not None
    return {
        "pid": os.getpid(),
        "id": ctx.id,
        "facts": [ctx.type, ctx.attempt, ctx.parent, ctx.tenant, ctx.workflow, ctx.workflow_type, n],
        "group": ctx.group_id,
        "worker": ctx.worker_id,
        "interrupt": (ctx.interrupt.reason, ctx.interrupt.wait(0)),
    }


@work(name="longer", timeout=30, **ONCE)
def longer(ctx: Context) -> list[float]:
    ends = [ctx.extend(60).until, ctx.sync.extend(90)]
    return [end.timestamp() for end in ends if end is not None]


@work(name="grouped", **ONCE)
def grouped(ctx: Context) -> Result[None, int]:
    return ctx.group(fan_out(2)).next(sum_up())


@work(name="ask", **ONCE)
def ask(ctx: Context, dead: str) -> list[Any]:
    states = ctx.sync.states([*ctx.dependencies, "missing"])
    found = ctx.sync.results([*ctx.dependencies, dead], return_exceptions=True)
    try:
        ctx.sync.results([dead])
    except WorkFailed as error:
        found.append(error)
    return [
        sum(ctx.sync.results(ctx.dependencies)),
        [None if state is None else state.status for state in states],
        [type(each).__name__ for each in found],
        [ctx.sync.claim("key"), ctx.sync.claim("key", ttl=60)],
        ctx.sync.results(value),
    ]


def add_ten(old: int | None) -> int:
    return (old or 0) + 10


@work(name="sum up")
async def sum_up(ctx: Context) -> int:
    return sum(await ctx.results(ctx.dependencies))


@work(name="fan out", **ONCE)
def fan_out(ctx: Context, n: int) -> Result[None, int]:
    nested = ctx.queue(value(100), lane="slow")
    return ctx.queue([value(each) for each in range(n)], nested, priority=5).next(sum_up(), queue="sums")


@work(name="append", **ONCE)
def append(ctx: Context) -> Result[str, int]:
    return ctx.result("own", append=add_ten).next(value(1))


@work(name="forget", **ONCE)
def forget(ctx: Context) -> int:
    ctx.queue(value(1))
    return 5


@work(name="lambda", **ONCE)
def with_lambda(ctx: Context) -> Result[int]:
    return ctx.result(1, append=lambda old: 1)


@work(name="inner", **ONCE)
def with_local_type(ctx: Context) -> Result[None, int]:
    @work(name="local")
    async def local() -> int:
        return 1

    return ctx.queue(local())


@work(name="wrong", **ONCE)
def wrong(ctx: Context, what: str) -> None:
    match what:
        case "resources":
            _ = ctx.resources
        case "transaction":
            ctx.sync.transaction()
        case "lock":
            ctx.sync.claim("key", threading.Lock())  # type: ignore[arg-type]
        case "loop":
            asyncio.run(_ask_on_loop(ctx))
        case _:
            ctx.results([])


async def _ask_on_loop(ctx: Context) -> None:
    assert await asyncio.to_thread(ctx.sync.states, ["missing"]) == [None]
    await ctx.states(["missing"])


@work(name="extras", **ONCE)
def extras(ctx: Context) -> list[Any]:
    try:
        ctx.extra["lock"]
    except KeyError as error:
        return [ctx.extra["user"], "lock" in ctx.extra, str(error)]
    return []


@work(name="speak", log_context=dict, **ONCE)
def speak(ctx: Context, order: str) -> None:
    ctx.log.info("from a process: %s", "hello", extra={"step": 2})
    ctx.log.debug("not shown")
    try:
        raise ValueError("seen")
    except ValueError:
        ctx.log.exception("failed", extra={"lock": threading.Lock()})


@work(name="wait for the end", **ONCE)
def wait_for_end(ctx: Context, started: str) -> str:
    Path(started).touch()
    assert ctx.interrupt.wait(PATIENCE)
    return str(ctx.interrupt.reason)


@work(name="left behind", **ONCE)
def left_behind(ctx: Context, file: str) -> int:
    def later() -> None:
        ended.wait(PATIENCE)
        try:
            ctx.log.error("too late")
            ctx.sync.states([ctx.id])
        except Stopped as error:
            Path(file).write_text(str(error))

    ended = threading.Event()
    threading.Timer(0.2, ended.set).start()
    threading.Thread(target=later).start()
    return 1


def describe(contexts: list[Context], numbers: list[int]) -> list[Any]:
    """The first output is plain, the second a Result, the third an error."""
    outputs: list[Any] = []
    for ctx, n in zip(contexts, numbers, strict=True):
        if n == 0:
            outputs.append([ctx.id, ctx.attempt, ctx.workflow])
        elif n == 1:
            outputs.append(ctx.queue(value(50)))
        elif n == 2:
            outputs.append(ValueError(f"no {n}"))
        else:
            ctx.queue(value(60))
            outputs.append(n)
    return outputs


@work.batch(name="on the loop", size=4, max_wait=1, retry=Retry(attempts=1))
async def batch_on_loop(contexts: list[Context], numbers: list[int]) -> list[Any]:
    return describe(contexts, numbers)


@work.batch(name="in a thread", size=4, max_wait=1, retry=Retry(attempts=1))
def batch_in_thread(contexts: list[Context], numbers: list[int]) -> list[Any]:
    assert contexts[0].sync.states(["missing"]) == [None]
    return describe(contexts, numbers)


@work.batch(name="in a process", size=4, max_wait=1, **ONCE)
def batch_in_process(contexts: list[Context], numbers: list[int]) -> list[Any]:
    assert [ctx.sync.states([ctx.id])[0].id for ctx in contexts] == [ctx.id for ctx in contexts]  # type: ignore[union-attr]
    return describe(contexts, numbers)


@work.batch(name="in a transaction", size=1, retry=Retry(attempts=1))
async def batch_in_transaction(contexts: list[Context], numbers: list[int]) -> list[int]:
    async with contexts[0].transaction():
        return numbers


@work.batch(name="interrupted", size=2, max_wait=5)
async def interrupted(contexts: list[Context], numbers: list[int]) -> list[str]:
    reason = await contexts[0].interrupt
    return [reason, str(contexts[1].interrupt.reason)]


@work(name="logs", **ONCE)
def logs(n: int) -> None:
    logging.getLogger("shop.process").info("of %s", n)


@work(name="logs_with_context", **ONCE)
def logs_with_context(ctx: Context, n: int) -> None:
    ctx.log.info("ctx.log of %s", n)
    try:
        raise ZeroDivisionError("division by zero")
    except ZeroDivisionError:
        logging.getLogger("shop.process").exception("of %s", n)
