"""The work types that a simulated fleet runs, and random works and options.

Handlers draw from the seed too: whether they fail, how long they take, what they queue.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

from treadle import Abort, Context, Defer, Failure, Result, Retry, at_least, work

RNG: ContextVar[random.Random] = ContextVar("rng")
"""Set by the simulation for everything that runs in it."""

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


@work(name="endless", retry=QUICK)
async def endless(n: int) -> int:
    """Ends only by its deadline or by an operator."""
    await asyncio.sleep(60)
    return n


@work(name="local", skip_queue=True, retry=QUICK)
async def local(n: int) -> int:
    await asyncio.sleep(_rng().expovariate(10))
    if _rng().random() < 0.2:
        raise RuntimeError(f"local {n} failed")
    return n


@work(name="parent", retry=QUICK)
async def parent(ctx: Context, n: int) -> Result[None, int]:
    """Queues a keyed child."""
    keyed = leaf(n, 0.1)
    return ctx.queue(keyed, key=f"child{n % 3}").next(ending(n), when="all_done")


@work(name="ending", retry=QUICK)
async def ending(ctx: Context, n: int) -> Result[int, int]:
    return ctx.result(n, final=_rng().random() < 0.5)


@work(name="once", retry=QUICK)
async def once(ctx: Context, n: int) -> bool:
    """Claims a key. The checker knows which owner may have it."""
    ours = await ctx.claim(f"key{n % 3}", ttl=_rng().choice((5, 1000)))
    if _rng().random() < 0.3:
        raise RuntimeError("after the claim")
    return ours


@work(name="brief", keep=3.0)
async def brief(n: int) -> int:
    """Pruned soon after it has ended."""
    return n


@work(name="tick", retry=QUICK)
async def tick() -> None:
    await asyncio.sleep(_rng().expovariate(10))


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
    """A group whose value must be the exact number of its children."""
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
    leaf, quick, slow, stubborn, deferring, endless, local, parent, ending, once, brief, tick,
    hopeless, undo, risky, batched, counted, counting, join, fan,
]  # fmt: skip

MAKERS: dict[str, Callable[[random.Random], Any]] = {
    "leaf": lambda rng: leaf(rng.randint(0, 99), rng.choice((0.0, 0.0, 0.2, 0.6))),
    "quick": lambda rng: quick(rng.randint(0, 99)),
    "slow": lambda rng: slow(1),
    "stubborn": lambda rng: stubborn(1),
    "deferring": lambda rng: deferring(1),
    "endless": lambda rng: endless(1),
    "local": lambda rng: local(1),
    "parent": lambda rng: parent(rng.randint(0, 5)),
    "once": lambda rng: once(rng.randint(0, 5)),
    "brief": lambda rng: brief(1),
    "hopeless": lambda rng: hopeless(1),
    "risky": lambda rng: risky(1),
    "batched": lambda rng: batched(rng.randint(0, 99)),
    "counting": lambda rng: counting(rng.randint(1, 8)),
    "fan": lambda rng: fan(rng.randint(1, 5), rng.randint(0, 2), rng.choice((0.0, 0.2, 0.6))),
}


def some_options(rng: random.Random, type: str, known: list[str], later_ids: list[str]) -> dict[str, Any]:
    """Random options for a work."""
    options: dict[str, Any] = {}
    if rng.random() < 0.2:
        options["delay"] = rng.uniform(0, 10)
    if type == "endless" or rng.random() < 0.15:
        options["expires_in"] = rng.uniform(0, 20)
    if rng.random() < 0.2:
        options["priority"] = rng.randint(-5, 5)
    if rng.random() < 0.2:
        options["lane"] = rng.choice("abc")
    if rng.random() < 0.2:
        options["queue"] = rng.choice(("bulk", "mail"))
    if rng.random() < 0.15:
        options["key"] = f"key{rng.randint(0, 3)}"
        options["key_scope"] = rng.choice(("open", "any", 8.0))
    if rng.random() < 0.1 and type != "endless":
        options["retry"] = Retry(attempts=rng.randint(1, 3), base=0.1)
    if known and rng.random() < 0.25:
        _add_dependencies(rng, options, known, later_ids)
    return options


def _add_dependencies(
    rng: random.Random, options: dict[str, Any], known: list[str], later_ids: list[str]
) -> None:
    options["after"] = rng.sample(known, min(len(known), rng.randint(1, 3)))
    if rng.random() < 0.3 and later_ids:
        options["after"] = [*options["after"], later_ids[0]]
    options["when"] = rng.choice(("all_success", "all_done", at_least(1)))
