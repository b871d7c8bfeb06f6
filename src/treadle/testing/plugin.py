"""A pytest plugin: `app`, a Treadle in memory that runs what a test enqueues.

    async def test_a_mail_is_sent(app: Treadle) -> None:
        app.register(send)
        assert await app.enqueue(send("ada@example.org")).result() == "sent"

pytest loads it wherever treadle is installed. Projects with an `app` of their own keep theirs. Override
`treadle_settings` to set it up, with a `ManualClock` for instance:

    @pytest.fixture
    def treadle_settings() -> dict[str, Any]:
        return {"work": [send], "clock": ManualClock()}

It needs pytest-asyncio: `pip install 'treadle[testing]'`.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from importlib.util import find_spec
from typing import Any

import pytest

from treadle.app import Treadle


@pytest.fixture
def treadle_settings() -> dict[str, Any]:
    """What `app` is made with: the arguments of `Treadle`."""
    return {}


async def _app(treadle_settings: dict[str, Any]) -> AsyncGenerator[Treadle]:
    """A started Treadle in memory, this test's own."""
    app = Treadle(**treadle_settings)
    await app.start()
    try:
        yield app
    finally:
        await app.stop(drain=0)


# This module is loaded in every project that has treadle and pytest: what is missing is no error yet.
if find_spec("pytest_asyncio") is not None:
    from pytest_asyncio import fixture as async_fixture

    app = async_fixture(_app, name="app")
