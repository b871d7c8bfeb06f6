"""The tables of the shop."""

from datetime import date, datetime

from sqlalchemy import DateTime, ForeignKey, func
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

Session = async_sessionmaker[AsyncSession](expire_on_commit=False)
"""Sessions. `shop.main` says on which engine: `Session.configure(bind=...)`."""


class Base(DeclarativeBase):
    pass


class Product(Base):
    __tablename__ = "products"

    sku: Mapped[str] = mapped_column(primary_key=True)
    cents: Mapped[int]
    stock: Mapped[int]


class Order(Base):
    """An order. Its id is also the id of the item that fulfils it."""

    __tablename__ = "orders"

    id: Mapped[str] = mapped_column(primary_key=True)
    customer: Mapped[str]
    sku: Mapped[str] = mapped_column(ForeignKey("products.sku"))
    count: Mapped[int]
    address: Mapped[str]
    cents: Mapped[int]
    status: Mapped[str] = mapped_column(default="placed")
    """placed, paid, reserved, shipped; or cancelled, and `note` says why."""
    note: Mapped[str] = mapped_column(default="")
    placed_at: Mapped[datetime] = mapped_column(DateTime(timezone=True), server_default=func.now())


class Day(Base):
    """What the shop took in on one day."""

    __tablename__ = "days"

    day: Mapped[date] = mapped_column(primary_key=True)
    orders: Mapped[int]
    cents: Mapped[int]
