"""Each test has the tables of the shop, a bank, and an app of treadle with a schema of its own."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
from sqlalchemy.engine import make_url
from sqlalchemy.ext.asyncio import create_async_engine
from treadle import Treadle

from shop import books, fulfilment
from shop.api import create_api
from shop.bank import Bank, Resources
from shop.models import Base, Product, Session
from shop.pretend_bank import Payment, pretend_bank


@pytest.fixture
def payments() -> dict[str, Payment]:
    """What the bank knows, by order."""
    return {}


@pytest.fixture
def treadle_settings(payments: dict[str, Payment]) -> dict[str, Any]:
    """The app of `shop.main`, with a bank in this process."""

    @asynccontextmanager
    async def resources() -> AsyncGenerator[Resources]:
        transport = httpx.ASGITransport(pretend_bank(payments))
        async with httpx.AsyncClient(transport=transport, base_url="http://bank/") as http:
            yield Resources(Bank(http))

    return {"work": [fulfilment, books], "schedules": [books.CLOSING], "lifespan": resources}


@pytest.fixture(autouse=True)
async def tables(treadle_postgres_url: str) -> AsyncGenerator[None]:
    engine = create_async_engine(make_url(treadle_postgres_url).set(drivername="postgresql+asyncpg"))
    Session.configure(bind=engine)
    async with engine.begin() as connection:
        await connection.run_sync(Base.metadata.drop_all)
        await connection.run_sync(Base.metadata.create_all)
    async with Session.begin() as session:
        session.add(Product(sku="lamp", cents=2500, stock=10))
    yield
    await engine.dispose()


@pytest.fixture
async def caller(treadle_app: Treadle) -> AsyncGenerator[httpx.AsyncClient]:
    """A caller of the API: the customer ada."""
    api = create_api(treadle_app)
    transport, ada = httpx.ASGITransport(api), {"X-Customer": "ada"}
    async with (
        api.router.lifespan_context(api),
        httpx.AsyncClient(transport=transport, base_url="http://shop", headers=ada) as caller,
    ):
        yield caller
