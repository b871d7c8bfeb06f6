"""Works whose type is not registered in the app. They are enqueued, and a worker logs a warning."""

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


async def test_a_producer_gets_typed_results_without_registering_the_type(
    make_app: MakeApp, store: Callable[[], Backend]
) -> None:
    await make_app(price, quote).start()
    async with Client(store()) as client:
        assert await client.enqueue(price(5)).result(timeout=PATIENCE) == Price(5)
        handle = await client.enqueue(price(6))
        assert await handle.result(timeout=PATIENCE) == Price(6)
        assert (await handle.state()).result == Price(6)


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]


async def test_a_worker_without_the_type_warns_once(
    make_app: MakeApp, caplog: pytest.LogCaptureFixture
) -> None:
    """Without the warning the item would wait without an explanation."""
    app = make_app(quote)
    await app.start()
    for n in range(3):
        await app.enqueue(quote(n)).result(timeout=PATIENCE)
    (warning,) = warnings(caplog)
    assert price.name in warning
    assert "register" in warning
    await app.enqueue(price(1))
    assert len(warnings(caplog)) == 1


async def test_a_producer_without_the_type_does_not_warn(
    make_app: MakeApp, caplog: pytest.LogCaptureFixture
) -> None:
    """Its workers are other processes."""
    await make_app().enqueue(price(1))
    assert warnings(caplog) == []


async def test_a_declared_type_does_not_warn(make_app: MakeApp, caplog: pytest.LogCaptureFixture) -> None:
    """The handler of a declared type is in another process."""

    def signature(n: int) -> int:
        raise NotImplementedError

    app = make_app()
    await app.start()
    await app.enqueue(work.declare("elsewhere", signature)(1))
    assert warnings(caplog) == []
