"""A random program of work, and the types that it is made of.

Handlers draw from the seed too: whether they fail, how long they take, what they queue.
"""

from __future__ import annotations

import asyncio
import random
from contextvars import ContextVar
from typing import Any

from treadle import Abort, Context, Defer, Failure, Result, Retry, at_least, work

RNG: ContextVar[random.Random] = ContextVar("rng")
"""Set by the world, for everything that runs in it."""

QUICK = Retry(attempts=4, base=0.1, factor=2.0, max=2.0, jitter=0.5)


def _rng() -> random.Random:
    return RNG.get()


@work(name="leaf", retry=QUICK)
async def leaf(n: int, trouble: float) -> int:
    await asyncio.sleep(_rng().expovariate(10))
    if _rng().random() < trouble:
        raise RuntimeError(f"leaf {n} failed")
    return n * 2


@work(name="quick")
async def quick(n: int) -> int:
    return n


@work(name="slow", timeout=3.0, retry=QUICK)
async def slow(n: int) -> int:
    await asyncio.sleep(_rng().uniform(0, 6))
    return n


@work(name="stubborn", retry=Retry(attempts=2, base=0.1))
async def stubborn(n: int) -> int:
    """Swallows one cancellation."""
    try:
        await asyncio.sleep(_rng().uniform(0, 20))
    except asyncio.CancelledError:
        await asyncio.sleep(_rng().uniform(0, 3))
    return n


@work(name="deferring", retry=QUICK)
async def deferring(ctx: Context, n: int) -> int:
    if _rng().random() < 0.5:
        raise Defer(delay=_rng().uniform(0.1, 5))
    return n


@work(name="hopeless")
async def hopeless(n: int) -> int:
    raise Abort(f"hopeless {n}")


@work(name="undo", retry=QUICK)
async def undo(failure: Failure) -> str:
    return failure.id


@work(name="risky", retry=Retry(attempts=2, base=0.1), on_dead=undo)
async def risky(n: int) -> int:
    raise RuntimeError(f"risky {n}")


@work.batch(name="batched", size=5, max_wait=0.2, retry=QUICK)
async def batched(numbers: list[int]) -> list[int | Exception]:
    await asyncio.sleep(_rng().expovariate(10))
    return [RuntimeError("one of a batch") if _rng().random() < 0.1 else n for n in numbers]


def _plus_one(old: int | None) -> int:
    return (old or 0) + 1


@work(name="counted", retry=QUICK)
async def counted(ctx: Context, n: int) -> Result[int, int]:
    await asyncio.sleep(_rng().expovariate(20))
    return ctx.result(n, append=_plus_one)


@work(name="counting", retry=QUICK)
async def counting(ctx: Context, n: int) -> Result[None, int]:
    """A group whose value is the number of its children: exact, or something is wrong."""
    return ctx.queue([counted(i) for i in range(n)])


@work(name="join", retry=QUICK)
async def join(ctx: Context) -> int:
    values = await ctx.results(ctx.dependencies, return_exceptions=True)
    return len(values)


@work(name="fan", retry=QUICK)
async def fan(ctx: Context, n: int, depth: int, trouble: float) -> Result[None, Any]:
    children: list[Any] = [
        fan(max(1, n // 2), depth - 1, trouble) if depth and _rng().random() < 0.3 else leaf(i, trouble)
        for i in range(n)
    ]
    when = _rng().choice(("all_success", "all_done", at_least(max(1, n // 2))))
    return ctx.queue(children).next(join(), when=when)


TYPES = [
    leaf, quick, slow, stubborn, deferring, hopeless, undo, risky, batched, counted, counting, join, fan,
]  # fmt: skip


def some_work(rng: random.Random) -> Any:
    """A Work, at random."""
    n = rng.randint(0, 99)
    trouble = rng.choice((0.0, 0.0, 0.2, 0.6))
    make = rng.choice(
        (
            lambda: leaf(n, trouble),
            lambda: leaf(n, trouble),
            lambda: quick(n),
            lambda: slow(n),
            lambda: stubborn(n),
            lambda: deferring(n),
            lambda: hopeless(n),
            lambda: risky(n),
            lambda: batched(n),
            lambda: counting(rng.randint(1, 8)),
            lambda: fan(rng.randint(1, 5), rng.randint(0, 2), trouble),
        )
    )
    return make()


def some_options(rng: random.Random, known: list[str], to_come: list[str]) -> dict[str, Any]:
    """Options for it, at random."""
    options: dict[str, Any] = {}
    if rng.random() < 0.2:
        options["delay"] = rng.uniform(0, 10)
    if rng.random() < 0.15:
        options["expires_in"] = rng.uniform(0, 20)
    if rng.random() < 0.2:
        options["priority"] = rng.randint(-5, 5)
    if rng.random() < 0.2:
        options["lane"] = rng.choice("abc")
    if rng.random() < 0.2:
        options["queue"] = rng.choice(("bulk", "mail"))
    if rng.random() < 0.15:
        options["key"] = f"key{rng.randint(0, 3)}"
    if known and rng.random() < 0.25:
        options["after"] = rng.sample(known, min(len(known), rng.randint(1, 3)))
        if rng.random() < 0.2 and to_come:
            options["after"] = [*options["after"], to_come[0]]
        options["when"] = rng.choice(("all_success", "all_done", at_least(1)))
    if rng.random() < 0.1:
        options["retry"] = Retry(attempts=rng.randint(1, 3), base=0.1)
    return options
