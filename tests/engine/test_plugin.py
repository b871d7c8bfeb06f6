"""The pytest plugin: an `app` fixture for the tests of users (SPEC §16)."""

from __future__ import annotations

from importlib.metadata import entry_points
from typing import Any

import pytest

from treadle import Treadle, work
from treadle.testing import ManualClock, drain

pytest_plugins = ["pytester"]


@work
async def value(n: int) -> int:
    return n


async def test_app_is_started_on_memory(app: Treadle) -> None:
    """§16: Each test has a new one."""
    app.register(value)
    assert await app.enqueue(value(1)).result(timeout=5) == 1
    assert len((await app.list()).items) == 1


async def test_app_is_new_for_each_test(app: Treadle) -> None:
    """§16."""
    assert (await app.list()).items == ()
    assert value.name not in app.types


class TestSettings:
    @pytest.fixture
    def treadle_settings(self) -> dict[str, Any]:
        return {"work": [value], "clock": ManualClock()}

    async def test_app_uses_treadle_settings(self, app: Treadle, treadle_settings: dict[str, Any]) -> None:
        """§16: With a clock of the test."""
        handle = await app.enqueue(value(2), delay=3600)
        await treadle_settings["clock"].advance(3600)
        await drain(app)
        assert await handle.result() == 2


def test_pytest_finds_the_plugin_without_configuration(pytester: pytest.Pytester) -> None:
    """§16: In a project that only installs treadle. The project's own `app` fixture wins."""
    assert "treadle.testing.plugin" in {each.value for each in entry_points(group="pytest11")}
    pytester.makepyfile(
        test_theirs="""
        import pytest
        from treadle import Treadle, work

        @work
        async def add(a: int, b: int) -> int:
            return a + b

        @pytest.mark.asyncio
        async def test_it(app):
            assert isinstance(app, Treadle)
            app.register(add)
            assert await app.enqueue(add(1, 2)).result(timeout=5) == 3
        """,
        test_own="""
        import pytest

        @pytest.fixture
        def app():
            return "their own"

        def test_it(app):
            assert app == "their own"
        """,
    )
    result = pytester.runpytest_subprocess("-p", "no:cacheprovider", "-p", "no:xdist")
    result.assert_outcomes(passed=2)
