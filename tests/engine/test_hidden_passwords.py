"""A password in a URL is in no message, no traceback, no log line and no `repr`."""

import logging
import traceback

import pytest
from typer.testing import CliRunner

from treadle import Treadle
from treadle.backends.postgres import PostgresBackend
from treadle.cli.commands import commands
from treadle.errors import TreadleError

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


@pytest.mark.parametrize("url", URLS)
def test_the_command_line_hides_it(url: str) -> None:
    outcome = CliRunner().invoke(commands, ["migrate", url])
    assert outcome.exit_code == 2
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
