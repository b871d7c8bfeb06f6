"""A pytest plugin: the fixture `app` is a Treadle in memory that runs what a test enqueues.

    async def test_a_mail_is_sent(app: Treadle) -> None:
        app.register(send)
        assert await app.enqueue(send("ada@example.org")).result() == "sent"

pytest loads the plugin wherever treadle is installed. A fixture `app` of the project overrides this one.
Override `treadle_settings` to pass settings, for instance a `ManualClock`:

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
    """The arguments of `Treadle` for the fixture `app`."""
    return {}


async def _app(treadle_settings: dict[str, Any]) -> AsyncGenerator[Treadle]:
    """A started Treadle in memory, new for each test."""
    app = Treadle(**treadle_settings)
    await app.start()
    try:
        yield app
    finally:
        await app.stop(drain=0)


# Every project with treadle and pytest loads this module, so a missing pytest-asyncio is not an error here.
if find_spec("pytest_asyncio") is not None:
    from pytest_asyncio import fixture as async_fixture

    app = async_fixture(_app, name="app")
