"""What becomes of orders, also when something fails."""

import asyncio
from collections.abc import Callable
from datetime import date

import pytest
from sqlalchemy import select
from treadle import GroupFailed, Handle, Treadle
from treadle.testing import Fault, ManualClock, enqueued

from shop import books
from shop.fulfilment import charge, reserve
from shop.models import Day, Order, Product, Session
from shop.orders import NewOrder, place
from shop.pretend_bank import Payment


async def order(
    treadle: Treadle, key: str = "a", customer: str = "ada", *, count: int = 1, address: str = "Rue 1"
) -> Handle[None, str | None]:
    new = NewOrder(sku="lamp", count=count, address=address)
    async with Session.begin() as session:
        return await place(session, treadle.tenant(customer), customer, new, key)


async def orders() -> list[tuple[str, str]]:
    async with Session() as session:
        rows = await session.scalars(select(Order).order_by(Order.placed_at))
        return [(row.status, row.note) for row in rows]


async def lamps() -> int:
    async with Session() as session:
        return (await session.get_one(Product, "lamp")).stock


async def test_no_work_without_an_order(treadle_app: Treadle) -> None:
    new = NewOrder(sku="lamp", address="Rue 1")
    with pytest.raises(ConnectionError):
        async with Session.begin() as session:
            await place(session, treadle_app.tenant("ada"), "ada", new, "a")
            raise ConnectionError("the server dies before the commit")
    assert await orders() == []
    assert await enqueued(treadle_app) == []


async def test_what_fails_is_undone(treadle_app: Treadle, payments: dict[str, Payment]) -> None:
    handles = [
        await order(treadle_app, "declined", count=50),
        await order(treadle_app, "sold out", count=11),
        await order(treadle_app, "lost", count=4, address="nowhere"),
    ]
    for handle in handles:
        with pytest.raises(GroupFailed):
            await handle.group()  # ends when the compensation has ended
    assert await orders() == [
        ("cancelled", "Abort: the card was declined"),
        ("cancelled", "Abort: not enough lamp in stock"),
        ("cancelled", "Abort: no carrier goes there"),
    ]
    assert (payments, await lamps()) == ({}, 10)


async def test_workers_that_die_charge_and_reserve_once(
    treadle_app: Treadle, treadle_crash_at: Callable[..., Fault], payments: dict[str, Payment]
) -> None:
    crashes = [treadle_crash_at("returned", charge), treadle_crash_at("returned", reserve)]
    handle = await order(treadle_app, count=4)
    await handle.group()
    assert [crash.hits for crash in crashes] == [1, 1]
    assert (len(payments), await lamps()) == (1, 6)


async def test_five_payments_a_minute_for_each_customer(
    treadle_app: Treadle, treadle_clock: ManualClock, payments: dict[str, Payment]
) -> None:
    ada = [await order(treadle_app, f"{n}") for n in range(7)]
    bob = await order(treadle_app, customer="bob")
    await asyncio.gather(*(handle.group() for handle in [*ada[:5], bob]))
    assert sorted(payment.customer for payment in payments.values()) == ["ada"] * 5 + ["bob"]
    waiting = [item for item in await enqueued(treadle_app, charge) if item.status == "ready"]
    assert [item.tenant for item in waiting] == ["ada", "ada"]
    await treadle_clock.advance(60)
    await asyncio.gather(*(handle.group() for handle in ada[5:]))
    assert [status for status, _ in await orders()] == ["shipped"] * 8


async def test_the_books_of_a_day(treadle_app: Treadle) -> None:
    await (await order(treadle_app, count=2)).group()
    async with Session() as session:
        placed_at = (await session.scalars(select(Order.placed_at))).one()
    day = placed_at.astimezone(books.PLACE).date()
    assert await treadle_app.enqueue(books.close_day(day)).result() == 5000
    assert await treadle_app.enqueue(books.close_day(date(2020, 2, 2))).result() == 0
    async with Session() as session:
        days = (await session.scalars(select(Day).order_by(Day.day))).all()
    assert [(each.orders, each.cents) for each in days] == [(0, 0), (1, 5000)]


async def test_the_books_are_closed_every_night(treadle_app: Treadle) -> None:
    handle = await treadle_app.schedules.trigger("close the day")
    assert handle is not None
    assert await handle.result() == 0
