"""Work whose type the app was not told of: it is enqueued all the same, and said."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from tests.engine.kit import PATIENCE, MakeApp
from treadle import Client, Context, Result, work
from treadle.backend import Backend


@dataclass
class Price:
    cents: int


@work
async def price(cents: int) -> Price:
    return Price(cents)


@work
async def quote(ctx: Context, cents: int) -> Result[None, Price]:
    return ctx.queue(price(cents))


async def test_results_come_back_as_declared(make_app: MakeApp, store: Callable[[], Backend]) -> None:
    """A producer need not register a type to be given what its checker was promised."""
    await make_app(price, quote).start()
    async with Client(store()) as client:
        assert await client.enqueue(price(5)).result(timeout=PATIENCE) == Price(5)
        handle = await client.enqueue(price(6))
        assert await handle.result(timeout=PATIENCE) == Price(6)
        assert (await handle.state()).result == Price(6)


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]


async def test_a_worker_that_lacks_the_type_says_so_once(
    make_app: MakeApp, caplog: pytest.LogCaptureFixture
) -> None:
    """The likeliest mistake of all: nothing would happen, and nobody would know why."""
    app = make_app(quote)
    await app.start()
    for n in range(3):
        await app.enqueue(quote(n)).result(timeout=PATIENCE)
    (warning,) = warnings(caplog)
    assert price.name in warning
    assert "register" in warning
    await app.enqueue(price(1))
    assert len(warnings(caplog)) == 1


async def test_a_producer_says_nothing(make_app: MakeApp, caplog: pytest.LogCaptureFixture) -> None:
    """Its workers are elsewhere."""
    await make_app().enqueue(price(1))
    assert warnings(caplog) == []


async def test_a_declaration_says_nothing(make_app: MakeApp, caplog: pytest.LogCaptureFixture) -> None:
    """Whoever declares a type knows that the code is elsewhere."""

    def signature(n: int) -> int:
        raise NotImplementedError

    app = make_app()
    await app.start()
    await app.enqueue(work.declare("elsewhere", signature)(1))
    assert warnings(caplog) == []
