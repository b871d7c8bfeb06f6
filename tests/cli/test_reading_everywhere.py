"""Every reading command on SQLite and PostgreSQL: for all tenants, for one, and with hostile content."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec
import pytest

from tests.cli import looked_at
from tests.cli.calling import Called, call
from tests.cli.conftest import APP
from treadle import Client, Retry, Treadle, work
from treadle.errors import WorkFailed
from treadle.item import Heartbeat, Limit, PermitRequest
from treadle.worker_info import WorkerInfo

EVIL = "\x1b]0;secret\x07\x9b2J\u202e[red]secret[/red]\r\nsecret"


@work(name="secret[bold].type")
async def fail_with_secrets(text: str) -> None:
    raise RuntimeError(text)


@pytest.fixture(params=["sqlite", "postgres", "redis"])
def store_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'work.db'}"
    url: str = request.getfixturevalue("valkey_url" if request.param == "redis" else "prepared_url")
    return url


async def _fill(url: str) -> None:
    types = [*looked_at.TYPES, fail_with_secrets]
    async with Treadle(url, work=types, poll_interval=0.05) as app:
        other = app.tenant("other")
        failing = await other.enqueue(
            fail_with_secrets(EVIL),
            retry=Retry(attempts=2, base=0.001),
            id="secret-1",
            workflow="secret-w",
            queue="secret-q",
            key="secret-k",
            lane="secret-l",
        )
        with pytest.raises(WorkFailed):
            await failing.result()
        await app.tenant("acme").enqueue(looked_at.report(), id="own-1", workflow="own-w").result()
        other.schedule("secret-s", every=60, run=looked_at.report)
        await other.schedules.list()
    async with Client(url, work=types) as client:
        other = client.tenant("other")
        await other.enqueue(looked_at.report(EVIL), id="secret-2", after=["secret-3"], queue="secret-q")
        await other.pause("secret-q")
        said = msgspec.json.encode(WorkerInfo(host="secret-host", tenants=("other",), lease=60.0))
        await client.backend.beat(Heartbeat(worker="secret-worker", lease=60.0, types=("report",), info=said))
        limit = Limit("report:slots:tenant:other-secret", 1, 1.0, "slots")
        await client.backend.take_permits([PermitRequest((limit,))], worker="secret-worker")


COMMANDS = [
    ["status"],
    ["status", "--by", "tenant"],
    ["list"],
    ["list", "--where", "input~secret"],
    ["list", "--workflow", "secret-w"],
    ["list", "--group", "secret-1"],
    ["list", "--json", "--all", "--history"],
    ["workers", "--items"],
    ["limits"],
    ["schedules"],
    ["doctor"],
    ["check"],
    ["show", "secret-1"],
    ["why", "secret-1"],
    ["why", "secret-2"],
    ["why", "--queue", "secret-q"],
    ["why", "--schedule", "other/secret-s"],
    ["group", "secret-1"],
    ["group", "secret-1", "--dot"],
    ["workflow", "secret-w"],
    ["workflow", "secret-w", "--mermaid"],
]


def test_every_command(store_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asyncio.run(_fill(store_url))
    monkeypatch.setattr(looked_at, "app", Treadle(store_url, work=[*looked_at.TYPES, fail_with_secrets]))
    for command in COMMANDS:
        seen = call(*command, "--app", APP)
        assert seen.code in (0, 4), (command, seen)
        assert "secret" in seen.out, command
        _check_printable(seen, command)
        told = call(*command, "--app", APP, "--json")
        _check_printable(told, command)
        if "--dot" not in command and "--mermaid" not in command:
            assert told.code == seen.code, (command, told)
            assert any("secret" in str(one) for one in told.objects), command
        _check_hidden(call(*command, "--app", APP, "--tenant", "acme", "--json"), command)
    assert call("show", "own-1", "--app", APP, "--tenant", "acme").code == 0
    assert call("workflow", "own-w", "--url", store_url, "--tenant", "acme").code == 0


def test_every_command_without_an_app(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'work.db'}"
    asyncio.run(_fill(url))
    for command in COMMANDS:
        seen = call(*command, "--url", url)
        assert seen.code == 2 if command == ["check"] else seen.code in (0, 4), (command, seen)
        _check_printable(seen, command)
        _check_hidden(call(*command, "--url", url, "--tenant", "acme"), command)


def _check_printable(seen: Called, command: list[str]) -> None:
    assert all(line.isprintable() for line in (seen.out + seen.err).splitlines()), command


def _check_hidden(seen: Called, command: list[str]) -> None:
    """Nothing of another tenant is shown. What was asked for may be repeated."""
    shown = seen.out + seen.err
    for word in command:
        shown = shown.replace(word, "") if "secret" in word else shown
    assert "secret" not in shown, (command, seen)
