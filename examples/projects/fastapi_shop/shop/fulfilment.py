"""From a placed order to a parcel: charge -> reserve -> ship. If a step dies, `undo` makes up for it.

Each step writes in the transaction that ends its item. So it has an effect once, however often it is tried.
"""

from datetime import timedelta

from sqlalchemy import update
from treadle import Abort, Context, Failure, Result, Retry, work
from treadle.doers import rate_limited

from shop.bank import bank_of
from shop.models import Order, Product, Session


@work(name="order.fulfil")
async def fulfil(ctx: Context, order: str, cents: int) -> Result[None, str | None]:
    """The workflow. What it returns is stored in the step that ends it."""
    return ctx.queue(charge(order, cents)).next(reserve(order)).next(ship(order))


# Money is given back, however long the bank is away: no limit of attempts, and at most an hour between two.
@work(name="order.undo", retry=Retry(attempts=None, base=5, max=3600))
async def undo(ctx: Context, failure: Failure) -> None:
    """Make up for what was done of an order. It is stored in the very step that makes another item dead."""
    id = failure.input["order"]
    await bank_of(ctx).refund(id)
    async with ctx.transaction(session=Session) as session:
        order = await session.get_one(Order, id)
        if order.status == "reserved":
            await session.execute(
                update(Product).where(Product.sku == order.sku).values(stock=Product.stock + order.count)
            )
        order.status, order.note = "cancelled", failure.error or failure.reason


# The bank allows each customer five payments a minute. The store counts, for all workers.
@work(name="order.charge", on_dead=undo, doer=rate_limited(5, window=timedelta(minutes=1), per="tenant"))
async def charge(ctx: Context, order: str, cents: int) -> str:
    payment = await bank_of(ctx).charge(order, ctx.tenant, cents)
    async with ctx.transaction(session=Session) as session:
        (await session.get_one(Order, order)).status = "paid"
    return payment


@work(name="order.reserve", on_dead=undo)
async def reserve(ctx: Context, order: str) -> None:
    async with ctx.transaction(session=Session) as session:
        row = await session.get_one(Order, order)
        left = await session.scalar(
            update(Product)
            .where(Product.sku == row.sku, Product.stock >= row.count)
            .values(stock=Product.stock - row.count)
            .returning(Product.stock)
        )
        if left is None:
            raise Abort(f"not enough {row.sku} in stock")
        row.status = "reserved"


@work(name="order.ship", on_dead=undo)
async def ship(ctx: Context, order: str) -> str:
    async with ctx.transaction(session=Session) as session:
        row = await session.get_one(Order, order)
        if row.address == "nowhere":
            raise Abort("no carrier goes there")
        row.status = "shipped"
    return f"parcel {order[:8]} to {row.address}"
