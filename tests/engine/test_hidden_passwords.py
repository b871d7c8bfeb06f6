"""A password in a URL is in no message, no traceback, no log line and no `repr`."""

import asyncio
import logging
import traceback

import pytest
from typer.testing import CliRunner

from treadle import Treadle
from treadle.backends.postgres import PostgresBackend
from treadle.backends.redis import RedisBackend
from treadle.cli.commands import commands
from treadle.errors import TreadleError

pytestmark = [pytest.mark.every_store, pytest.mark.usefixtures("brief_pauses")]

SECRET = "hunter2"
REFUSED = f"postgresql://ann:{SECRET}@localhost:1/none"
URLS = [
    REFUSED,
    f"postgresql://localhost:1/none?user=ann&password={SECRET}",
    f"postgresql://ann:pa@{SECRET}@localhost:1/none",
    f"postgresql://ann:a/{SECRET}@localhost/none",
    f"postgresql://ann:a/[{SECRET}@localhost/none",
    f"postgresql://ann:[{SECRET}@localhost/none",
    f"postgresql://ann:\u2100{SECRET}@localhost/none",
    f"postgresql://ann:{SECRET}",
    f"postgresql:ann:{SECRET}@localhost",
    f"mysql://ann:{SECRET}@localhost/none",
    f"ann:{SECRET}@localhost",
    f"sqlite:///?key={SECRET}",
    f"sqlite:///work.db?key={SECRET}",
    f"host=localhost password={SECRET}",
    f"redis://ann:{SECRET}@localhost:1/0",
    f"redis://:{SECRET}@localhost:1",
    f"redis+sentinel://ann:{SECRET}@localhost:1/work?sentinel_password={SECRET}",
    f"redis://ann:{SECRET}@localhost?replica=1",
    f"redis://{SECRET}@localhost",
]


@pytest.mark.parametrize("url", URLS)
async def test_an_app_that_cannot_connect_hides_it(url: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    shown: list[str] = []
    with pytest.raises(TreadleError) as refusal:
        await _start(url, shown)
    shown += [repr(refusal.value), *traceback.format_exception(refusal.value), caplog.text]
    assert SECRET not in "".join(shown)


async def _start(url: str, shown: list[str]) -> None:
    app = Treadle(url)
    shown += [repr(app), repr(app.backend), repr(vars(app.backend))]
    await app.start()


@pytest.mark.parametrize(
    "url",
    [
        REFUSED,
        f"postgresql://localhost:1/none?user=ann&password={SECRET}",
        f"postgresql://ann:{SECRET}@localhost:99999/none",
        f"postgresql://ann:{SECRET}@localhost:1/none?sslmode=bogus",
        f"redis://ann:{SECRET}@localhost:1",
        f"redis+sentinel://ann:{SECRET}@localhost:1/work?sentinel_password={SECRET}",
    ],
)
async def test_no_variable_of_a_traceback_has_it(url: str) -> None:
    """Tools that report errors send the variables along."""
    app = Treadle(url)
    with pytest.raises(TreadleError) as refusal:
        await app.start()
    assert not [
        (frame.f_code.co_qualname, name)
        for error in _chain(refusal.value)
        for frame, _ in traceback.walk_tb(error.__traceback__)
        for name, value in frame.f_locals.items()
        if frame.f_code.co_filename != __file__ and SECRET in repr(value)
    ]


async def test_no_variable_has_it_after_a_refused_login(valkey_url: str) -> None:
    place = valkey_url.removeprefix("redis+unix://")
    with pytest.raises(TreadleError) as refusal:
        await RedisBackend(f"redis+unix://ann:{SECRET}@{place}").open()
    shown = traceback.TracebackException.from_exception(refusal.value, capture_locals=True).format()
    assert "refuses the user or the password" in "".join(shown)
    assert SECRET not in "".join(shown)


async def test_no_variable_has_it_after_a_timeout() -> None:
    async def stay_silent(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        silent.append(writer)

    silent: list[asyncio.StreamWriter] = []
    server = await asyncio.start_server(stay_silent, "127.0.0.1")
    port = server.sockets[0].getsockname()[1]
    backend = PostgresBackend(f"postgresql://ann:{SECRET}@127.0.0.1:{port}/none", connect_timeout=0.2)
    with pytest.raises(TreadleError) as refusal:
        await backend.open()
    shown = traceback.TracebackException.from_exception(refusal.value, capture_locals=True).format()
    assert SECRET not in "".join(shown)
    for writer in silent:
        writer.close()
    server.close()


def _chain(error: BaseException | None) -> list[BaseException]:
    if error is None:
        return []
    return [error, *_chain(error.__cause__), *_chain(error.__context__)]


@pytest.mark.parametrize("url", URLS)
def test_the_command_line_hides_it(url: str) -> None:
    outcome = CliRunner().invoke(commands, ["migrate", url])
    assert outcome.exit_code == (3 if "localhost:1" in url else 2)
    assert outcome.output.startswith("treadle: ")
    assert SECRET not in outcome.output


@pytest.mark.parametrize("url", [REFUSED, f"postgresql://ann:{SECRET}"])
async def test_a_listener_that_cannot_connect_hides_it(
    url: str, prepared_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    """It says so, and goes on without."""
    backend = PostgresBackend(prepared_url, listen_url=url)
    await backend.open()
    await backend.subscribe(lambda _: None)
    await backend.close()
    assert "cannot listen" in caplog.text
    assert SECRET not in caplog.text + repr(vars(backend))
