"""The pytest plugin: an `app` fixture for the tests of users (SPEC §16)."""

from __future__ import annotations

import re
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path
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


@pytest.mark.usefixtures("processes")
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
    result = pytester.runpytest_subprocess("-p", "no:cacheprovider")
    result.assert_outcomes(passed=2)


@pytest.mark.usefixtures("processes")
def test_the_documented_file_passes_in_an_empty_project(pytester: pytest.Pytester) -> None:
    """Without settings: with pytest-asyncio in its strict mode, and with anyio beside it."""
    page = (Path(__file__).parents[2] / "docs" / "testing.md").read_text()
    (block,) = re.findall(r"^```python\n(# test_shop\.py\n.*?)^```", page, re.MULTILINE | re.DOTALL)
    pytester.makepyfile(
        test_shop=block,
        test_anyio="""
        import asyncio
        import pytest
        from treadle import Treadle, work

        pytestmark = pytest.mark.anyio

        @work
        async def add(a: int, b: int) -> int:
            return a + b

        @pytest.fixture
        async def three(treadle_app):
            treadle_app.register(add)
            return await treadle_app.enqueue(add(1, 2)).result(timeout=5)

        @pytest.fixture
        def anyio_backend():
            return "asyncio"

        async def test_it(treadle_app, treadle_clock, three):
            assert three == 3
            handle = await treadle_app.enqueue(add(1, 2), delay=60)
            await treadle_clock.advance(60)
            assert await handle.result(timeout=5) == 3
        """,
    )
    result = pytester.runpytest_subprocess("-p", "no:cacheprovider")
    result.assert_outcomes(passed=7)


@pytest.mark.usefixtures("processes")
@pytest.mark.skipif(find_spec("fastapi") is None, reason="FastAPI is not installed")
def test_the_documented_file_for_fastapi_passes_in_an_empty_project(pytester: pytest.Pytester) -> None:
    page = (Path(__file__).parents[2] / "docs" / "fastapi.md").read_text()
    (block,) = re.findall(r"^```python[^\n]*\n(# test_api\.py\n.*?)^```", page, re.MULTILINE | re.DOTALL)
    pytester.makepyfile(test_api=block)
    pytester.runpytest_subprocess("-p", "no:cacheprovider").assert_outcomes(passed=1)


@pytest.mark.usefixtures("processes")
def test_a_project_can_do_without_the_fixture_app(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        def test_it(app):
            pass

        def test_ours(treadle_app):
            assert treadle_app.backend.address.startswith("sqlite")
        """
    )
    pytester.makeini("[pytest]\ntreadle_app_fixture = false\ntreadle_url = sqlite")
    result = pytester.runpytest_subprocess("-p", "no:cacheprovider")
    result.assert_outcomes(passed=1, errors=1)
    result.stdout.fnmatch_lines(["*fixture 'app' not found*"])
