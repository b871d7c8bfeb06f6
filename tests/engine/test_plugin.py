"""The pytest plugin: an `app` for the tests of those who use treadle (SPEC §16)."""

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


async def test_app_runs_what_is_enqueued(app: Treadle) -> None:
    """§16: on memory, started, a fresh one for each test."""
    app.register(value)
    assert await app.enqueue(value(1)).result(timeout=5) == 1
    assert len((await app.list()).items) == 1


async def test_app_is_fresh(app: Treadle) -> None:
    """§16."""
    assert (await app.list()).items == ()
    assert value.name not in app.types


class TestSettings:
    @pytest.fixture
    def treadle_settings(self) -> dict[str, Any]:
        return {"work": [value], "clock": ManualClock()}

    async def test_app_is_set_up(self, app: Treadle, treadle_settings: dict[str, Any]) -> None:
        """§16: with a clock that a test owns."""
        handle = await app.enqueue(value(2), delay=3600)
        await treadle_settings["clock"].advance(3600)
        await drain(app)
        assert await handle.result() == 2


def test_pytest_finds_it_by_itself(pytester: pytest.Pytester) -> None:
    """§16: in a project that does nothing but install treadle; its own `app` comes first."""
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
