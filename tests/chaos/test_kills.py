"""kill -9 at random moments: nothing acknowledged is lost, no effect done twice. `make chaos` does more."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.chaos.account import Account, recovery
from tests.chaos.stores import PostgresGround, SqliteGround
from tests.chaos.storm import Storm
from tests.support import postgres
from tests.support.records import record
from tests.support.run import OWN

KILLS = int(os.environ.get("TREADLE_KILLS", "50"))
ITEMS = int(os.environ.get("TREADLE_ITEMS", "600"))


def passed(account: Account, name: str) -> None:
    sys.stdout.write(f"\n{name}: {account}")
    account.check()
    if "TREADLE_KILLS" in os.environ:
        record(
            f"kills on {name}",
            f"make chaos KILLS={KILLS}",
            items=account.items,
            kills=account.kills,
            suspended=account.pauses,
            cut=account.cuts,
            restarts=account.restarts,
            lost=0,
            twice=0,
            recovery=recovery(account.recoveries),
        )
    assert account.acknowledged > KILLS


@pytest.mark.timeout(300 + ITEMS / 10)
async def test_kills_on_sqlite(tmp_path: Path) -> None:
    """Processes are killed and suspended."""
    ground = SqliteGround(tmp_path / "work.db")
    await ground.prepare()
    passed(await Storm(ground, tmp_path, seed=1, items=ITEMS).blow(KILLS), "SQLite")


@pytest.fixture
def ground(run_directory: Path) -> Iterator[PostgresGround]:
    """A server of its own: it will be restarted."""
    home = run_directory / f"{OWN}chaos"
    home.mkdir(mode=0o755)
    url = postgres.start(home, forgetful=False)
    try:
        yield PostgresGround(url, home)
    finally:
        postgres.stop(home)


@pytest.mark.timeout(300 + ITEMS / 10)
async def test_kills_on_postgres(ground: PostgresGround, tmp_path: Path) -> None:
    """And connections are cut, and the server crashes, and is restarted once more."""
    await ground.prepare()
    account = await Storm(ground, tmp_path, seed=2, items=ITEMS).blow(KILLS)
    passed(account, "PostgreSQL")
    assert account.restarts == 2
