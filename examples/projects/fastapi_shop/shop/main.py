"""What the two commands start.

uvicorn shop.main:api
treadle worker shop.main:treadle
"""

import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from functools import partial

from fastapi import FastAPI
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import create_async_engine
from treadle import Treadle

from shop import books, fulfilment
from shop.api import create_api
from shop.bank import resources_at
from shop.models import Base, Product, Session
from shop.pretend_bank import pretend_bank

DATABASE = os.environ.get("SHOP_DATABASE", "postgresql+asyncpg://localhost/shop")
BANK = os.environ.get("SHOP_BANK", "http://127.0.0.1:8000/bank/")
SHELVES = [{"sku": "lamp", "cents": 2500, "stock": 100}, {"sku": "sofa", "cents": 60_000, "stock": 2}]

engine = create_async_engine(DATABASE)
Session.configure(bind=engine)

treadle = Treadle(
    DATABASE,
    work=[fulfilment, books],
    schedules=[books.CLOSING],
    lifespan=partial(resources_at, BANK),
)


@asynccontextmanager
async def tables(api: FastAPI) -> AsyncGenerator[None]:
    """Make the tables, and fill the shelves. In a real shop: Alembic, see docs/sqlalchemy.md."""
    async with engine.begin() as connection:
        await connection.run_sync(Base.metadata.create_all)
        await connection.execute(insert(Product).values(SHELVES).on_conflict_do_nothing())
    yield
    await engine.dispose()


api = create_api(treadle, tables)
api.mount("/bank", pretend_bank())
