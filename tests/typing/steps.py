"""What type checkers say about steps."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any, Literal, assert_type

from treadle import Context, Step, Treadle, Undo, work
from treadle.item import Chunk
from treadle.records import Progress, StepState


class Charge:
    id: str


async def pay(card: str, total: int) -> Charge:
    return Charge()


def look(name: str) -> int:
    return len(name)


async def reserve(tx: Any, count: int) -> bool:
    return count > 0


@work
async def label(order: int) -> str:
    return ""


@work
async def invoice(order: int) -> int:
    return order


@work
async def refund(charge: Charge) -> None: ...


@work
async def restock(undo: Undo[int]) -> None: ...


CHARGE = Step("charge", undo=refund, catch=ValueError, timeout=5)
RESERVE = Step("reserve", undo=restock)
PATIENT = Step("patient", timeout=60)
ANY = Step[Any]("any", undo=restock)
assert_type(CHARGE, Step[Charge])
assert_type(RESERVE, Step[int])


@work
async def order(ctx: Context, n: int) -> str:
    assert_type(await ctx.step("charge", pay, "card", 5), Charge)
    assert_type(await ctx.step(CHARGE, pay, card="card", total=5), Charge)
    assert_type(await ctx.step(Step[Charge]("named", undo=refund), pay, "card", 5), Charge)
    assert_type(await ctx.step("look", look, "name"), int)
    assert_type(await ctx.step(RESERVE, look, "name"), int)
    assert_type(await ctx.step(PATIENT, look, "name"), int)
    assert_type(await ctx.step(PATIENT, pay, "card", 5), Charge)
    await ctx.step(ANY, pay, "card", 5)
    assert_type(await ctx.step_tx("reserve", reserve, 5), bool)
    await ctx.step("charge", pay, "card")  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]
    await ctx.sleep("nap", timedelta(days=2))
    await ctx.sleep("until", datetime.now(UTC))
    assert_type(await ctx.signal("approval", bool, timeout=60), bool | None)
    answer: Literal["yes", "no"] | None = await ctx.signal("answer", Literal["yes", "no"])
    assert answer != "no"
    either: int | str | None = await ctx.signal("either", int | str, step="second")
    assert either != 5
    assert_type(await ctx.run("one", label(n)), tuple[str])
    assert_type(await ctx.run("two", label(n), invoice(n)), tuple[str, int])
    assert_type(await ctx.run("many", *[label(n) for n in range(9)]), list[str])
    paid, seen = await asyncio.gather(ctx.step("a", pay, "card", 5), ctx.step("b", look, "name"))
    assert_type(paid, Charge)
    assert_type(seen, int)
    _, approved, labels = await asyncio.gather(
        ctx.sleep("c", 1), ctx.signal("d", bool), ctx.run("e", label(n))
    )
    assert_type(approved, bool | None)
    assert_type(labels, tuple[str])
    assert_type(ctx.key("charge"), str)
    await ctx.progress(1, 10, "label")
    await ctx.emit({"token": 1})
    return ""


@work
def plain(ctx: Context) -> str:
    assert_type(ctx.sync.step("look", look, "name"), int)
    assert_type(ctx.sync.step(CHARGE, Charge), Charge)
    assert_type(ctx.sync.signal("approval", bool), bool | None)
    assert_type(ctx.sync.run("two", label(1), invoice(1)), tuple[str, int])
    ctx.sync.sleep("nap", 60)
    return ""


async def outside(app: Treadle) -> None:
    handle = await app.enqueue(order(1))
    assert_type(await app.signal(handle, "approval", True, key="click"), bool)
    assert_type(await app.steps(handle.id), list[StepState])
    assert_type(await handle.progress(), Progress | None)
    assert_type(handle.stream(), AsyncIterator[Chunk])
    assert_type(await app.requeue(handle.id, from_step="charge"), int)
    assert_type(app.sync.signal(handle.id, "approval"), bool)
