"""Placing an order: its row and its work are stored in one transaction."""

from datetime import timedelta
from uuid import uuid4

from pydantic import BaseModel, Field
from sqlalchemy.ext.asyncio import AsyncSession
from treadle import Client, Handle

from shop.fulfilment import fulfil
from shop.models import Order, Product


class NewOrder(BaseModel):
    sku: str
    count: int = Field(default=1, ge=1, le=100)
    address: str


class UnknownProduct(Exception):
    """The shop does not sell this."""


class KeyReused(Exception):
    """The idempotency key belongs to an order that is not this one."""


async def place(
    session: AsyncSession, client: Client, customer: str, new: NewOrder, key: str
) -> Handle[None, str | None]:
    """Store an order and the work that fulfils it: both if the session commits, otherwise neither.

    For a day the same key finds the same order, in however many requests at once. Customers are tenants, so
    they cannot meet each other's keys.
    """
    product = await session.get(Product, new.sku)
    if product is None:
        raise UnknownProduct(new.sku)
    order = Order(
        id=uuid4().hex,
        customer=customer,
        cents=new.count * product.cents,
        status="placed",
        **new.model_dump(),
    )
    handle = await client.enqueue(
        fulfil(order.id, order.cents),
        id=order.id,
        key=key,
        key_scope=timedelta(days=1),
        tx=session,
    )
    if not handle.existing:
        session.add(order)
        return handle
    earlier = await session.get_one(Order, handle.id)
    if NewOrder.model_validate(earlier, from_attributes=True) != new:
        raise KeyReused(key)
    return handle
