"""The works with steps that a simulated fleet runs.

A journey has the same parts in every attempt: they are drawn from its input. What goes wrong is drawn anew in
every attempt. The functions of its steps tell the world that they are called, and the handler tells it what
each step gave.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from tests.simulation.program import QUICK, RNG, WORLD, leaf, quick
from treadle import Context, Retry, Step, work
from treadle.errors import WorkFailed

SIGNALS = ("go", "more")


class Declined(Exception):
    """What a step may raise as its outcome."""


@work(name="undone", retry=QUICK)
async def undone(value: str) -> str:
    """Undoes a step. The checker knows which, and in what order."""
    return value


async def act(ctx: Context, name: str, trouble: float) -> str:
    """The function of a step. Its value names this call."""
    world, rng = WORLD.get(), RNG.get()
    value = world.called(ctx, name)
    for number in range(rng.choice((0, 0, 2))):
        await ctx.emit(world.said(value, number))
        await asyncio.sleep(rng.choice((0, 0.15)))
    await asyncio.sleep(rng.expovariate(10))
    if rng.random() < trouble:
        raise RuntimeError(f"{name} failed")
    return value


async def decline(name: str) -> str:
    raise Declined(name)


async def _call(ctx: Context, name: str, shape: random.Random, trouble: float) -> None:
    step = Step(name, undo=undone if shape.random() < 0.6 else None)
    WORLD.get().saw(ctx, name, await ctx.step(step, act, ctx, name, trouble))


async def act_within(tx: Any, ctx: Context, name: str, trouble: float) -> str:
    """Writes beside its record. The store knows how often."""
    value = await act(ctx, name, trouble)
    await tx.execute((ctx.tenant, ctx.id), name)
    return value


async def _within(ctx: Context, name: str, shape: random.Random, trouble: float) -> None:
    step = Step(name, undo=undone if shape.random() < 0.6 else None)
    WORLD.get().saw(ctx, name, await ctx.step_tx(step, act_within, ctx, name, trouble))


async def _two_calls(ctx: Context, name: str, shape: random.Random, trouble: float) -> None:
    await asyncio.gather(
        _call(ctx, f"{name}:a", shape, trouble / 2), _call(ctx, f"{name}:b", shape, trouble / 2)
    )


async def _caught(ctx: Context, name: str, shape: random.Random, trouble: float) -> None:
    with pytest.raises(Declined, match=name):
        await ctx.step(Step(name, catch=Declined), decline, name)


async def _sleep(ctx: Context, name: str, shape: random.Random, trouble: float) -> None:
    await ctx.sleep(name, shape.choice((0.1, 2.0, 8.0)))


async def _signal(ctx: Context, name: str, shape: random.Random, trouble: float) -> None:
    signal, timeout = shape.choice(SIGNALS), shape.choice((None, 0.5, 6.0))
    WORLD.get().saw(ctx, name, await ctx.signal(signal, str, timeout, step=name))


async def _two_waits(ctx: Context, name: str, shape: random.Random, trouble: float) -> None:
    await asyncio.gather(
        _signal(ctx, f"{name}:a", shape, trouble), _sleep_or_signal(ctx, f"{name}:b", shape, trouble)
    )


async def _sleep_or_signal(ctx: Context, name: str, shape: random.Random, trouble: float) -> None:
    await shape.choice((_sleep, _signal))(ctx, name, shape, trouble)


async def _waver(ctx: Context, name: str, shape: random.Random, trouble: float) -> None:
    """Asks for a signal in some attempts, and in others for another one."""
    asked = RNG.get().choice("ab")
    WORLD.get().saw(ctx, f"{name}:{asked}", await ctx.signal("go", str, 8.0, step=f"{name}:{asked}"))


async def _call_beside_wait(ctx: Context, name: str, shape: random.Random, trouble: float) -> None:
    await asyncio.gather(_call(ctx, f"{name}:a", shape, trouble), _signal(ctx, f"{name}:b", shape, trouble))


async def _run(ctx: Context, name: str, shape: random.Random, trouble: float) -> None:
    try:
        values = await ctx.run(name, leaf(shape.randint(0, 9), trouble / 4), quick(7))
    except WorkFailed:
        return
    assert len(values) == 2


Part = Callable[[Context, str, random.Random, float], Awaitable[None]]
PARTS: tuple[Part, ...] = (
    _call, _call, _call, _two_calls, _caught, _sleep, _signal, _signal, _two_waits, _waver, _call_beside_wait,
    _run, _within,
)  # fmt: skip


@work(name="journey", retry=Retry(attempts=3, base=0.1, factor=2.0, max=2.0, jitter=0.5))
async def journey(ctx: Context, n: int, trouble: float) -> int:
    shape, rng = random.Random(n), RNG.get()
    parts = shape.randint(1, 6)
    for number in range(parts):
        part = shape.choice(PARTS)
        await part(ctx, f"{part.__name__[1:]}:{number}", random.Random(n * 100 + number), trouble)
        await ctx.progress(number, parts)
        if rng.random() < trouble / 2:
            raise RuntimeError(f"behind part {number}")
    return parts


@work(name="sync_journey", retry=Retry(attempts=3, base=0.1, factor=2.0, max=2.0, jitter=0.5))
def sync_journey(ctx: Context, n: int, trouble: float) -> int:
    """A journey in a thread."""
    parts = n % 5 + 1
    for number in range(parts):
        _part_in_thread(ctx, number, random.Random(n * 100 + number), trouble)
        ctx.sync.progress(number, parts)
        if RNG.get().random() < trouble / 2:
            raise RuntimeError(f"behind part {number}")
    return parts


def _part_in_thread(ctx: Context, number: int, shape: random.Random, trouble: float) -> None:
    kind = shape.choice(("call", "call", "within", "within", "sleep", "signal", "run"))
    name = f"{kind}:{number}"
    step = Step(name, undo=undone if shape.random() < 0.6 else None)
    saw = WORLD.get().saw
    match kind:
        case "call":
            saw(ctx, name, ctx.sync.step(step, act_in_thread, ctx, name, trouble))
        case "within":
            saw(ctx, name, ctx.sync.step_tx(step, act_within_in_thread, ctx, name, trouble))
        case "sleep":
            ctx.sync.sleep(name, shape.choice((0.1, 2.0, 8.0)))
        case "signal":
            saw(ctx, name, ctx.sync.signal(shape.choice(SIGNALS), str, shape.choice((None, 0.5)), step=name))
        case _:
            assert ctx.sync.run(name, quick(7), quick(8)) == [7, 8]


def act_in_thread(ctx: Context, name: str, trouble: float) -> str:
    world, rng = WORLD.get(), RNG.get()
    value = world.called(ctx, name)
    for number in range(rng.choice((0, 0, 2))):
        ctx.sync.emit(world.said(value, number))
    world.block(ctx, rng.expovariate(10))
    if rng.random() < trouble:
        raise RuntimeError(f"{name} failed")
    return value


def act_within_in_thread(tx: Any, ctx: Context, name: str, trouble: float) -> str:
    value = act_in_thread(ctx, name, trouble)
    tx.execute((ctx.tenant, ctx.id), name)
    return value


@work(name="doomed_journey", retry=Retry(attempts=2, base=0.1))
async def doomed_journey(ctx: Context, n: int) -> int:
    """Dies behind its steps, so that they are undone."""
    for number in range(3):
        await _call(ctx, f"call:{number}", random.Random(n + number), 0.1)
        if number == n % 3:
            await _sleep(ctx, "sleep", random.Random(n), 0.0)
    raise RuntimeError("always")


STEP_TYPES: list[Any] = [undone, journey, sync_journey, doomed_journey]
STEP_MAKERS: dict[str, Callable[[random.Random], Any]] = {
    "journey": lambda rng: journey(rng.randint(0, 10_000), rng.choice((0.0, 0.1, 0.4))),
    "sync_journey": lambda rng: sync_journey(rng.randint(0, 10_000), rng.choice((0.0, 0.1, 0.4))),
    "doomed_journey": lambda rng: doomed_journey(rng.randint(0, 99)),
}
JOURNEYS = frozenset(STEP_MAKERS)
