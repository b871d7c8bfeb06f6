"""A pytest plugin: apps for tests, on memory unless a test asks for another store.

    async def test_a_mail_is_sent(treadle_app: Treadle) -> None:
        treadle_app.register(send)
        assert await treadle_app.enqueue(send("ada@example.org")).result() == "sent"

treadle_app            a started Treadle, new for each test
treadle_clock          a ManualClock. The app of a test that asks for it uses it
treadle_crash_at       `treadle_crash_at("returned")`: the worker dies there, see `treadle.testing.crash_at`
treadle_faults         the `Faults` of the app's store
treadle_transactions   a RecordingBackend: `ctx.transaction()` on memory
treadle_settings       the arguments of `Treadle`. Override it in a project, a module or a class
treadle_postgres_url   the database of `url="postgres"`. Override it, or set TREADLE_TEST_POSTGRES
app                    the same as treadle_app. `treadle_app_fixture = false` in the ini file removes it

`@pytest.mark.treadle(url="sqlite", worker=False, ...)` sets the store, and anything that `Treadle` takes.

Async tests run with pytest-asyncio, or with anyio on asyncio. One that asks for a fixture of treadle by name
needs no marker. In a test that is not async, use `treadle_app.sync`.
"""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import AsyncGenerator, Callable, Generator
from importlib.util import find_spec
from pathlib import Path
from types import FunctionType
from typing import Any, Final
from uuid import uuid4

import pytest

from treadle.app import Treadle

from .clock import ManualClock
from .crash import crash_at
from .faults import Fault, Faults
from .made_app import MadeApp, make_app
from .recorded import RecordingBackend

_LOOP_SCOPES: Final = ("function", "class", "module", "package", "session")
_MARKER: Final = (
    "treadle(url='memory', worker=True, **settings): the app of the fixture treadle_app. url: 'memory', "
    "'sqlite' (a new file), 'postgres' (a new schema), or a URL. worker=False: it only submits"
)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addini(
        "treadle_app_fixture", "whether treadle_app is also the fixture `app`", type="bool", default=True
    )
    parser.addini(
        "treadle_url", "the store of treadle_app: memory, sqlite, postgres or a URL", default="memory"
    )


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", _MARKER)
    if config.getini("treadle_app_fixture"):
        config.pluginmanager.register(_Alias(), "treadle-app")


@pytest.hookimpl(tryfirst=True)
def pytest_pycollect_makeitem(collector: pytest.Collector, name: str, obj: object) -> None:
    """An async test that asks for a fixture of ours runs with pytest-asyncio, also without a marker."""
    if not isinstance(obj, FunctionType):
        return  # perhaps an object that must not be looked at here, as `flask.request`
    if not inspect.iscoroutinefunction(obj) or not collector.config.pluginmanager.hasplugin("asyncio"):
        return
    own = {mark.name for mark in getattr(obj, "pytestmark", ())}
    if own & {"anyio", "asyncio", "trio"} or collector.get_closest_marker("anyio") is not None:
        return
    if any(each.startswith("treadle_") for each in inspect.signature(obj).parameters):
        pytest.mark.asyncio(obj)


class _Alias:
    """The fixture `app`, in a plugin of its own, so that a project can do without it."""

    @pytest.fixture
    def app(self, treadle_app: Treadle) -> Treadle:
        """The same as treadle_app."""
        return treadle_app


@pytest.fixture
def treadle_settings() -> dict[str, Any]:
    """The arguments of `Treadle` for the fixture treadle_app."""
    return {}


@pytest.fixture
def treadle_clock(treadle_settings: dict[str, Any]) -> ManualClock:
    """A clock that the test moves. The app of the test uses it."""
    given = treadle_settings.get("clock")
    return given if isinstance(given, ManualClock) else ManualClock()


@pytest.fixture
def treadle_faults() -> Generator[Faults]:
    """What goes wrong with the store of the test's app: `treadle_faults.fail("settle")`."""
    faults = Faults()
    yield faults
    faults.clear()


@pytest.fixture
def treadle_transactions(request: pytest.FixtureRequest) -> RecordingBackend:
    """Lets `ctx.transaction()` work on memory, and records what handlers execute in it."""
    timed = "treadle_clock" in request.fixturenames
    return RecordingBackend(clock=request.getfixturevalue("treadle_clock") if timed else None)


@pytest.fixture
def treadle_crash_at(treadle_faults: Faults, treadle_app: Treadle) -> Callable[..., Fault]:
    """Lets the worker of the test's app die: `treadle_crash_at("returned")`."""
    return functools.partial(crash_at, treadle_app)


@pytest.fixture(scope="session")
def treadle_postgres_url() -> str:
    """A database for the tests with `url="postgres"`. Each gets a schema of its own there."""
    url = os.environ.get("TREADLE_TEST_POSTGRES")
    if not url:
        raise pytest.UsageError(
            "which PostgreSQL? Set TREADLE_TEST_POSTGRES, or override the fixture treadle_postgres_url"
        )
    return url


@pytest.fixture
def treadle_app(request: pytest.FixtureRequest) -> Treadle:
    """A Treadle, new for each test, that runs what the test enqueues. On memory, unless the test has the
    marker `treadle(url=...)`."""
    app: Treadle = request.getfixturevalue(_starter(request))
    return app


def _starter(request: pytest.FixtureRequest) -> str:
    """The fixture that starts the app where the test runs."""
    function = getattr(request.node, "obj", None)
    function = getattr(getattr(function, "hypothesis", None), "inner_test", function)
    if not inspect.iscoroutinefunction(function):
        return "_treadle_sync"
    if "anyio_backend" in request.fixturenames:
        return "_treadle_anyio"
    marker = request.node.get_closest_marker("asyncio")
    scope = None if marker is None else marker.kwargs.get("loop_scope")
    return (
        f"_treadle_asyncio_{scope or request.config.getini('asyncio_default_test_loop_scope') or 'function'}"
    )


@pytest.fixture
def _treadle_made(request: pytest.FixtureRequest, treadle_settings: dict[str, Any]) -> MadeApp:
    """The app of a test, not started."""
    settings: dict[str, Any] = {"url": request.config.getini("treadle_url"), **treadle_settings}
    if "backend" in treadle_settings:
        del settings["url"]
    for marker in reversed(list(request.node.iter_markers("treadle"))):
        if marker.args:
            raise pytest.UsageError("the marker treadle takes its arguments by name: treadle(url='sqlite')")
        if "url" in marker.kwargs:
            settings.pop("backend", None)
        settings.update(marker.kwargs)
    match settings.get("url"):
        case "sqlite":
            directory: Path = request.getfixturevalue("tmp_path")
            settings["url"] = f"sqlite:///{directory / 'treadle.db'}"
        case "postgres":
            settings["url"] = request.getfixturevalue("treadle_postgres_url")
            settings.setdefault("prefix", f"test_{uuid4().hex[:12]}")
            settings["drop"] = True
        case _:
            pass
    for fixture in ("clock", "faults", "transactions"):
        if f"treadle_{fixture}" in request.fixturenames:
            settings[fixture] = request.getfixturevalue(f"treadle_{fixture}")
    return make_app(settings)


@pytest.fixture
def _treadle_sync(_treadle_made: MadeApp) -> Generator[Treadle]:
    app = _treadle_made.app
    app.sync.call(_treadle_made.start())
    yield app
    app.sync.call(_treadle_made.stop())
    app.sync.close()


def _starter_on_loop() -> Callable[..., AsyncGenerator[Treadle]]:
    """A new function each time: pytest-asyncio notes the loop of a fixture on its function."""

    async def started(_treadle_made: MadeApp) -> AsyncGenerator[Treadle]:
        await _treadle_made.start()
        try:
            yield _treadle_made.app
        finally:
            await _treadle_made.stop()

    return started


async def _started_by_anyio(anyio_backend_name: str, _treadle_made: MadeApp) -> AsyncGenerator[Treadle]:
    if anyio_backend_name != "asyncio":
        pytest.skip("treadle runs on asyncio")
    await _treadle_made.start()
    try:
        yield _treadle_made.app
    finally:
        await _treadle_made.stop()


# Every project with treadle and pytest loads this module, so neither plugin need be there.
if find_spec("anyio") is not None:
    _treadle_anyio = pytest.fixture(_started_by_anyio, name="_treadle_anyio")
if find_spec("pytest_asyncio") is not None:
    from pytest_asyncio import fixture as async_fixture

    # An app runs on the loop of its test, which may be shared by a module or by all tests.
    for _scope in _LOOP_SCOPES:
        globals()[f"_treadle_asyncio_{_scope}"] = async_fixture(
            _starter_on_loop(), name=f"_treadle_asyncio_{_scope}", loop_scope=_scope
        )
