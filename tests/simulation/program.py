"""The work types that a simulated fleet runs, and random works and options.

Handlers draw from the seed too: whether they fail, how long they take, what they queue. `limited_types` makes
the types with fleet-wide limits: each process needs doers of its own.
"""

from __future__ import annotations

import asyncio
import copy
import random
from collections.abc import Callable
from contextlib import AbstractContextManager
from contextvars import ContextVar
from functools import partial
from typing import Any, Literal, Protocol

from treadle import Abort, Context, Defer, Failure, Result, Retry, at_least, group, work
from treadle.doers import concurrency, rate_limited


class World(Protocol):
    """What handlers do to the world around them, and it to them."""

    def block(self, ctx: Context, seconds: float) -> None:
        """Hold this thread for so long."""

    def crash(self) -> None:
        """End this process."""

    def running(self, ctx: Context) -> AbstractContextManager[None]:
        """Note that the handler runs in this block."""
        ...

    def called(self, ctx: Context, name: str) -> str:
        """The function of a step is called. Returns what it should give."""
        ...

    def said(self, call: str, number: int) -> str:
        """What this call of a function should emit now."""
        ...

    def saw(self, ctx: Context, name: str, value: object) -> None:
        """A step has given this value to its handler."""


RNG: ContextVar[random.Random] = ContextVar("rng")
WORLD: ContextVar[World] = ContextVar("world")
"""Both are set by the simulation for everything that runs in it."""

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
    policy: Any = "replace" if n % 2 else "existing"
    return ctx.queue(keyed, key=f"child{n % 3}", key_policy=policy).next(ending(n), when="all_done")


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


@work.batch(name="patient", size=20, max_wait=6.0, retry=QUICK)
async def patient(numbers: list[int]) -> list[int]:
    """Waits long in the worker before it begins. Deadlines and cancellations come meanwhile."""
    return numbers


@work(name="threaded", retry=QUICK)
def threaded(ctx: Context, n: int) -> int:
    """A sync handler. Nothing can stop its thread."""
    WORLD.get().block(ctx, _rng().uniform(0, 5))
    return n


@work(name="crash", retry=Retry(max_losses=5))
async def crash(after: float) -> None:
    """Poison: it kills its process, each time."""
    await asyncio.sleep(after)
    WORLD.get().crash()
    await asyncio.sleep(0)


def _with(id: str, old: list[str] | None) -> list[str]:
    return [*(old or []), id]


@work(name="counted", retry=QUICK)
async def counted(ctx: Context, n: int) -> Result[int, list[str]]:
    await asyncio.sleep(_rng().expovariate(20))
    return ctx.result(n, append=partial(_with, ctx.id))


@work(name="counting", retry=QUICK)
async def counting(ctx: Context, n: int) -> Result[None, list[str]]:
    """A group whose value must have each of its children once."""
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


@work(name="crawl", retry=QUICK)
async def crawl(ctx: Context, width: int, depth: int, trouble: float) -> Result[None, Any]:
    """Pages in a group of their own, at every depth, and an index that waits for all of them."""
    await asyncio.sleep(_rng().expovariate(20))
    pages: list[Any] = [
        crawl(width, depth - 1, trouble) if depth and _rng().random() < 0.6 else leaf(i, trouble)
        for i in range(_rng().randint(0, width))
    ]
    when = _rng().choice(("all_success", "all_success", "all_done"))
    return ctx.group(pages).next(join(), when=when)


TYPES = [
    leaf, quick, slow, stubborn, deferring, endless, local, parent, ending, once, brief, tick,
    hopeless, undo, risky, batched, patient, threaded, crash, counted, counting, join, fan, crawl,
]  # fmt: skip


@work(name="rated", retry=QUICK)
async def rated(n: int) -> int:
    await asyncio.sleep(_rng().expovariate(10))
    return n


@work(name="metered")
async def metered(n: int) -> int:
    return n


@work(name="single", retry=QUICK)
async def single(ctx: Context, n: int) -> int:
    with WORLD.get().running(ctx):
        await asyncio.sleep(_rng().uniform(0, 2))
    return n


@work(name="narrow")
def narrow(ctx: Context, n: int) -> int:
    WORLD.get().block(ctx, _rng().uniform(0, 5))
    return n


@work(name="ordered", retry=QUICK)
async def ordered(ctx: Context, n: int) -> int:
    with WORLD.get().running(ctx):
        await asyncio.sleep(_rng().uniform(0, 1))
        if _rng().random() < 0.3:
            raise RuntimeError("the lane waits for it")
    return n


@work(name="latest", retry=QUICK)
async def latest(ctx: Context, n: int) -> int:
    with WORLD.get().running(ctx):
        await asyncio.sleep(_rng().uniform(0, 2))
    return n


@work(name="dropped")
async def dropped(ctx: Context, n: int) -> int:
    with WORLD.get().running(ctx):
        await asyncio.sleep(_rng().uniform(0, 1))
    return n


def limited_types(drops: Literal["tenant"] | None = None) -> list[Any]:
    """The types with limits that the whole fleet shares, for one process: its doers are its own.

    drops: for whom `dropped` has one limit. None: for all."""
    return [
        _with_doer(rated, rate_limited(2, 1.0)),
        _with_doer(metered, rate_limited(1, 5.0, "fixed_window", per="lane")),
        _with_doer(single, concurrency(1, per="lane")),
        _with_doer(narrow, concurrency(2)),
        _with_doer(ordered, concurrency(1, per="lane", strict=True)),
        _with_doer(latest, concurrency(1, per="lane", on_full="replace")),
        _with_doer(dropped, concurrency(1, per=drops, on_full="drop")),
    ]


def _with_doer(type: Any, doer: Any) -> Any:
    """A copy of a type. To define it again for each process would take a tenth of the simulator's time."""
    made = copy.copy(type)
    made.options = {**type.options, "doer": doer}
    return made


_LIMITED = {type.name: type for type in limited_types()}

LIMITED = frozenset(_LIMITED) - {"ordered"}
CONCURRENT = {"single": 1, "narrow": 2, "ordered": 1, "latest": 1, "dropped": 1}
STRICT = frozenset(("ordered",))
ON_FULL = frozenset(("latest", "dropped"))
"""The types of which items may end cancelled because a limit is reached."""
PER_LANE = frozenset(("single", "ordered", "latest"))
BATCHES = frozenset(("batched", "patient"))
IN_THREADS = frozenset(("threaded", "narrow", "sync_journey"))
NAMES = sorted({*(type.name for type in TYPES), *_LIMITED})

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
    "patient": lambda rng: patient(rng.randint(0, 99)),
    "threaded": lambda rng: threaded(1),
    "rated": lambda rng: _LIMITED["rated"](1),
    "metered": lambda rng: _LIMITED["metered"](1),
    "single": lambda rng: _LIMITED["single"](1),
    "narrow": lambda rng: _LIMITED["narrow"](1),
    "ordered": lambda rng: _LIMITED["ordered"](1),
    "latest": lambda rng: _LIMITED["latest"](1),
    "dropped": lambda rng: _LIMITED["dropped"](1),
    "counting": lambda rng: counting(rng.randint(1, 8)),
    "crawl": lambda rng: crawl(rng.randint(1, 3), rng.randint(0, 3), rng.choice((0.0, 0.1, 0.3, 0.6))),
    "fan": lambda rng: fan(rng.randint(1, 5), rng.randint(0, 2), rng.choice((0.0, 0.2, 0.6))),
}


def some_options(rng: random.Random, type: str, known: list[str], later_ids: list[str]) -> dict[str, Any]:
    """Random options for a work."""
    options: dict[str, Any] = {}
    if rng.random() < 0.2:
        options["delay"] = rng.uniform(0, 10)
    if type == "endless" or rng.random() < (0.4 if type in BATCHES or type in LIMITED else 0.15):
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
        options["key_policy"] = rng.choice(("existing", "replace", "debounce", "error"))
        if options["key_policy"] == "debounce":
            options["debounce_max"] = rng.choice((None, 15))
    if rng.random() < 0.1 and type != "endless":
        options["retry"] = Retry(attempts=rng.randint(1, 3), base=0.1)
    if known and rng.random() < 0.25:
        _add_dependencies(rng, options, known, later_ids)
    return options


def _add_dependencies(
    rng: random.Random, options: dict[str, Any], known: list[str], later_ids: list[str]
) -> None:
    options["after"] = [
        group(id) if rng.random() < 0.3 else id
        for id in rng.sample(known, min(len(known), rng.randint(1, 3)))
    ]
    if rng.random() < 0.3 and later_ids:
        options["after"] = [*options["after"], later_ids[0]]
    options["when"] = rng.choice(("all_success", "all_done", at_least(1)))
